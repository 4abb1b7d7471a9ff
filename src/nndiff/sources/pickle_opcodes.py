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


def _parse_int(line: bytes) -> int:
    if len(line) > _LONGEST_NUMBER:
        raise ValueError("number")
    return int(line)


def _check_protocol(machine: PickleMachine) -> None:
    protocol = machine.byte()
    if protocol > _NEWEST_PROTOCOL:
        raise NotKnownError(
            f"is a pickle of protocol {protocol}; nndiff reads protocols up to {_NEWEST_PROTOCOL}: damaged, or too new"
        )


def _push_int_line(machine: PickleMachine) -> None:
    line = machine.line()
    if line in (b"00", b"01"):  # how old protocols write False and True
        machine.push(line == b"01")
    else:
        machine.push(_parse_int(line))


def _push_long(machine: PickleMachine, size: int) -> None:
    if size > _LONGEST_NUMBER:
        raise ValueError("number")
    machine.push(int.from_bytes(machine.take(size), "little", signed=True))


def _push_quoted(machine: PickleMachine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise ValueError("string")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an escape that Python does not know
        machine.push(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


def _push_stack_global(machine: PickleMachine) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError("global")
    machine.push(machine.find(module, name))


def _call_function(machine: PickleMachine) -> None:
    args, function = machine.pop(), machine.pop()
    machine.push(machine.call(function, args))


def _call_with_keywords(machine: PickleMachine) -> None:
    keywords, args, kind = machine.pop(), machine.pop(), machine.pop()
    instance = machine.call(kind, args)
    if isinstance(instance, Object) and keywords:
        instance.state.append(keywords)
    machine.push(instance)


def _call_named_class(machine: PickleMachine) -> None:
    module, name = str(machine.line(), "utf-8"), str(machine.line(), "utf-8")
    args = tuple(machine.pop_mark())
    machine.push(machine.call(machine.find(module, name), args))


def _call_marked_class(machine: PickleMachine) -> None:
    kind, *args = machine.pop_mark()
    machine.push(machine.call(kind, tuple(args)))


def _build_top(machine: PickleMachine) -> None:
    state = machine.pop()
    machine.build(machine.top(), state)


def _push_dict(machine: PickleMachine) -> None:
    entries: dict[Any, Any] = {}
    add_pairs(entries, machine.pop_mark())
    machine.push_container(entries)


def _set_item(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    add_pairs(machine.top(), [key, value])


def _set_items(machine: PickleMachine) -> None:
    flat = machine.pop_mark()
    add_pairs(machine.top(), flat)


def _append_item(machine: PickleMachine) -> None:
    item = machine.pop()
    add_items(machine.top(), [item])


def _append_items(machine: PickleMachine) -> None:
    items = machine.pop_mark()
    add_items(machine.top(), items)


def _push_tuple(machine: PickleMachine, size: int) -> None:
    machine.push_container(tuple(machine.pop_many(size)))


def _refuse_unknown(machine: PickleMachine) -> None:
    raise ValueError("opcode")


def _refuse_outside_object(machine: PickleMachine) -> None:
    raise ValueError("extension registries and out-of-band buffers are not part of a checkpoint")


Operation = Callable[["PickleMachine"], Any]


def _build_table() -> list[Operation]:
    by_code: dict[int, Operation] = {
        0x80: _check_protocol,
        0x95: lambda m: m.take(8),  # FRAME
        ord("("): lambda m: m.push(MARK),
        ord("0"): lambda m: m.pop(),
        ord("1"): lambda m: m.pop_mark(),
        ord("2"): lambda m: m.push(m.top()),
        ord("N"): lambda m: m.push(None),
        0x88: lambda m: m.push(True),
        0x89: lambda m: m.push(False),
        ord("I"): _push_int_line,
        ord("J"): lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
        ord("K"): lambda m: m.push(m.byte()),
        ord("M"): lambda m: m.push(m.number(2)),
        ord("L"): lambda m: m.push(_parse_int(m.line().rstrip(b"L"))),
        0x8A: lambda m: _push_long(m, m.byte()),
        0x8B: lambda m: _push_long(m, m.number(4)),
        ord("F"): lambda m: m.push(float(m.line())),
        ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
        ord("S"): _push_quoted,
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
        0x93: _push_stack_global,
        ord("R"): _call_function,
        0x81: _call_function,  # NEWOBJ: class and arguments, as for a call
        0x92: _call_with_keywords,
        ord("i"): _call_named_class,
        ord("o"): _call_marked_class,
        ord("b"): _build_top,
        ord("P"): lambda m: m.push(m.persistent(str(m.line(), "utf-8"))),
        ord("Q"): lambda m: m.push(m.persistent(m.pop())),
        ord("]"): lambda m: m.push_container([]),
        0x8F: lambda m: m.push_container([]),  # a set; its order and repeats do not matter here
        ord("l"): lambda m: m.push_container(m.pop_mark()),
        0x91: lambda m: m.push_container(m.pop_mark()),
        ord("}"): lambda m: m.push_container({}),
        ord("d"): _push_dict,
        ord(")"): lambda m: m.push(()),
        ord("t"): lambda m: m.push_container(tuple(m.pop_mark())),
        0x85: lambda m: _push_tuple(m, 1),
        0x86: lambda m: _push_tuple(m, 2),
        0x87: lambda m: _push_tuple(m, 3),
        ord("a"): _append_item,
        ord("e"): _append_items,
        0x90: _append_items,
        ord("s"): _set_item,
        ord("u"): _set_items,
        ord("g"): lambda m: m.recall(_parse_int(m.line())),
        ord("h"): lambda m: m.recall(m.byte()),
        ord("j"): lambda m: m.recall(m.number(4)),
        ord("p"): lambda m: m.remember(_parse_int(m.line())),
        ord("q"): lambda m: m.remember(m.byte()),
        ord("r"): lambda m: m.remember(m.number(4)),
        0x94: lambda m: m.remember(len(m.memo)),
        **dict.fromkeys((0x82, 0x83, 0x84, 0x97, 0x98), _refuse_outside_object),
    }
    return [by_code.get(code, _refuse_unknown) for code in range(256)]


OPERATIONS = _build_table()
