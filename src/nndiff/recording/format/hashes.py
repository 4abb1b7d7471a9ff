"""The hash of each part of a tensor's bytes: XXH3 of 128 bits, in NumPy, as the extension has it in C.

Only what its specification says of more than 240 bytes, without a seed: shorter parts are filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PART = 1 << 18  # bytes: what one hash is of; part of the format
LEAST = 256  # bytes: a shorter part is filled up with zeros; part of the format
_TOGETHER = 16  # parts that go through NumPy at once: some memory for much speed

_STRIPE, _BLOCK = 64, 1024
_LOW = np.uint64(0xFFFFFFFF)
_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_START = np.array(
    [_PRIME32[2], _PRIME64[0], _PRIME64[1], _PRIME64[2], _PRIME64[3], _PRIME32[1], _PRIME64[4], _PRIME32[0]], np.uint64
)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _key(place: int) -> NDArray[np.uint64]:
    key: NDArray[np.uint64] = np.frombuffer(_SECRET[place : place + _STRIPE], "<u8").astype(np.uint64)
    return key


_LAST = len(_SECRET) - _STRIPE
_KEYS = np.stack([_key(8 * stripe) for stripe in range(_BLOCK // _STRIPE)])
_SCRAMBLE, _FINAL = _key(_LAST), _key(_LAST - 7)


def part_hashes(data: NDArray[np.uint8]) -> bytes:
    """Return the hashes of all parts, in a row."""
    return b"".join(_of_parts(data))


def _of_parts(data: NDArray[np.uint8]) -> Iterator[bytes]:
    whole = data.size // PART
    for first in range(0, whole, _TOGETHER):
        last = min(first + _TOGETHER, whole)
        yield _hash(data[first * PART : last * PART].reshape(last - first, PART))
    rest = data[whole * PART :]
    if rest.size:
        filled = np.zeros(max(LEAST, rest.size), np.uint8)
        filled[: rest.size] = rest
        yield _hash(filled.reshape(1, -1))


def _hash(parts: NDArray[np.uint8]) -> bytes:
    """Return the hashes of parts of one length."""
    count, size = parts.shape
    blocks = (size - 1) // _BLOCK
    done = blocks * _BLOCK
    lanes = np.tile(_START, (count, 1))
    sums = _taken(_words(parts[:, :done]).reshape(count, blocks, _BLOCK // _STRIPE, 8), _KEYS)
    for block in range(blocks):
        lanes += sums[:, block]
        lanes = (lanes ^ (lanes >> np.uint64(47)) ^ _SCRAMBLE) * np.uint64(_PRIME32[0])
    stripes = (size - 1 - done) // _STRIPE
    lanes += _taken(_words(parts[:, done : done + stripes * _STRIPE]).reshape(count, stripes, 8), _KEYS[:stripes])
    lanes += _taken(_words(parts[:, size - _STRIPE :]).reshape(count, 1, 8), _FINAL)
    return b"".join(_ended([int(lane) for lane in row], size) for row in lanes)


def _words(parts: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(parts).reshape(-1).view("<u8").astype(np.uint64, copy=False)


def _taken(stripes: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what stripes add to the lanes: their words to the neighbour's, the product of halves to their own."""
    mixed = stripes ^ keys
    upper = mixed >> np.uint64(32)
    mixed &= _LOW
    mixed *= upper
    words = stripes.sum(axis=-2, dtype=np.uint64)
    neighbours = words.reshape(*words.shape[:-1], 4, 2)[..., ::-1].reshape(words.shape)
    return mixed.sum(axis=-2, dtype=np.uint64) + neighbours  # type: ignore[no-any-return]


def _ended(lanes: list[int], size: int) -> bytes:
    low = _merged(lanes, 11, size * _PRIME64[0])
    high = _merged(lanes, _LAST - 11, ~(size * _PRIME64[1]))
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _merged(lanes: list[int], place: int, total: int) -> int:
    all_ones = (1 << 64) - 1
    key = [int(word) for word in _key(place)]
    for one in range(0, 8, 2):
        product = (lanes[one] ^ key[one]) * (lanes[one + 1] ^ key[one + 1])
        total += (product & all_ones) ^ (product >> 64)
    total &= all_ones
    total = (total ^ (total >> 37)) * 0x165667919E3779F9 & all_ones
    return total ^ (total >> 32)
