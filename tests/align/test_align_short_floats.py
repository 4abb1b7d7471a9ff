"""Calls in short floats: which of them belong together, by a few elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nndiff.align.calls import Call
from nndiff.align.short_floats import group_by_elements, group_by_likely_statistics, is_short
from nndiff.dtypes import DTYPES
from nndiff.errors import DamagedError
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.tensors import LateData, MemoryData, NoData, Site, Slot, Stats, TensorRef, Trace

RANDOM = np.random.default_rng(0)
SIZE = 4096


def stored(numbers, dtype):
    """Return numbers as the type holds them."""
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(DTYPES[dtype].storage)


def call(name, numbers, dtype="bfloat16", keep="full", order=0, digest=None):
    raw = stored(numbers, dtype)
    data = MemoryData(raw) if keep == "full" else NoData("not kept")
    numbers = np.asarray(numbers, np.float64)
    largest, spread = np.abs(numbers).max(), float(np.linalg.norm(numbers))
    stats = Stats(numbers.size, 0, numbers.mean(), numbers.std(), numbers.min(), numbers.max(), largest, spread)
    trace = Trace(stats=stats, digest=digest or name)
    if keep == "sketch":
        places = sketch_positions(raw.size)
        trace = replace(trace, sketch=TensorRef(name, (places.size,), DTYPES[dtype], MemoryData(raw[places])))
    tensor = TensorRef(f"{name}:output", raw.shape, DTYPES[dtype], data, None, Site(name, Slot.OUTPUT), trace)
    return Call(name, 0, "Linear", order, (tensor,), True)


def values(seed=0, size=SIZE):
    return np.random.default_rng(seed).standard_normal(size)


def near(numbers, by=2e-3, seed=9):
    return numbers * (1 + by * np.random.default_rng(seed).standard_normal(numbers.shape))


def names(groups):
    return [([one.module for one in ours], [other.module for other in theirs]) for ours, theirs in groups]


@pytest.mark.parametrize("size", [100, SIZE])
@pytest.mark.parametrize(
    ("dtypes", "keeps"),
    [
        (("bfloat16", "bfloat16"), ("full", "full")),
        (("float16", "bfloat16"), ("full", "sketch")),
        (("float32", "bfloat16"), ("sketch", "sketch")),
    ],
    ids=str,
)
def test_each_finds_its_own_whatever_was_kept(dtypes, size, keeps):
    left = [call(f"l{k}", values(k, size), dtypes[0], keeps[0]) for k in range(5)]
    right = [call(f"r{k}", near(values(k, size)), dtypes[1], keeps[1]) for k in (3, 1, 4, 0, 2)]
    assert names(group_by_elements(left, right)) == [([f"l{k}"], [f"r{k}"]) for k in range(5)]


@pytest.mark.parametrize(
    ("dtypes", "near_by", "far_by"),
    [
        (("bfloat16", "bfloat16"), 0.02, 0.05),
        (("float16", "float16"), 0.002, 0.006),
        (("float32", "bfloat16"), 0.02, 0.05),  # the shorter type decides
        (("float32", "float32"), 6e-5, 2e-4),
    ],
    ids=str,
)
def test_near_is_what_rounding_comes_to_in_the_shorter_type(dtypes, near_by, far_by):
    for by, wanted in ((near_by, [(["l"], ["r"])]), (far_by, [])):
        found = group_by_elements([call("l", values(), dtypes[0])], [call("r", near(values(), by), dtypes[1])])
        assert names(found) == wanted, by


@pytest.mark.parametrize(("farther", "wanted"), [(1, []), (4, [(["l"], ["r"])])])
def test_the_next_must_be_twice_as_far(farther, wanted):
    left = [call("l", values(), "float16")]
    right = [
        call("r", near(values(), 1e-3, seed=1), "float16"),
        call("next", near(values(), farther * 1e-3, seed=2), "float16"),
    ]
    assert names(group_by_elements(left, right)) == wanted
    assert names(group_by_elements(right, left)) == [(ours, theirs) for theirs, ours in wanted]


def test_of_many_elements_a_few_dozen_are_read():
    read = []

    class Counted(MemoryData):
        def read(self, start, stop):
            read.append(stop - start)
            return super().read(start, stop)

    one = call("l", values(size=1 << 16))
    tensor = replace(one.outputs[0], data=Counted(one.outputs[0].data.array))
    assert names(group_by_elements([replace(one, outputs=(tensor,))], [call("r", near(values(size=1 << 16)))]))
    assert sum(read) == 64


def test_what_is_near_belongs_to_the_one_it_is_nearest_to():
    left = [call("l", values()), call("next", near(values(), 2e-2))]
    assert names(group_by_elements(left, [call("r", near(values()))])) == [(["l"], ["r"])]


def test_copies_go_together():
    left = [call("l", values(), digest="a"), call("copy", values(), digest="a", order=1)]
    assert names(group_by_elements(left, [call("r", near(values()))])) == [(["l", "copy"], ["r"])]


def test_others_and_zeros_are_not_near():
    assert not list(group_by_elements([call("l", values(0))], [call("r", values(1))]))
    assert not list(group_by_elements([call("l", np.zeros(SIZE))], [call("r", np.zeros(SIZE))]))
    assert not list(group_by_elements([], [call("r", values())]))


def test_statistics_are_asked_only_where_elements_were_not_kept():
    kept = [call("l", values())], [call("r", near(values()))]
    assert not list(group_by_likely_statistics(*kept))
    gone = [call("l", values(), keep="stats")], [call("r", near(values()))]
    assert names(group_by_likely_statistics(*gone)) == [(["l"], ["r"])]
    assert not list(group_by_elements(*gone))
    several = [*gone[1], call("other", near(values(), seed=2))]
    assert not list(group_by_likely_statistics(gone[0], several))


def test_damage_is_not_told_before_it_is_compared():
    def damaged():
        raise DamagedError("x.nnrec", "it is damaged")

    one = call("l", values())
    tensor = one.outputs[0]
    broken = TensorRef(tensor.name, tensor.shape, tensor.dtype, LateData(damaged), None, tensor.site, tensor.trace)
    assert not list(group_by_elements([Call("l", 0, "Linear", 0, (broken,), True)], [call("r", near(values()))]))


def test_only_short_floats_are_short():
    assert is_short(call("a", values(), "bfloat16"))
    assert is_short(call("a", values(), "float16"))
    assert not is_short(call("a", values(), "float32"))
