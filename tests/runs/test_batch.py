"""Fingerprints of batches: equal ones are equal, a reordered one is told from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nndiff.runs.batch import MOST_SAMPLES, fingerprint_batch
from nndiff.runs.run import BatchPart


def list_samples(part: BatchPart) -> list[bytes]:
    return [part.samples[start : start + 8] for start in range(0, len(part.samples), 8)]


def test_samples_keep_their_fingerprint_in_another_order() -> None:
    x, order = torch.randn(6, 3, 2), torch.tensor([3, 1, 0, 5, 4, 2])
    (part,), (turned,) = fingerprint_batch(x), fingerprint_batch(x[order])
    assert (part.path, part.shape, part.dtype) == ("", (6, 3, 2), "float32")
    assert part.digest != turned.digest
    samples = list_samples(part)
    assert len(set(samples)) == 6
    assert [samples[place] for place in order] == list_samples(turned)
    changed = x.clone()
    changed[2, 0, 0] = torch.nextafter(changed[2, 0, 0], torch.tensor(9.0))
    (other,) = fingerprint_batch(changed)
    assert [one == two for one, two in zip(samples, list_samples(other), strict=True)].count(False) == 1
    assert other.digest != part.digest


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t().contiguous().t(),  # the same numbers, laid out differently in memory
        lambda x: x.clone().requires_grad_(),
        lambda x: x.numpy(),
    ],
)
def test_layout_and_owner_do_not_matter(make: Any) -> None:
    x = torch.randn(4, 5)
    assert fingerprint_batch(make(x)) == fingerprint_batch(x)


def test_dtype_and_shape_matter() -> None:
    x = torch.zeros(4, 4)
    digests = {fingerprint_batch(value)[0].digest for value in (x, x.double(), x.int(), x.reshape(2, 8), x[:2])}
    assert len(digests) == 5


class Encoding(dict):  # type: ignore[type-arg]
    """Stand for transformers' BatchEncoding, a mapping with attributes."""


def test_nested_batches_and_plain_values() -> None:
    data = (torch.ones(2, 3), Encoding(ids=torch.ones(2), names=["cat", "dog"], scale=0.5, none=None), [1, 2, 3])
    parts = {part.path: part for part in fingerprint_batch(data)}
    assert list(parts) == ["0", "1.ids", "1.names", "1.scale", "1.none", "2"]
    assert (parts["1.names"].shape, parts["1.names"].dtype) == ((2,), "str")
    assert len(parts["1.names"].samples) == 16
    assert len(parts["2"].samples) == 24
    again = {part.path: part for part in fingerprint_batch((data[0], {**data[1], "names": ["dog", "cat"]}, [1, 2, 3]))}
    assert list_samples(again["1.names"]) == list_samples(parts["1.names"])[::-1]
    assert [path for path in parts if parts[path] != again[path]] == ["1.names"]


def test_values_of_other_classes_are_other_values() -> None:
    digests = {fingerprint_batch({"a": value})[0].digest for value in (1, 1.0, True, "1", b"1", None)}
    assert len(digests) == 6


def test_many_rows_are_no_samples() -> None:
    x = torch.zeros(MOST_SAMPLES + 1, 1)
    (part,), (fits,) = fingerprint_batch(x), fingerprint_batch(x[:-1])
    assert part.samples == b""
    assert len(fits.samples) == 8 * MOST_SAMPLES
    x[70] = 1
    assert fingerprint_batch(x)[0].digest != part.digest


def test_empty_and_scalar_tensors() -> None:
    parts = fingerprint_batch([torch.tensor(3), torch.empty(0, 4), torch.empty(3, 0), np.float64(2.0), object()])
    assert [part.shape for part in parts] == [(), (0, 4), (3, 0), (), (0,)]
    assert all(part.samples == b"" for part in parts)
    assert fingerprint_batch([]) != fingerprint_batch(None)
