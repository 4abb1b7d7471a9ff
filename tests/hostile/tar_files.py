"""Tar archives, plain and packed, that claim more than they hold."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

from cases import case, garbage


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def header(name: bytes = b"a.ckpt", size: bytes = b"00000000001", kind: bytes = b"0") -> bytes:
    raw = bytearray(512)
    raw[: len(name)] = name
    raw[124 : 124 + len(size)] = size
    raw[156:157] = kind
    raw[257:265] = b"ustar\x0000"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


@case(".nemo", "unpacks to more than .* bytes; not unpacked", heavy=True)
def tar_gzip_bomb(path: Path, payload: str) -> None:
    with gzip.open(path, "wb", 1) as file:
        file.write(header(size=b"37777777777"))
        for _ in range(260):
            file.write(b"\0" * (1 << 20))


@case(".nemo", "compressed data that is damaged or truncated|truncated")
def tar_gzip_truncated(path: Path, payload: str) -> Any:
    return tar_of({"model_weights.ckpt": garbage(5000)}, "w:gz")[:2000]


@case(".nemo", "compressed data that is damaged or truncated")
def tar_gzip_of_garbage(path: Path, payload: str) -> Any:
    return b"\x1f\x8b\x08\x00" + garbage(100)


@case(".nemo", "not a tar archive")
def tar_gzip_of_nothing(path: Path, payload: str) -> Any:
    return gzip.compress(b"")


@case(".nemo", "a tar archive that is damaged or truncated|not a tar archive")
def tar_gzip_of_text(path: Path, payload: str) -> Any:
    return gzip.compress(b"hello, world\n" * 100)


@case(".nemo", "a tar archive whose member ends at byte .*: truncated")
def tar_size_beyond(path: Path, payload: str) -> Any:
    return header(size=b"77777777777") + b"\0" * 1024


@case(".nemo", "a tar archive whose member ends at byte")
def tar_size_binary_huge(path: Path, payload: str) -> Any:
    return header(size=b"\x80" + b"\x7f" * 11) + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_size_negative(path: Path, payload: str) -> Any:
    return header(size=b"\xff" * 12) + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_size_of_text(path: Path, payload: str) -> Any:
    return header(size=b"hello") + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_checksum_wrong(path: Path, payload: str) -> Any:
    return header().replace(b"a.ckpt", b"b.ckpt") + b"\0" * 1024


@case(".nemo", "has a tar header of .* bytes; not read|ends at byte")
def tar_pax_huge(path: Path, payload: str) -> Any:
    return header(b"p", b"%011o" % (2 << 20), b"x") + b"1" * (2 << 20) + header() + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_pax_of_digits(path: Path, payload: str) -> Any:
    """The standard library takes time that grows with the square of these digits."""
    return (header(b"p", b"%011o" % 65024, b"x") + b"1" * 65024) * 20 + header() + b"\0" * 1024


@case(".nemo", "damaged or truncated|without weights")
def tar_pax_that_lies(path: Path, payload: str) -> Any:
    text = b"999999 path=/etc/passwd\n"
    return header(b"p", b"%011o" % len(text), b"x") + text.ljust(512, b"\0") + header() + b"\0" * 1024


@case(".nemo", "has a tar header of .* bytes; not read")
def tar_long_name_huge(path: Path, payload: str) -> Any:
    return header(b"n", b"%011o" % (2 << 20), b"L") + b"n" * (2 << 20) + header() + b"\0" * 1024


@case(".nemo", "holds more than 100000 members; not read", heavy=True)
def tar_of_many_members(path: Path, payload: str) -> Any:
    return gzip.compress(header(b"d", b"0", b"5") * 150_000, 1)


@case(".nemo", "holds two members named 'a.ckpt'")
def tar_with_duplicate_names(path: Path, payload: str) -> Any:
    return (header() + b"x".ljust(512, b"\0")) * 2 + b"\0" * 1024


@case(".nemo", "a tar archive without weights; it holds '../../etc/passwd', '/etc/shadow'")
def tar_with_paths_that_lead_away(path: Path, payload: str) -> Any:
    return tar_of({"../../etc/passwd": b"x", "/etc/shadow": b"x"})


@case(".nemo", "a tar archive without weights; it holds nothing")
def tar_of_links_devices_and_sparse_files(path: Path, payload: str) -> Any:
    kinds = b"123456SDVM"
    links = b"".join(header(b"model_weights.ckpt", b"0", kinds[at : at + 1]) for at in range(len(kinds)))
    return links + b"\0" * 1024


@case(".nemo", "a tar archive without weights")
def tar_with_a_sparse_pax_member(path: Path, payload: str) -> Any:
    records = b"".join(
        b"%d %s\n" % (len(each) + 4, each) for each in (b"GNU.sparse.major=1", b"GNU.sparse.name=a.ckpt")
    )
    return header(b"p", b"%011o" % len(records), b"x") + records.ljust(512, b"\0") + header() + b"x".ljust(1536, b"\0")


@case(".nemo", "its pickle is damaged|a damaged torch file|truncated or damaged")
def tar_with_weights_of_garbage(path: Path, payload: str) -> Any:
    return tar_of({"model_weights.ckpt": garbage(1000)})
