"""Fingerprints of a batch: of each tensor in it, as a whole and of every sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nndiff.recording.capture.tensors import is_tensor, raw_tensor
from nndiff.recording.format.arrays import is_array, raw_array
from nndiff.recording.format.digests import RawTensor
from nndiff.recording.format.values import Placeholder, flatten
from nndiff.runs.run import BatchPart
from nndiff.stats.sketches import hash_rows

MOST_SAMPLES = 1 << 16  # more rows than this are edges or points, not samples: only the whole has a fingerprint
_PLAIN = (str, bytes, bool, int, float)


def fingerprint_batch(data: Any) -> tuple[BatchPart, ...]:
    """Return the fingerprint of every tensor, list of plain values and other value in a batch."""
    return tuple(_fingerprint_leaves(data))


def _fingerprint_leaves(data: Any) -> Iterator[BatchPart]:
    for path, leaf in flatten(data, _is_part, objects=True):
        if is_tensor(leaf):
            with torch.no_grad():
                yield _fingerprint_elements(path, raw_tensor(leaf))
        elif is_array(leaf) and np.asarray(leaf).dtype.kind in "biufc":
            yield _fingerprint_elements(path, raw_array(leaf))
        elif isinstance(leaf, Placeholder):
            yield _fingerprint_values(path, [], leaf.type)  # something was here, of which only the class is known
        elif isinstance(leaf, (list, tuple)):
            yield _fingerprint_values(path, leaf, type(leaf[0]).__name__)
        else:
            digest = _digest(type(leaf).__name__.encode(), _encode_value(leaf))
            yield BatchPart(path, (), type(leaf).__name__, digest)


def _is_part(value: Any) -> bool:
    """Return True for what has one fingerprint: a tensor, an array, a list of texts or numbers."""
    if is_tensor(value) or is_array(value):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, _PLAIN) for item in value)


def _fingerprint_elements(path: str, raw: RawTensor) -> BatchPart:
    """Return the fingerprint of an array; the digest of the whole is made from the hashes of its rows, in order."""
    has_samples = bool(raw.shape) and 0 < raw.shape[0] <= MOST_SAMPLES and raw.flat.size > 0
    hashes = b""
    if raw.flat.size:
        hashes = hash_rows(raw.bytes, raw.shape[0] if has_samples else 1).astype("<u8").tobytes()
    digest = _digest(f"{raw.dtype.name} {list(raw.shape)}".encode(), hashes)
    return BatchPart(path, raw.shape, raw.dtype.name, digest, hashes if has_samples else b"")


def _fingerprint_values(path: str, values: list[Any] | tuple[Any, ...], type_name: str) -> BatchPart:
    samples = b"".join(hashlib.blake2b(_encode_value(value), digest_size=8).digest() for value in values)
    digest = _digest(f"{type_name} [{len(values)}]".encode(), samples)
    return BatchPart(path, (len(values),), type_name, digest, samples if len(values) <= MOST_SAMPLES else b"")


def _encode_value(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else repr(value).encode()


def _digest(header: bytes, content: bytes) -> str:
    return hashlib.blake2b(header + b"\0" + content, digest_size=16).hexdigest()
