"""An unpickler that runs nothing: it knows containers and turns every class and call into plain nodes.

The standard unpickler is not used even with `find_class` overridden: it takes memory for memo
indices a file merely claims, and lets a pickle set attributes on whatever `find_class` returns.
"""

from __future__ import annotations

import codecs
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window

# One step is one opcode or one small object, some hundred bytes. A checkpoint of ten thousand
# tensors takes half a million.
_MOST_STEPS = 3_000_000
_MOST_BYTES = 64 << 20  # of text and numbers that become Python objects, fourfold in the worst case
_SMALL = 64  # bytes that count as part of their step
_MOST_GLOBALS = 20_000
_LONGEST_NAME = 1000
_LONGEST_LINE = 1 << 16
_LONGEST_NUMBER = 4096
_LONGEST_TEXT = 1 << 20  # longer ones are arrays that an old protocol wrote as text
_MAP_FROM = 16 << 20  # larger pickles hold arrays and are mapped instead of read


@dataclass(frozen=True, slots=True)
class Global:
    """Name a class or function of the pickle; it is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False, slots=True)  # no repr: nodes can be deep, endless or both
class Object:
    """Stand for whatever a call or a class would have made."""

    made_by: Any  # mostly a Global
    args: Any = ()
    state: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


KEY = "key"  # what an Object is made by that stands for a key not safe to hash


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Name bytes of the pickle by their place, so that large ones are not copied."""

    window: Window


@dataclass(frozen=True, eq=False, slots=True)
class LongText:
    """Name text of the pickle by its place, in UTF-8."""

    window: Window


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Persistent:
    """Stand for an object kept outside the pickle."""

    id: Any


class NotKnownError(TypeError):
    """Say that a pickle is sound and holds something nndiff does not know."""


Handler = Callable[[tuple[Any, ...]], Any]


class _Mark:
    pass


_MARK = _Mark()


class Budget:
    """Bound what a pickle, with the pickles inside it, may take."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.steps = _MOST_STEPS
        self._bytes = _MOST_BYTES

    def step(self, count: int) -> None:
        """Spend steps."""
        self.steps -= count
        if self.steps < 0:
            raise UnsafeFileError(self._path, f"its pickle takes more than {_MOST_STEPS} steps; not read")

    def hold(self, size: int) -> None:
        """Spend bytes of text or numbers."""
        self._bytes -= size
        if self._bytes < 0:
            raise UnsafeFileError(
                self._path, f"its pickle holds more than {_MOST_BYTES} bytes of text and numbers; not read"
            )


class PickleMachine:
    """Run the opcodes of one pickle over inert nodes."""

    def __init__(
        self,
        window: Window,
        handlers: dict[str, Handler],
        persistent: Callable[[Any], Any] = Persistent,
        budget: Budget | None = None,
    ) -> None:
        self._window = window
        self._handlers = handlers
        self._persistent = persistent
        self._buffer, self._base = _buffer(window)
        self._end = self._base + window.size
        self._at = self._base
        self._stack: list[Any] = []
        self.push = self._stack.append
        self._memo: dict[int, Any] = {}
        self._budget = budget or Budget(window.path)
        self._globals: dict[tuple[str, str], Global] = {}
        self.foreign: dict[str, None] = {}

    def load(self) -> Any:
        """Return the object of the next pickle in the window."""
        self._stack.clear()
        self._memo = {}
        try:
            self._run()
            if len(self._stack) != 1:
                raise ValueError("stack")
            return self._stack[0]
        except NotKnownError as error:
            raise SourceError(self._window.path, str(error)) from None
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error, RecursionError):
            raise SourceError(
                self._window.path, f"its pickle is damaged or not a pickle at all (byte {self.position})"
            ) from None

    @property
    def position(self) -> int:
        """Return how many bytes of the window have been used."""
        return self._at - self._base

    def _run(self) -> None:
        operations, buffer, budget, end = _OPERATIONS, self._buffer, self._budget, self._end
        while self._at < end:
            code = buffer[self._at]
            self._at += 1
            if code == 0x2E:  # STOP
                return
            budget.steps -= 1
            if budget.steps < 0:
                budget.step(0)
            operations[code](self)
        raise ValueError("no STOP")

    # reading

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        start, stop = self._at, self._at + size
        if size < 0 or stop > self._end:
            raise ValueError("truncated")
        self._at = stop
        if size > _SMALL:
            self._budget.hold(size)
        return bytes(self._buffer[start:stop])

    def number(self, size: int) -> int:
        """Return the next unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def byte(self) -> int:
        """Return the next byte as a number."""
        self._at += 1
        if self._at > self._end:
            raise ValueError("truncated")
        return int(self._buffer[self._at - 1])

    def line(self) -> bytes:
        """Return the next line without its end."""
        stop = self._buffer.find(b"\n", self._at, min(self._end, self._at + _LONGEST_LINE))
        if stop < 0:
            raise ValueError("line")
        found = self.take(stop - self._at)
        self._at = stop + 1
        return found

    def text(self, size: int) -> str | LongText:
        """Return the next bytes as text, long ones by their place."""
        if size > _LONGEST_TEXT:
            return LongText(self.place(size))
        return str(self.take(size), "utf-8", "surrogatepass")

    def string(self, size: int) -> str | Span:
        """Return the next bytes as the text or, where they are many, the bytes of Python 2."""
        return self.span(size) if size > _LONGEST_TEXT else str(self.take(size), "latin-1")

    def span(self, size: int) -> Span:
        """Return the next bytes by their place."""
        return Span(self.place(size))

    def place(self, size: int) -> Window:
        """Return where the next bytes are, and pass them."""
        self._budget.step(2)
        found = self._window.sub(self._at - self._base, size)
        self._at += size
        return found

    # the stack

    def push_container(self, value: Any) -> None:
        """Put a container on the stack; it takes the room and the time of two steps."""
        self._budget.steps -= 1
        self.push(value)

    def pop(self) -> Any:
        """Take the top of the stack, which must not be a mark."""
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("mark")
        return value

    def pop_many(self, size: int) -> list[Any]:
        """Take some values from the top of the stack, none of which may be a mark."""
        found = self._stack[-size:]
        if len(found) < size or any(value is _MARK for value in found):
            raise ValueError("mark")
        del self._stack[-size:]
        return found

    def pop_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                found = self._stack[index + 1 :]
                del self._stack[index:]
                return found
        raise ValueError("no mark")

    def top(self) -> Any:
        """Return the top of the stack, which must not be a mark."""
        if self._stack[-1] is _MARK:
            raise ValueError("mark")
        return self._stack[-1]

    def remember(self, key: int) -> None:
        """Keep the top of the stack under a number."""
        self._memo[key] = self.top()

    def recall(self, key: int) -> None:
        """Push what was kept under a number."""
        self.push(self._memo[key])

    # classes and calls

    def find(self, module: str, name: str) -> Global:
        """Return the name of a class or function, and note it if it is not one we know."""
        known = self._globals.get((module, name))
        if known is not None:
            return known
        if len(module) + len(name) > _LONGEST_NAME:
            raise ValueError("name")
        if len(self._globals) >= _MOST_GLOBALS:
            raise UnsafeFileError(self._window.path, f"its pickle names more than {_MOST_GLOBALS} classes; not read")
        found = self._globals[module, name] = Global(module, name)
        if str(found) not in self._handlers and not _is_plain(found):
            self.foreign.setdefault(str(found))
        return found

    def call(self, function: Any, args: Any) -> Any:
        """Return what a known call stands for, or a node for an unknown one."""
        handler = self._handlers.get(str(function)) if isinstance(function, Global) else None
        if handler is None:
            self._budget.step(3)
            return Object(function, args)
        if not isinstance(args, tuple):
            raise TypeError("arguments")
        # a handler may look at or copy what it is given, and a pickle may give the same again and again
        self._budget.step(len(args) + sum(len(each) for each in args if isinstance(each, (list, tuple, dict))))
        return handler(args)

    def build(self, target: Any, state: Any) -> None:
        """Note the state of a node; containers need none."""
        if isinstance(target, Object):
            target.state.append(state)

    def persistent(self, identity: Any) -> Any:
        """Return what stands for an object kept outside."""
        return self._persistent(identity)


def _buffer(window: Window) -> tuple[Any, int]:
    """Return a bytes-like object and where the window begins in it."""
    if window.size < _MAP_FROM:
        return window.read(0, window.size), 0
    return window.pages()


_PLAIN = frozenset(
    ("bool", "bytes", "complex", "float", "int", "list", "dict", "set", "str", "tuple", "frozenset", "long")
)


def _is_plain(found: Global) -> bool:
    if found.module in ("builtins", "__builtin__"):
        return found.name in _PLAIN
    storage = found.module in ("torch", "torch.cuda", "torch.storage") and found.name.endswith("Storage")
    return storage or (found.module == "torch" and "." not in found.name)


def _key(value: Any) -> Any:
    """Return a dictionary key that is cheap to hash.

    A deep tuple would overflow the C stack, a long one takes its length each time, and large
    numbers and tuples of numbers can be chosen so that all have one hash.
    """
    if value is None or isinstance(value, (str, float, Global)):
        return value
    if isinstance(value, int) and value.bit_length() < 60:
        return value
    return Object(KEY, value)


def add_pairs(target: Any, flat: list[Any]) -> None:
    """Put key, value, key, value, ... into a dictionary or a node."""
    if len(flat) % 2:
        raise ValueError("odd")
    pairs = zip(flat[::2], flat[1::2], strict=True)
    if isinstance(target, dict):
        target.update((_key(key), value) for key, value in pairs)
    elif isinstance(target, Object):
        target.pairs.extend(pairs)
    else:
        raise TypeError("not a dictionary")


def add_items(target: Any, items: list[Any]) -> None:
    """Append to a list or a node."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Object):
        target.items.extend(items)
    else:
        raise TypeError("not a list")


def _whole(line: bytes) -> int:
    if len(line) > _LONGEST_NUMBER:
        raise ValueError("number")
    return int(line)


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


Operation = Callable[[PickleMachine], Any]


def _table() -> list[Operation]:
    named: dict[int, Operation] = {
        0x80: lambda m: m.take(1),  # PROTO
        0x95: lambda m: m.take(8),  # FRAME
        ord("("): lambda m: m.push(_MARK),
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
        0x82: _refuse,
        0x83: _refuse,
        0x84: _refuse,
        0x97: _refuse,
        0x98: _refuse,
    }
    return [named.get(code, _unknown) for code in range(256)]


_OPERATIONS = _table()
