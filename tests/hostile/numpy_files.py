"""NumPy files with headers that lie."""

from __future__ import annotations

import struct

from cases import CASES, Case


def npy(descr: str, shape: str, body: bytes, version: int = 1, fortran: str = "False", minor: int = 0) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, minor]) + size + text + body


HEADER = "the header of the .npy file is damaged"
SHAPE = "the header of the .npy file gives an impossible shape or order"
_NPY: dict[str, tuple[str | None, bytes]] = {
    "shape_larger": ("array 'npy_shape_larger' needs 400 bytes, the file holds 4", npy("'<f4'", "(100,)", b"1234")),
    "shape_of_all_memory": ("needs .* bytes, the file holds 4", npy("'<f4'", "(1152921504606846976,)", b"1234")),
    "shape_overflows": ("needs .* bytes, the file holds 4", npy("'<f4'", "(4611686018427387903, 4)", b"1234")),
    "shape_negative": (SHAPE, npy("'<f4'", "(-1,)", b"1234")),
    "shape_of_floats": (SHAPE, npy("'<f4'", "(1.0,)", b"1234")),
    "shape_of_many_axes": (SHAPE, npy("'<f4'", "(" + "1," * 1000 + ")", b"1234")),
    "shape_is_a_number": (SHAPE, npy("'<f4'", "4", b"1234")),
    "shape_is_code": (HEADER, npy("'<f4'", "(exit(),)", b"1234")),
    "order_is_text": (SHAPE, npy("'<f4'", "(1,)", b"1234", fortran="'yes'")),
    "dtype_none": ("not numbers", npy("None", "(1,)", b"12345678")),
    "dtype_records": ("not numbers", npy("[('a', '<f4'), ('b', 'O')]", "(1,)", b"1234")),
    "dtype_of_subarrays": ("not numbers", npy("'(1000000000,)f4'", "(1,)", b"1234")),
    "dtype_of_many_fields": ("not numbers", npy("'f4," + "f4," * 2000 + "'", "(1,)", b"1234")),
    "dtype_odd_size": ("not numbers", npy("'<f3'", "(1,)", b"1234")),
    "dtype_text": ("not numbers", npy("'<U1000'", "(1,)", b"1234")),
    "dtype_with_escapes": (r"'\\x1b\[2J'", npy(r"'\x1b[2J'", "(1,)", b"1234")),
    "escape_unknown": ("not numbers", npy(r"'\d\q'", "(1,)", b"1234")),
    "header_longer_than_the_file": ("claims a .npy header of", npy("'<f4'", "(1,)", b"")[:40]),
    "header_huge": ("claims a .npy header of", npy("'<f4'", "(1,)" + " " * 200_000, b"1234", 2)),
    "header_deep": (HEADER, npy("(" * 4000 + ")" * 4000, "(1,)", b"1234")),
    "header_of_signs": (HEADER, npy("-" * 9000 + "1", "(1,)", b"1234")),
    "header_of_sums": (HEADER, npy("1" + "+1" * 4000, "(1,)", b"1234")),
    "header_of_attributes": (HEADER, npy("a" + ".a" * 4000, "(1,)", b"1234")),
    "header_of_nulls": (HEADER, b"\x93NUMPY\x01\x00\x20\x00" + b"\0" * 32),
    "header_is_a_list": (HEADER, b"\x93NUMPY\x01\x00\x09\x00" + b"[1, 2, 3]" + b"12345"),
    "version_unknown": (
        "version 9.9; nndiff reads versions 1.0, 2.0 and 3.0",
        npy("'<f4'", "(1,)", b"1234", 9, minor=9),
    ),
    "version_of_an_unknown_minor": ("version 1.1; nndiff reads", npy("'<f4'", "(1,)", b"1234", minor=1)),
    "version_zero": ("version 0.0; nndiff reads", npy("'<f4'", "(1,)", b"1234", 0)),
    "cut": ("not a .npy file, or a truncated one", b"\x93NUMPY\x01"),
}
for _name, (_trouble, _data) in _NPY.items():
    CASES[f"npy_{_name}"] = Case(f"npy_{_name}", lambda path, payload, data=_data: data, ".npy", _trouble)
