"""128-bit XXH3 hashes of a tensor's bytes in NumPy, equal to those of the C extension.

Covers inputs of more than 240 bytes without a seed; shorter ones are padded with zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PART = 1 << 18  # bytes per hash; fixed by the format
SHORTEST_PART = 256  # bytes: a shorter part is padded with zeros; fixed by the format
_PARTS_AT_ONCE = 16  # a little more memory, much more speed

_STRIPE, _BLOCK = 64, 1024
_LOW_HALF = np.uint64(0xFFFFFFFF)
_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_START_LANES = np.array(
    [_PRIME32[2], _PRIME64[0], _PRIME64[1], _PRIME64[2], _PRIME64[3], _PRIME32[1], _PRIME64[4], _PRIME32[0]], np.uint64
)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _read_key(offset: int) -> NDArray[np.uint64]:
    key: NDArray[np.uint64] = np.frombuffer(_SECRET[offset : offset + _STRIPE], "<u8").astype(np.uint64)
    return key


_LAST_KEY = len(_SECRET) - _STRIPE
_STRIPE_KEYS = np.stack([_read_key(8 * stripe) for stripe in range(_BLOCK // _STRIPE)])
_SCRAMBLE_KEY, _FINAL_KEY = _read_key(_LAST_KEY), _read_key(_LAST_KEY - 7)


def hash_parts(data: NDArray[np.uint8]) -> bytes:
    """Return the hashes of all parts, concatenated."""
    hashes = []
    full_parts = data.size // PART
    for first in range(0, full_parts, _PARTS_AT_ONCE):
        last = min(first + _PARTS_AT_ONCE, full_parts)
        hashes.append(hash_equal_parts(data[first * PART : last * PART].reshape(last - first, PART)))
    tail = data[full_parts * PART :]
    if tail.size:
        hashes.append(hash_equal_parts(tail.reshape(1, -1)))
    return b"".join(hashes)


def hash_equal_parts(parts: NDArray[np.uint8]) -> bytes:
    """Return the hashes of the rows of a table, concatenated."""
    count, size = parts.shape
    if size < SHORTEST_PART:
        parts = np.pad(parts, ((0, 0), (0, SHORTEST_PART - size)))
        size = SHORTEST_PART
    blocks = (size - 1) // _BLOCK
    in_blocks = blocks * _BLOCK
    lanes = np.tile(_START_LANES, (count, 1))
    block_words = _read_words(parts[:, :in_blocks]).reshape(count, blocks, _BLOCK // _STRIPE, 8)
    block_sums = _sum_stripes(block_words, _STRIPE_KEYS)
    for block in range(blocks):
        lanes += block_sums[:, block]
        lanes = (lanes ^ (lanes >> np.uint64(47)) ^ _SCRAMBLE_KEY) * np.uint64(_PRIME32[0])
    stripes = (size - 1 - in_blocks) // _STRIPE
    stripe_words = _read_words(parts[:, in_blocks : in_blocks + stripes * _STRIPE]).reshape(count, stripes, 8)
    lanes += _sum_stripes(stripe_words, _STRIPE_KEYS[:stripes])
    lanes += _sum_stripes(_read_words(parts[:, size - _STRIPE :]).reshape(count, 1, 8), _FINAL_KEY)
    hashes = []
    for row in lanes.tolist():
        low = _merge_lanes(row, 11, size * _PRIME64[0])
        high = _merge_lanes(row, _LAST_KEY - 11, ~(size * _PRIME64[1]))
        hashes.append(low.to_bytes(8, "little") + high.to_bytes(8, "little"))
    return b"".join(hashes)


def _read_words(parts: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(parts).reshape(-1).view("<u8").astype(np.uint64, copy=False)


def _sum_stripes(stripes: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what stripes add to the lanes: each word to its neighbour's lane, the product of its halves to its own."""
    mixed = stripes ^ keys
    upper_half = mixed >> np.uint64(32)
    mixed &= _LOW_HALF
    mixed *= upper_half
    words = stripes.sum(axis=-2, dtype=np.uint64)
    neighbours = words.reshape(*words.shape[:-1], 4, 2)[..., ::-1].reshape(words.shape)
    return mixed.sum(axis=-2, dtype=np.uint64) + neighbours  # type: ignore[no-any-return]


def _merge_lanes(lanes: list[int], key_offset: int, total: int) -> int:
    all_ones = (1 << 64) - 1
    key = _read_key(key_offset).tolist()
    for lane in range(0, 8, 2):
        product = (lanes[lane] ^ key[lane]) * (lanes[lane + 1] ^ key[lane + 1])
        total += (product & all_ones) ^ (product >> 64)
    total &= all_ones
    total = (total ^ (total >> 37)) * 0x165667919E3779F9 & all_ones
    return total ^ (total >> 32)
