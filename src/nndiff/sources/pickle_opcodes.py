"""The opcodes of all pickle protocols, each as one small step of the machine; none can call anything."""

from __future__ import annotations

import codecs
import struct
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nndiff.sources.pickle_nodes import MARK, NotKnownError, Object, add_items, add_pairs

if TYPE_CHECKING:
    from nndiff.sources.pickle_vm import PickleMachine

_LONGEST_NUMBER = 4096
_NEWEST_PROTOCOL = 5


def _whole(line: bytes) -> int:
    if len(line) > _LONGEST_NUMBER:
        raise ValueError("number")
    return int(line)


def _check_protocol(machine: PickleMachine) -> None:
    protocol = machine.byte()
    if protocol > _NEWEST_PROTOCOL:
        raise NotKnownError(
            f"is a pickle of protocol {protocol}; nndiff reads protocols up to {_NEWEST_PROTOCOL}: damaged, or too new"
        )


def _int_line(machine: PickleMachine) -> None:
    line = machine.line()
    machine.push({b"00": False, b"01": True}[line] if line in (b"00", b"01") else _whole(line))


def _long(machine: PickleMachine, size: int) -> None:
    if size > _LONGEST_NUMBER:
        raise ValueError("number")
    machine.push(int.from_bytes(machine.take(size), "little", signed=True))


def _quoted(machine: PickleMachine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise ValueError("string")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an escape that Python does not know
        machine.push(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


def _stack_global(machine: PickleMachine) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError("global")
    machine.push(machine.find(module, name))


def _reduce(machine: PickleMachine) -> None:
    args, function = machine.pop(), machine.pop()
    machine.push(machine.call(function, args))


def _newobj_ex(machine: PickleMachine) -> None:
    named, args, kind = machine.pop(), machine.pop(), machine.pop()
    made = machine.call(kind, args)
    if isinstance(made, Object) and named:
        made.state.append(named)
    machine.push(made)


def _inst(machine: PickleMachine) -> None:
    module, name = str(machine.line(), "utf-8"), str(machine.line(), "utf-8")
    args = tuple(machine.pop_mark())
    machine.push(machine.call(machine.find(module, name), args))


def _obj(machine: PickleMachine) -> None:
    found = machine.pop_mark()
    machine.push(machine.call(found[0], tuple(found[1:])))


def _build(machine: PickleMachine) -> None:
    state = machine.pop()
    machine.build(machine.top(), state)


def _dict(machine: PickleMachine) -> None:
    made: dict[Any, Any] = {}
    add_pairs(made, machine.pop_mark())
    machine.push_container(made)


def _set_item(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    add_pairs(machine.top(), [key, value])


def _set_items(machine: PickleMachine) -> None:
    flat = machine.pop_mark()
    add_pairs(machine.top(), flat)


def _append(machine: PickleMachine) -> None:
    item = machine.pop()
    add_items(machine.top(), [item])


def _append_many(machine: PickleMachine) -> None:
    items = machine.pop_mark()
    add_items(machine.top(), items)


def _tuple_of(machine: PickleMachine, size: int) -> None:
    items = machine.pop_many(size)
    machine.push_container(tuple(items))


def _unknown(machine: PickleMachine) -> None:
    raise ValueError("opcode")


def _refuse(machine: PickleMachine) -> None:
    raise ValueError("extension registries and out-of-band buffers are not part of a checkpoint")


Operation = Callable[["PickleMachine"], Any]


def _table() -> list[Operation]:
    named: dict[int, Operation] = {
        0x80: _check_protocol,
        0x95: lambda m: m.take(8),  # FRAME
        ord("("): lambda m: m.push(MARK),
        ord("0"): lambda m: m.pop(),
        ord("1"): lambda m: m.pop_mark(),
        ord("2"): lambda m: m.push(m.top()),
        ord("N"): lambda m: m.push(None),
        0x88: lambda m: m.push(True),
        0x89: lambda m: m.push(False),
        ord("I"): _int_line,
        ord("J"): lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
        ord("K"): lambda m: m.push(m.byte()),
        ord("M"): lambda m: m.push(m.number(2)),
        ord("L"): lambda m: m.push(_whole(m.line().rstrip(b"L"))),
        0x8A: lambda m: _long(m, m.byte()),
        0x8B: lambda m: _long(m, m.number(4)),
        ord("F"): lambda m: m.push(float(m.line())),
        ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
        ord("S"): _quoted,
        ord("T"): lambda m: m.push(m.string(m.number(4))),
        ord("U"): lambda m: m.push(m.string(m.byte())),
        ord("V"): lambda m: m.push(str(m.line(), "raw-unicode-escape")),
        ord("X"): lambda m: m.push(m.text(m.number(4))),
        0x8C: lambda m: m.push(m.text(m.byte())),
        0x8D: lambda m: m.push(m.text(m.number(8))),
        ord("B"): lambda m: m.push(m.span(m.number(4))),
        ord("C"): lambda m: m.push(m.span(m.byte())),
        0x8E: lambda m: m.push(m.span(m.number(8))),
        0x96: lambda m: m.push(m.span(m.number(8))),
        ord("c"): lambda m: m.push(m.find(str(m.line(), "utf-8"), str(m.line(), "utf-8"))),
        0x93: _stack_global,
        ord("R"): _reduce,
        0x81: _reduce,  # NEWOBJ: class and arguments, as for a call
        0x92: _newobj_ex,
        ord("i"): _inst,
        ord("o"): _obj,
        ord("b"): _build,
        ord("P"): lambda m: m.push(m.persistent(str(m.line(), "utf-8"))),
        ord("Q"): lambda m: m.push(m.persistent(m.pop())),
        ord("]"): lambda m: m.push_container([]),
        0x8F: lambda m: m.push_container([]),  # a set: order and doubles do not matter to us
        ord("l"): lambda m: m.push_container(m.pop_mark()),
        0x91: lambda m: m.push_container(m.pop_mark()),
        ord("}"): lambda m: m.push_container({}),
        ord("d"): _dict,
        ord(")"): lambda m: m.push(()),
        ord("t"): lambda m: m.push_container(tuple(m.pop_mark())),
        0x85: lambda m: _tuple_of(m, 1),
        0x86: lambda m: _tuple_of(m, 2),
        0x87: lambda m: _tuple_of(m, 3),
        ord("a"): _append,
        ord("e"): _append_many,
        0x90: _append_many,
        ord("s"): _set_item,
        ord("u"): _set_items,
        ord("g"): lambda m: m.recall(_whole(m.line())),
        ord("h"): lambda m: m.recall(m.byte()),
        ord("j"): lambda m: m.recall(m.number(4)),
        ord("p"): lambda m: m.remember(_whole(m.line())),
        ord("q"): lambda m: m.remember(m.byte()),
        ord("r"): lambda m: m.remember(m.number(4)),
        0x94: lambda m: m.remember(len(m._memo)),
        **dict.fromkeys((0x82, 0x83, 0x84, 0x97, 0x98), _refuse),
    }
    return [named.get(code, _unknown) for code in range(256)]


OPERATIONS = _table()
