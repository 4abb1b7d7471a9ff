"""An unpickler that runs nothing: it knows containers and turns every class and call into plain nodes.

The standard unpickler is not used even with `find_class` overridden: it takes memory for memo
indices a file merely claims, and lets a pickle set attributes on whatever `find_class` returns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, overload

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.pickle_nodes import MARK, Global, Handler, LongText, NotKnownError, Object, Persistent, Span
from nndiff.sources.pickle_opcodes import OPERATIONS

# One step is one opcode or one small object, some hundred bytes. A checkpoint of ten thousand
# tensors takes half a million.
_MOST_STEPS = 3_000_000
_MOST_BYTES = 64 << 20  # of text and numbers that become Python objects, fourfold in the worst case
_SMALL = 64  # bytes; up to so many count as part of their step
_MOST_GLOBALS = 20_000
_LONGEST_NAME = 1000
_SHORT_LINE, _LONGEST_LINE = 1 << 8, 1 << 16
_LONGEST_TEXT = 1 << 20  # longer ones are arrays that an old protocol wrote as text
_LARGEST_READ = 16 << 20  # larger pickles hold arrays, which are skipped: read in blocks
_BLOCK = 1 << 16


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


class LargeBuffer:
    """Be the bytes of a window, as `bytes` would, with one block of them in memory."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._first = 0
        self._block = b""

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> bytes: ...
    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, int):
            return self[place : place + 1][0]
        start, stop, _ = place.indices(self._window.size)
        if start < self._first or stop > self._first + len(self._block):
            self._first = start
            self._block = self._window.read(start, min(max(stop - start, _BLOCK), self._window.size - start))
        return self._block[start - self._first : stop - self._first]


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
        self._buffer = window.read(0, window.size) if window.size < _LARGEST_READ else LargeBuffer(window)
        self._end = window.size
        self._at = 0
        self._stack: list[Any] = []
        self.push = self._stack.append
        self.memo: dict[int, Any] = {}
        self._budget = budget or Budget(window.path)
        self._globals: dict[tuple[str, str], Global] = {}
        self.foreign: dict[str, None] = {}

    def load(self) -> Any:
        """Return the object of the next pickle in the window."""
        self._stack.clear()
        self.memo = {}
        try:
            self._run()
            if len(self._stack) != 1:
                raise ValueError("stack")
        except NotKnownError as error:
            raise SourceError(self._window.path, str(error)) from None
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error, RecursionError):
            raise SourceError(
                self._window.path, f"its pickle is damaged or not a pickle at all (byte {self.position})"
            ) from None
        return self._stack[0]

    @property
    def position(self) -> int:
        """Return how many bytes of the window have been used."""
        return self._at

    def _run(self) -> None:
        operations, buffer, budget, end = OPERATIONS, self._buffer, self._budget, self._end
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
        for reach in (_SHORT_LINE, _LONGEST_LINE):
            size = bytes(self._buffer[self._at : min(self._end, self._at + reach)]).find(b"\n")
            if size >= 0:
                line = self.take(size)
                self._at += 1
                return line
        raise ValueError("line")

    def text(self, size: int) -> str | LongText:
        """Return the next bytes as text; long text is not copied."""
        if size > _LONGEST_TEXT:
            return LongText(self.place(size))
        return str(self.take(size), "utf-8", "surrogatepass")

    def string(self, size: int) -> str | Span:
        """Return the next bytes as a Python 2 string: text, or a span if there are many."""
        return self.span(size) if size > _LONGEST_TEXT else str(self.take(size), "latin-1")

    def span(self, size: int) -> Span:
        """Return the next bytes as a span, not copied."""
        return Span(self.place(size))

    def place(self, size: int) -> Window:
        """Return the next bytes as a window, and skip them."""
        self._budget.step(2)
        window = self._window.sub(self._at, size)
        self._at += size
        return window

    # the stack

    def push_container(self, value: Any) -> None:
        """Put a container on the stack; it takes the room and the time of two steps."""
        self._budget.steps -= 1
        self.push(value)

    def pop(self) -> Any:
        """Take the top of the stack, which must not be a mark."""
        value = self._stack.pop()
        if value is MARK:
            raise ValueError("mark")
        return value

    def pop_many(self, size: int) -> list[Any]:
        """Take this many values from the top of the stack, none of which may be a mark."""
        values = self._stack[-size:]
        if len(values) < size or any(value is MARK for value in values):
            raise ValueError("mark")
        del self._stack[-size:]
        return values

    def pop_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is MARK:
                values = self._stack[index + 1 :]
                del self._stack[index:]
                return values
        raise ValueError("no mark")

    def top(self) -> Any:
        """Return the top of the stack, which must not be a mark."""
        if self._stack[-1] is MARK:
            raise ValueError("mark")
        return self._stack[-1]

    def remember(self, key: int) -> None:
        """Store the top of the stack in the memo."""
        self.memo[key] = self.top()

    def recall(self, key: int) -> None:
        """Push what the memo holds under a number."""
        self.push(self.memo[key])

    # classes and calls

    def find(self, module: str, name: str) -> Global:
        """Return the node of a class or function, and note it if it is not a known one."""
        node = self._globals.get((module, name))
        if node is not None:
            return node
        if len(module) + len(name) > _LONGEST_NAME:
            raise ValueError("name")
        if len(self._globals) >= _MOST_GLOBALS:
            raise UnsafeFileError(self._window.path, f"its pickle names more than {_MOST_GLOBALS} classes; not read")
        node = self._globals[module, name] = Global(module, name)
        if str(node) not in self._handlers and not _is_plain(node):
            self.foreign.setdefault(str(node))
        return node

    def call(self, function: Any, args: Any) -> Any:
        """Return what a known call stands for, or a node for an unknown one."""
        handler = self._handlers.get(str(function)) if isinstance(function, Global) else None
        if handler is None:
            self._budget.step(3)
            return Object(function, args)
        if not isinstance(args, tuple):
            raise TypeError("arguments")
        # a handler may look at or copy what it is given, and a pickle may give the same again and again
        steps = len(args)
        for argument in args:
            if isinstance(argument, (list, tuple, dict)):
                steps += len(argument)
        self._budget.step(steps)
        return handler(args)

    def build(self, target: Any, state: Any) -> None:
        """Add state to an Object; containers need none."""
        if isinstance(target, Object):
            target.state.append(state)

    def persistent(self, identity: Any) -> Any:
        """Return what stands for an object stored outside the pickle."""
        return self._persistent(identity)


_PLAIN_CLASSES = frozenset(
    ("bool", "bytes", "complex", "float", "int", "list", "dict", "set", "str", "tuple", "frozenset", "long")
)


def _is_plain(node: Global) -> bool:
    """Return True for classes that every checkpoint names: builtins, storages, dtypes."""
    if node.module in ("builtins", "__builtin__"):
        return node.name in _PLAIN_CLASSES
    is_storage = node.module in ("torch", "torch.cuda", "torch.storage") and node.name.endswith("Storage")
    return is_storage or (node.module == "torch" and "." not in node.name)
