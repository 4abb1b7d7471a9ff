"""The fused statistics kernel, in C (stats/native/)."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from nndiff.files import OpenFile, RegularFile
from nndiff.metrics import Metrics
from nndiff.stats.interface import Job

Buffer: TypeAlias = Any  # anything with bytes in a row; typing has no name for it before Python 3.12

class Batch:
    """Hold pairs that are measured in steps."""

    def __new__(cls, packed: Buffer, threads: int, fed: bool, /) -> Batch: ...
    def step(self, elements: int, /) -> int | None:
        """Measure on; return how many elements were new, or None when all is done."""

    def begin(self, after: Batch | None, /) -> bool:
        """Measure all in a thread of its own, when `after` is done; not where there is no thread to be had."""

    def wait(self) -> int:
        """Wait until all that was begun is measured; return how many elements that were."""

    def pending(self, elements: int, /) -> tuple[int, int] | None:
        """Return the elements that the next step of one fed pair needs."""

    def feed(self, elements: int, reference: Buffer | None, candidate: Buffer | None, /) -> int:
        """Measure what is pending, from these buffers."""

    def results(self, kind: type[Metrics], shapes: list[tuple[int, ...]], /) -> list[Metrics | tuple[int, int] | None]:
        """Return the metrics of each pair; None where squares overflowed, (errno, side) where reading failed."""

def measure(
    array: Buffer, kind: int, threads: int, /
) -> tuple[bytes, tuple[int, int, float, float, float, float, float] | None]:
    """Return the hashes of the parts of one tensor and its moments: finite, other, mean to largest."""

def hashes(address: int, size: int, threads: int, /) -> bytes:
    """Return the hashes of the parts of bytes in memory."""

def sketch(tensors: Buffer, seed: int, threads: int, hashes: Buffer, moments: Buffer, rows: Buffer, /) -> None:
    """Fill the hashes, moments and rows of tensors; each tensor is address, elements, type, width, start of its row."""

def hash_rows(array: Buffer, rows: int, threads: int, /) -> bytes:
    """Return a hash of eight bytes for each row of some bytes."""

def content(array: Buffer, kind: int, rounding: int, at: int, threads: int, /) -> tuple[int, int]:
    """Return the sums over the hash of every value, and over hash times place; `at` elements come before these."""

def same(address: int, other: int, size: int, /) -> bool:
    """Tell whether the bytes at two places in memory are the same."""

def places(
    reference: Buffer,
    reference_type: int,
    candidate: Buffer,
    candidate_type: int,
    channels: int,
    inner: int,
    low: float,
    high: float,
    channel_sums: Buffer,
    token_sums: Buffer,
    /,
) -> int:
    """Add squared errors to both sums; return how many candidates are at low or high with the reference beyond."""

def ranks(
    reference: Buffer, reference_type: int, candidate: Buffer, candidate_type: int, brackets: Buffer, out: Buffer, /
) -> tuple[int, int, int, int, int, int]:
    """Return how many distances are finite, inside a bracket (written to `out`), and below each of four brackets."""

def address(array: Buffer, size: int, /) -> int:
    """Return where its bytes are, or -1 where they are not so many in a row."""

def know(in_memory: type, in_file: type, codes: dict[str, int], /) -> None:
    """Set the classes of data that gather() takes, and the number of each element type."""

def gather(
    jobs: Iterator[Job],
    packed: bytearray,
    taken: list[Job],
    holds: list[object],
    files: dict[RegularFile, OpenFile],
    pairs: int,
    elements: int,
    /,
) -> tuple[Job | None, int]:
    """Take jobs until there are so many pairs or elements; return one that is left to Python, and what room is left."""

def levels() -> tuple[str, ...]:
    """Return the vector widths this machine has, narrowest first."""

def level() -> str:
    """Return the vector width in use."""

def use(level: str, /) -> None:
    """Take another vector width for the batches made from now on."""

def set_float8(number: int, values: Buffer, /) -> None:
    """Set the 256 floats of a float8 kind."""
