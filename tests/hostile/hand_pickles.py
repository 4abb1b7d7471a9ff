"""Writing pickles by hand, opcode by opcode."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

PROTO = b"\x80\x04"
DAMAGED = "its pickle is damaged or not a pickle at all"
STEPS = "its pickle takes more than .* steps; not read"


class Raw(bytes):
    """Be opcodes already."""


@dataclass(frozen=True)
class Name:
    module: str
    name: str


@dataclass(frozen=True)
class Call:
    function: Any
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Outside:
    identity: Any


def ops(value: Any) -> bytes:
    """Return the opcodes that make a value."""
    if isinstance(value, Raw):
        return bytes(value)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8b" + struct.pack("<I", len(data)) + data
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    return _container(value)


def _container(value: Any) -> bytes:
    if isinstance(value, tuple):
        return b"(" + b"".join(map(ops, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(ops, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(ops(key) + ops(each) for key, each in value.items()) + b"u"
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return ops(value.function) + ops(value.args) + b"R"
    assert isinstance(value, Outside)
    return ops(value.identity) + b"Q"


def pickled(value: Any) -> bytes:
    return PROTO + ops(value) + b"."


SYSTEM = Name("os", "system")
# an array of one byte: something that holds a tensor
DTYPE = Raw(ops(Call(Name("numpy", "dtype"), ("u1", False, True))) + ops((3, "|", None, None, None, -1, -1, 0)) + b"b")
ARRAY = Call(Name("numpy._core.numeric", "_frombuffer"), (b"\1", DTYPE, (1,), "C"))


def laughs(levels: int, bottom: Any, width: int = 2) -> bytes:
    """Return a tree of 2**levels leaves in a few bytes: every list holds the one below, again and again."""
    made = ops(bottom) + b"\x94"
    for level in range(levels):
        made += b"](" + (b"h" + bytes([level])) * width + b"e\x94"
    return PROTO + b"(" + made + b"1" + b"h" + bytes([levels]) + b"."
