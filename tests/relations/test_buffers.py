"""Buffers of files: what is computed is told from what is trained, and rotary frequencies tell their base."""

from __future__ import annotations

import pytest
import torch
from stored_tensors import draw, store

from nndiff.relations import buffers
from nndiff.relations.buffers import Frequencies, compare_frequencies, is_derived, read_frequencies


def make_frequencies(theta=10000.0, size=128, factor=1.0):
    return 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)) / factor


def make_sines(positions=512, size=64, interleaved=False):
    angles = torch.arange(positions).float()[:, None] * make_frequencies(size=size)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], -1).reshape(positions, size)
    return torch.cat([angles.sin(), angles.cos()], -1)


DERIVED = {
    "positions": torch.arange(512)[None],
    "positions from two": torch.arange(2, 66)[None],
    "float positions": torch.arange(64.0),
    "token types": torch.zeros(1, 512, dtype=torch.int64),
    "causal mask": torch.tril(torch.ones(32, 32, dtype=torch.bool))[None, None],
    "causal bytes": torch.tril(torch.ones(32, 32, dtype=torch.uint8)),
    "additive mask": torch.triu(torch.full((16, 16), -torch.inf), 1),
    "additive finite mask": torch.triu(torch.full((16, 16), -1e9), 1),
    "masked value": torch.tensor(-1e4),
    "frequencies": make_frequencies(),
    "frequencies in bfloat16": make_frequencies().bfloat16(),
    "scaled frequencies": make_frequencies(factor=4),
    "slopes": 2.0 ** -(torch.arange(1, 17) / 2),
    "sine table": make_sines(),
    "interleaved sine table": make_sines(interleaved=True)[None],
    "cosines": make_sines()[:, 32:],
    "counter": torch.tensor(0),
}
TRAINED = {
    "weight": draw(64, 64),
    "small weight": draw(8, 8, size=1e-6),
    "ones": torch.ones(64),
    "zeros": torch.zeros(64),
    "zero matrix": torch.zeros(16, 16),
    "matrix of ones": torch.ones(16, 16),
    "identity": torch.eye(16),
    "two numbers": torch.tensor([0.5, 0.25]),
    "three numbers": torch.tensor([3.0, 2.0, 1.0]),
    "scalar": torch.tensor(1.0),
    "counted tokens": torch.tensor(12345),
    "quantised": torch.randint(-127, 127, (16, 16), dtype=torch.int8, generator=torch.Generator().manual_seed(0)),
    "packed zeros are not, ones are": torch.ones(64, dtype=torch.int32),
    "frequencies with one element off": make_frequencies() * torch.tensor([1.0] * 40 + [1.01] + [1.0] * 23),
    "sine table with one element off": make_sines() + 0.02 * torch.nn.functional.one_hot(torch.tensor(7), 64),
    "mask with one hole": torch.tril(torch.ones(32, 32))
    * (1 - torch.nn.functional.one_hot(torch.arange(32) * 0 + 3, 32)),
    "falling numbers": torch.sort(torch.rand(64, generator=torch.Generator().manual_seed(0)), descending=True).values,
    "not finite": torch.full((8, 8), torch.nan),
    "positions with one off": torch.cat([torch.arange(60), torch.tensor([3])]),
    "smooth rows": torch.linspace(0, 1, 64)[:, None] * draw(1, 16),
}


@pytest.mark.parametrize("case", DERIVED)
def test_what_is_computed_is_derived(case):
    assert is_derived(store(DERIVED[case]))


@pytest.mark.parametrize("case", TRAINED)
def test_what_is_trained_is_not(case):
    assert not is_derived(store(TRAINED[case]))


def test_a_counter_of_batches_is_derived_by_its_name():
    assert is_derived(store(torch.tensor(12345), "bn.num_batches_tracked"))
    assert not is_derived(store(torch.tensor(12345), "zero_point"))


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6, 8_000_000.0, 100.0])
@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_base_is_read_off(theta, factor, size, dtype):
    row = make_frequencies(theta, size, factor).to(dtype)
    if dtype is torch.float16 and row[-1] < 1e-4:
        return  # too small for that type
    frequencies = read_frequencies(store(row))
    assert frequencies.factor == factor
    # 8 digits leave some percent of it open
    assert frequencies.theta == pytest.approx(
        theta, rel=0.03 if dtype is torch.bfloat16 else 1e-9 if dtype is torch.float32 else 5e-3
    )


def test_bases_are_compared():
    one, other = make_frequencies(1e4), make_frequencies(5e5)
    change = compare_frequencies(store(one), store(other))
    assert (change.reference, change.candidate) == (Frequencies(1e4, 1.0), Frequencies(5e5, 1.0))
    assert compare_frequencies(store(one), store(one)) is None
    assert compare_frequencies(store(draw(64)), store(draw(64, seed=1))) is None
    assert compare_frequencies(store(one), store(draw(64))) is None
    assert compare_frequencies(store(one), store(one[:32])) is None


def test_piecewise_scaling_is_told_by_both_ends():
    one = make_frequencies(5e5)
    slow = torch.clamp((one - 1e-3) / (4e-3 - 1e-3), 0, 1)
    other = one * slow + one / 8 * (1 - slow)
    change = compare_frequencies(store(one), store(other))
    assert change.reference == Frequencies(5e5, 1.0)
    assert change.candidate is None
    assert (change.first_ratio, change.last_ratio) == (1.0, pytest.approx(0.125))
    other[30] *= 2
    assert compare_frequencies(store(one), store(other)) is None


def test_limits_of_what_counts_as_computed():
    assert (buffers.FEWEST_STEPS, buffers.ROUNDINGS, buffers.TABLE_ERROR) == (4, 4, 1e-3)
    assert not is_derived(store(torch.arange(4.0)))
    assert is_derived(store(torch.arange(5.0)))
    for error, is_table in ((4e-4, True), (2e-3, False)):
        table = make_sines()
        table[100, 3] += error
        assert is_derived(store(table)) is is_table
    row = make_frequencies()
    for units, is_geometric in ((6, True), (40, False)):
        off = row.clone()
        off[20] *= 1 + units * 2**-24
        assert (read_frequencies(store(off)) is not None) is is_geometric
