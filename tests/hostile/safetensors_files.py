"""Safetensors with headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from cases import CASES, Case, case


def safetensors(head: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def shaped(axis: bytes) -> bytes:
    return safetensors(b'{"w":{"dtype":"F32","shape":[' + axis + b'],"data_offsets":[0,4]}}', b"1234")


TWICE = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
ESCAPES = "\x1b[2J\x07\n<script>"
NOT_WHOLE = "tensor 'w' has sizes that are not whole numbers of zero or more"
_SAFETENSORS: dict[str, tuple[str | None, bytes]] = {
    "header_longer_than_the_file": (
        "claims a header of 1000 bytes in a file of",
        safetensors({"w": entry()}, b"1234", 1000),
    ),
    "header_of_all_memory": (
        "claims a header of .* bytes in a file of",
        safetensors({"w": entry()}, b"1234", (1 << 64) - 1),
    ),
    "header_missing": ("too short to be a safetensors file", b"\x08\0\0\0"),
    "header_cut": ("claims a header of", safetensors({"w": entry()}, b"1234")[:30]),
    "header_not_json": ("has a safetensors header that is not valid JSON", safetensors(b"{hello", b"1234")),
    "header_not_utf8": ("has a safetensors header that is not valid JSON", safetensors(b'{"\xff\xfe": 1}', b"1234")),
    "header_is_a_list": ("claims a header of|not a JSON object|knows", safetensors(b"[1, 2, 3]", b"1234")),
    "header_deep": ("not valid JSON", safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    "header_of_many_values": (
        "has a safetensors header of more than .* values; not read",
        safetensors(b'{"a":[' + b"{}," * 2_000_000 + b"{}]}"),
    ),
    "header_of_large_numbers": ("not valid JSON|not whole numbers", shaped(b"9" * 5000)),
    "header_of_infinity": (NOT_WHOLE, shaped(b"Infinity")),
    "entry_is_a_list": ("the header entry of 'w' is not a tensor", safetensors({"w": [1, 2]})),
    "entry_is_text": ("the header entry of 'w' is not a tensor", safetensors({"w": "hello"})),
    "entry_without_dtype": ("the header entry of 'w' is not a tensor", safetensors({"w": {"shape": [1]}})),
    "entry_with_three_offsets": (
        "the header entry of 'w' is not a tensor",
        safetensors({"w": entry(offsets=(0, 2, 4))}, b"1234"),
    ),
    "dtype_unknown": ("tensor 'w' has the unknown dtype 'F7'", safetensors({"w": entry("F7")}, b"1234")),
    "dtype_is_a_list": ("tensor 'w' has the unknown dtype a list", safetensors({"w": entry(["F32"])}, b"1234")),
    "offsets_reversed": ("needs 4 bytes and claims -4", safetensors({"w": entry(offsets=(4, 0))}, b"1234")),
    "offsets_beyond": (
        "ends at byte 8 of 4: the file is truncated",
        safetensors({"w": entry(offsets=(4, 8))}, b"1234"),
    ),
    "offsets_negative": (NOT_WHOLE, safetensors({"w": entry(offsets=(-4, 0))}, b"1234")),
    "offsets_of_floats": (NOT_WHOLE, safetensors({"w": entry(offsets=(0.0, 4.0))}, b"1234")),
    "offsets_of_bools": (NOT_WHOLE, safetensors({"w": entry("U8", offsets=(False, True))}, b"1234")),
    "offsets_of_text": (NOT_WHOLE, safetensors({"w": entry(offsets="04")}, b"1234")),
    "offsets_huge": (NOT_WHOLE, safetensors({"w": entry(offsets=(1 << 70, (1 << 70) + 4))}, b"1234")),
    "offsets_overlap": (
        "tensor 'v' overlaps the one before it",
        safetensors({"w": entry(), "v": entry(offsets=(2, 6))}, b"123456"),
    ),
    "offsets_shared": (
        "overlaps the one before it",
        safetensors({f"w{number}": entry() for number in range(1000)}, b"1234"),
    ),
    "shape_larger": ("needs 8 bytes and claims 4", safetensors({"w": entry(shape=(2,))}, b"1234")),
    "shape_negative": (NOT_WHOLE, safetensors({"w": entry(shape=(-1,))}, b"1234")),
    "shape_of_floats": (NOT_WHOLE, safetensors({"w": entry(shape=(1.0,))}, b"1234")),
    "shape_of_bools": (NOT_WHOLE, safetensors({"w": entry(shape=(True,))}, b"1234")),
    "shape_overflows": (
        "needs .* bytes and claims 4",
        safetensors({"w": entry(shape=(1 << 62, 1 << 62, 4))}, b"1234"),
    ),
    "shape_overflows_to_zero": (
        "needs .* bytes and claims 0",
        safetensors({"w": entry(shape=(1 << 32, 1 << 32), offsets=(0, 0))}),
    ),
    "shape_of_many_axes": ("axes; more than .* are not read", safetensors({"w": entry(shape=(1,) * 100_000)}, b"1234")),
    "shape_of_many_large_axes": (
        "axes; more than .* are not read",
        safetensors({"w": entry(shape=((1 << 62),) * 60_000)}, b"1234"),
    ),
    "names_twice": (
        "holds two entries named 'w'",
        safetensors(TWICE, b"12"),
    ),
    "name_very_long": ("is not a tensor", safetensors({"n" * 3_000_000: 1})),
    "name_with_escapes": (r"entry of '\\x1b\[2J\\x07\\n<script>' is not a tensor", safetensors({ESCAPES: 1})),
    "metadata_is_a_list": ("the metadata of its header is not an object", safetensors({"__metadata__": [1]})),
    "metadata_of_numbers": (None, safetensors({"__metadata__": {"a": 1, "b": {"c": []}}, "w": entry()}, b"1234")),
    "packed_bits": ("does not fill whole bytes", safetensors({"w": entry("F4", (3,), (0, 2))}, b"12")),
}
for _name, (_trouble, _data) in _SAFETENSORS.items():
    CASES[f"safetensors_{_name}"] = Case(
        f"safetensors_{_name}", lambda path, payload, data=_data: data, ".safetensors", _trouble
    )


@case(".safetensors")
def names_with_escapes_and_script_tags(path: Path, payload: str) -> Any:
    names = [
        "\x1b[2J\x1b]0;owned\x07",
        "<script>alert(1)</script>",
        "a\r\nb",
        "\u202egnp.exe",
        "[red]x[/red]",
        "\ud800",
    ]
    head = {name: entry(offsets=(4 * at, 4 * at + 4)) for at, name in enumerate(names)}
    return safetensors({"__metadata__": {"\x1b[31m": "\x1b[2J"}, **head}, b"\0" * 4 * len(names))
