"""Zip archives that burst, overlap and lead away."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from cases import case, garbage
from hand_pickles import PROTO, ops, pickled
from numpy_files import npy
from torch_files import FOUR, storage, torch_zip, view, zip_of


def patched(data: bytes, *changes: tuple[bytes, int, bytes]) -> bytes:
    """Return the bytes with something written at an offset from the last place a mark stands."""
    out = bytearray(data)
    for mark, offset, new in changes:
        at = out.rindex(mark) + offset
        out[at : at + len(new)] = new
    return bytes(out)


GOOD_ZIP = torch_zip(ops({"w": view()}), FOUR)
ENTRY, END = b"PK\x01\x02", b"PK\x05\x06"


@case(".pt", "a bomb; not unpacked", heavy=True)
def zip_bomb_in_the_pickle(path: Path, payload: str) -> Any:
    return zip_of({"x/data.pkl": b"\0" * (260 << 20)}, zipfile.ZIP_DEFLATED)


@case(".pt", "a bomb; not unpacked", heavy=True)
def zip_bomb_in_the_storages(path: Path, payload: str) -> Any:
    body = ops([view(held=storage(100 << 20, key=str(number)), shape=(100 << 20,)) for number in range(5)])
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = b"".join(packed.compress(b"\0" * (1 << 20)) for _ in range(400)) + packed.flush()
    return claimed_zip(
        {"x/data.pkl": (pickled_body(body), None)} | {f"x/data/{n}": (zeros, 400 << 20) for n in range(5)}
    )


def pickled_body(body: bytes) -> bytes:
    return PROTO + body + b"."


def claimed_zip(entries: dict[str, tuple[bytes, int | None]]) -> bytes:
    """Return a zip of entries that are compressed already, with the size each claims (None: stored)."""
    out, directory = b"", b""
    for name, (data, size) in entries.items():
        raw, method = name.encode(), 0 if size is None else 8
        fields = struct.pack("<HHHHHIII", 20, 0, method, 0, 0, zlib.crc32(data), len(data), size or len(data))
        directory += ENTRY + b"\x14\0" + fields + struct.pack("<HHHHHII", len(raw), 0, 0, 0, 0, 0, len(out)) + raw
        out += b"PK\x03\x04" + fields + struct.pack("<HH", len(raw), 0) + raw + data
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(out), 0)
    return out + directory + END + end


@case(".npz", "unpacks to more than 200 bytes; not unpacked")
def zip_bomb_that_claims_to_be_small(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packed.compress(npy("'<f4'", "(4,)", b"\0" * (20 << 20))) + packed.flush()
    return claimed_zip({"w.npy": (zeros, 200)})


@case(".npz", "a bomb; not unpacked", heavy=True)
def zip_bomb_of_arrays(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packed.compress(npy("'<f4'", f"({50 << 20},)", b"\0" * (200 << 20))) + packed.flush()
    return claimed_zip({f"a{number}.npy": (zeros, (200 << 20) + 128) for number in range(60)})


@case(".npz", "unpacks to .* bytes where .* are claimed|compressed data that is damaged")
def zip_entry_that_is_truncated(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packed.compress(npy("'<f4'", "(4000,)", garbage(16000))) + packed.flush()
    return claimed_zip({"large.npy": (data[:-500], 16000 + 128)})


@case(".npz", "does not match its checksum")
def zip_entry_with_a_wrong_checksum(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    array = npy("'<f4'", "(4,)", b"\0" * 16)
    return claimed_zip({"w.npy": (packed.compress(array) + packed.flush(), len(array))})


@case(".pt", "overlaps the one before it; not read")
def zip_of_overlapping_entries(path: Path, payload: str) -> Any:
    entries = {"x/data.pkl": pickled([]), **{f"x/data/{number}": b"1234" for number in range(10)}}
    data = bytearray(zip_of(entries))
    at = data.index(ENTRY)
    first = struct.unpack_from("<I", data, data.index(ENTRY, at + 4) + 42)[0]
    while (at := data.find(ENTRY, at + 4)) >= 0:
        struct.pack_into("<I", data, at + 42, first)
    return bytes(data)


@case(".pt", "claims a zip directory of .* bytes; not read|damaged or truncated")
def zip_with_a_huge_directory(path: Path, payload: str) -> None:
    with path.open("wb") as file:
        file.write(GOOD_ZIP[:100])
        file.truncate(3 << 30)
        file.seek(3 << 30)
        wide = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, (3 << 30) - 100, 100)
        file.write(b"PK\x06\x06" + wide + b"PK\x06\x07" + struct.pack("<IQI", 0, 3 << 30, 1))
        file.write(END + struct.pack("<HHHHIIH", 0, 0, 1, 1, 46, 100, 0))


@case(".pt", "holds two entries named", heavy=True)
def zip_of_many_entries_of_one_name(path: Path, payload: str) -> Any:
    entry = ENTRY + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 170_000
    count = struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    return b"PK\x03\x04" + directory + END + count


@case(".pt", "holds two entries named 'x/data.pkl'")
def zip_with_duplicate_names(path: Path, payload: str) -> Any:
    entries: dict[str, tuple[bytes, int | None]] = {"x/data.pkl": (pickled(1), None), "x/data.pkm": (pickled(2), None)}
    return claimed_zip(entries).replace(b".pkm", b".pkl")


@case(".pt", "is encrypted")
def zip_that_is_encrypted(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = -1
    while (at := data.find(ENTRY, at + 1)) >= 0:
        data[at + 8] |= 1
    return bytes(data)


@case(".pt", "is compressed in a way that is not supported")
def zip_of_an_unknown_method(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = -1
    while (at := data.find(ENTRY, at + 1)) >= 0:
        data[at + 10] = 99
    return bytes(data)


@case(".pt", "damaged or truncated")
def zip_truncated(path: Path, payload: str) -> Any:
    return GOOD_ZIP[: len(GOOD_ZIP) // 2]


@case(".pt", "damaged or truncated|does not begin where the directory says")
def zip_directory_elsewhere(path: Path, payload: str) -> Any:
    return patched(GOOD_ZIP, (END, 16, struct.pack("<I", 7)))


@case(".pt", "damaged or truncated|claims bytes|claims a zip directory")
def zip_directory_too_large(path: Path, payload: str) -> Any:
    return patched(GOOD_ZIP, (END, 12, struct.pack("<I", 0xFFFFFFF0)))


@case(".pt", "claims two sizes|claims bytes|overlaps")
def zip_entry_too_large(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = data.index(ENTRY)
    data[at + 20 : at + 28] = struct.pack("<II", 1 << 31, 1 << 31)
    return bytes(data)


@case(".pt", "does not begin where the directory says|overlaps|claims bytes|damaged or truncated")
def zip_entry_elsewhere(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = data.index(ENTRY)
    data[at + 42 : at + 46] = struct.pack("<I", 5)
    return bytes(data)


@case(".pt", "damaged or truncated|claims bytes|does not begin|claims two sizes|overlaps")
def zip64_entry_that_lies(path: Path, payload: str) -> Any:
    data = bytearray(zip_of({"x/data.pkl": pickled(1)}))
    at = data.index(ENTRY)
    extra = struct.pack("<HHQQQ", 1, 24, 1 << 63, 1 << 63, 1 << 63)
    data[at + 20 : at + 28] = b"\xff" * 8
    data[at + 42 : at + 46] = b"\xff" * 4
    data[at + 30 : at + 32] = struct.pack("<H", len(extra))
    name = at + 46 + len("x/data.pkl")
    data[name:name] = extra
    return patched(bytes(data), (END, 12, struct.pack("<I", 46 + 10 + len(extra))))


@case(".pt", "damaged or truncated|claims bytes|claims a zip directory")
def zip64_end_that_lies(path: Path, payload: str) -> Any:
    data = zip_of({"x/data.pkl": pickled(1)})
    end = data.rindex(END)
    wide = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, 1 << 60, 1 << 61)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1)
    return data[:end] + wide + locator + data[end:]


@case(".pt", "a zip archive without tensors; it holds '../../etc/passwd', '/etc/shadow'")
def zip_with_paths_that_lead_away(path: Path, payload: str) -> Any:
    return zip_of({"../../etc/passwd": b"x", "/etc/shadow": b"x"})


@case(".pt")
def zip_of_a_torch_file_in_a_folder_above(path: Path, payload: str) -> Any:
    return zip_of({"../../x/data.pkl": pickled({"w": view()}), "../../x/data/0": FOUR["0"]})


@case(".pt", "a zip archive without tensors; it holds nothing")
def zip_empty(path: Path, payload: str) -> Any:
    return zip_of({})


@case(".pt", "a zip archive that is damaged or truncated")
def zip_signature_alone(path: Path, payload: str) -> Any:
    return b"PK\x03\x04"
