"""Fused: parts are found in a whole in every order and layout, cut out of it, and refused where one element is off."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relation_tensors import ATOL, RTOL, check, tensor

from nndiff.dtypes import DTYPES
from nndiff.files import RegularFile, Window
from nndiff.relations import cut_part, fused, natural_parts, prove, relate_parts
from nndiff.relations.operations import Arrange, Permute, Reshape, Slice, Stack, Take
from nndiff.tensors import FileData, MemoryData, Slot, StridedFileData, TensorRef, settled

RANDOM = np.random.default_rng(0)
QKV = [RANDOM.standard_normal((8, 6)).astype(np.float32) for _ in range(3)]
UNEVEN = [RANDOM.standard_normal((size, 6)).astype(np.float32) for size in (8, 2, 4)]
GATE_UP = [RANDOM.standard_normal((4, 6)).astype(np.float32) for _ in range(6)]  # gate and up of three experts
OUTPUTS = [RANDOM.standard_normal((2, 5, size)).astype(np.float32) for size in (4, 4, 8)]
INTERLEAVED = np.arange(24).reshape(3, 4, 2).transpose(1, 0, 2).reshape(-1)  # two rows of each part for every head

WHOLES = {
    "one behind the other": (QKV, lambda parts: np.concatenate(parts)),
    "transposed": (QKV, lambda parts: np.concatenate(parts).T),
    "another order": (QKV, lambda parts: np.concatenate([parts[2], parts[0], parts[1]])),
    "another order, transposed": (QKV, lambda parts: np.concatenate(parts[::-1]).T),
    "uneven": (UNEVEN, lambda parts: np.concatenate(parts)),
    "uneven, another order": (UNEVEN, lambda parts: np.concatenate([parts[1], parts[2], parts[0]])),
    "dealt out head by head": (QKV, lambda parts: np.concatenate(parts)[INTERLEAVED]),
    "dealt out and transposed": (QKV, lambda parts: np.concatenate(parts)[INTERLEAVED].T),
    "stacked": (QKV, lambda parts: np.stack(parts)),
    "stacked along the last axis": (QKV, lambda parts: np.stack(parts, 2)),
    "stacked in another order": (QKV, lambda parts: np.stack(parts[::-1])),
    "stacked, each transposed": (QKV, lambda parts: np.stack([part.T for part in parts])),
    "gate and up of each expert": (GATE_UP, lambda parts: np.concatenate(parts).reshape(3, 8, 6)),
    "gate and up, dealt out": (GATE_UP, lambda parts: np.stack(parts, 1).transpose(1, 0, 2).reshape(3, 8, 6)),
    "gate and up, each transposed": (
        GATE_UP,
        lambda parts: np.concatenate(parts).reshape(3, 8, 6).transpose(0, 2, 1),
    ),
    "outputs": (OUTPUTS, lambda parts: np.concatenate(parts, -1)),
    "outputs in another order": (OUTPUTS, lambda parts: np.concatenate([parts[2], parts[1], parts[0]], -1)),
    "biases": ([part[:, 0].copy() for part in QKV], lambda parts: np.concatenate(parts)),
    "losses": ([part[0, 0] for part in QKV], lambda parts: np.stack(parts)),
}


HEADS = [RANDOM.standard_normal((size * 4, 6)).astype(np.float32) for size in (8, 4, 4)]  # heads of four
GROUPED = [RANDOM.standard_normal((size * 4, 6)).astype(np.float32) for size in (6, 2, 2)]


def by_group(parts, groups):
    """Lay the rows of all parts of one group together, as Megatron does: its queries, its key, its value."""
    return np.concatenate([part.reshape(groups, -1, part.shape[1]) for part in parts], 1).reshape(-1, parts[0].shape[1])


def to_halves(part, size=4):
    return part.reshape(-1, size // 2, 2, part.shape[1]).swapaxes(1, 2).reshape(part.shape)


WHOLES |= {
    "per head": (QKV, lambda parts: by_group(parts, 4)),
    "per group": (GROUPED, lambda parts: by_group(parts, 2)),
    "per group, transposed": (GROUPED, lambda parts: by_group(parts, 2).T),
    "codegen": (HEADS, lambda parts: by_group([parts[0], parts[2], parts[1]], 4)),
    "two ranks": (HEADS, lambda parts: by_group(parts, 2)),
    "gate and up, row by row": (QKV[:2], lambda parts: np.stack(parts, 1).reshape(16, 6)),
    "rotated inside": (HEADS, lambda parts: np.concatenate([to_halves(parts[0]), to_halves(parts[1]), parts[2]])),
    "per group, rotated inside": (
        GROUPED,
        lambda parts: by_group([to_halves(parts[0]), to_halves(parts[1]), parts[2]], 2),
    ),
}

STRUCTURES = {
    "per head": (Reshape((4, 3, 2, 6)), Permute((1, 0, 2, 3)), Reshape((24, 6))),
    "per group": (Reshape((10, 4, 6)), Take(0, (0, 1, 2, 5, 6, 7, 3, 8, 4, 9)), Reshape((40, 6))),
    "codegen": (Reshape((16, 4, 6)), Take(0, (0, 1, 4, 5, 8, 9, 12, 13, 3, 7, 11, 15, 2, 6, 10, 14)), Reshape((64, 6))),
    "gate and up, row by row": (Reshape((8, 2, 6)), Permute((1, 0, 2)), Reshape((16, 6))),
}


def made(case):
    parts, fuse = WHOLES[case]
    return parts, np.ascontiguousarray(fuse(parts))


def found(parts, whole, flipped=False, atol=ATOL, rtol=RTOL, hints=()):
    sides = [tensor(part) for part in parts], [tensor(whole)]
    return fused.prove(*(sides[::-1] if flipped else sides), atol, rtol, hints)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("case", WHOLES)
def test_parts_are_found_in_a_whole_and_cut_out_of_it(case, flipped):
    parts, whole = made(case)
    relation = found(parts, whole, flipped, 0.0, 0.0)
    sides = ([whole], parts) if flipped else (parts, [whole])
    assert np.array_equal(*check(relation, *sides))
    for part, own in zip(parts, relate_parts(relation, [tensor(part) for part in parts]), strict=True):
        assert np.array_equal(*check(own, *(([whole], [part]) if flipped else ([part], [whole]))))
        operations = own.reference if flipped else own.candidate
        cut = cut_part(tensor(whole), operations)
        assert cut.shape == part.shape
        assert np.array_equal(cut.numpy(), part)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("case", WHOLES)
def test_one_wrong_element_is_no_agreement(case, flipped):
    parts, whole = made(case)
    for place in (0, whole.size // 2, whole.size - 1):
        wrong = whole.copy()
        wrong.reshape(-1)[place] += 1e-3
        assert found(parts, wrong, flipped) is None
        wrong.reshape(-1)[place] = np.nan
        assert found(parts, wrong, flipped) is None


@pytest.mark.parametrize("case", WHOLES)
def test_the_same_elements_in_disorder_are_no_agreement(case):
    parts, whole = made(case)
    shuffled = np.random.default_rng(3).permutation(whole.reshape(-1)).reshape(whole.shape)
    if case != "losses":  # numbers are parts of their own: any order of them is one
        assert found(parts, shuffled) is None


@pytest.mark.parametrize("case", WHOLES)
def test_rounding_hides_no_parts(case):
    parts, whole = made(case)
    noise = 1e-6 * np.random.default_rng(1).standard_normal(whole.shape).astype(np.float32)
    check(found(parts, whole + noise), parts, [whole + noise])


@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_what_is_no_number_has_its_place_too(kind):
    for case in ("one behind the other", "dealt out head by head"):
        parts, fuse = WHOLES[case]
        parts = [part.copy() for part in parts]
        parts[1][2, 3] = kind
        whole = fuse(parts)
        check(found(parts, whole), parts, [whole])
        whole[whole != whole] = 0.0
        whole[np.isinf(whole)] *= -1
        assert found(parts, whole) is None


def test_constants_lie_in_their_own_order_or_as_a_hint_says():
    zeros = [np.zeros(4), np.zeros(4)]
    assert found(zeros, np.zeros(8)).text == "reference: concatenate along axis 0"
    assert found(zeros, np.zeros(9)) is None
    parts, whole = made("dealt out head by head")
    hint = found(parts, whole)
    biases = [part[:, 0].copy() for part in parts]
    dealt = np.concatenate(biases)[INTERLEAVED]
    check(found(biases, dealt), biases, [dealt], 0.0, 0.0)  # in an order that is no chance
    noisy = dealt + np.float32(1e-7)
    assert found(biases, noisy) is None  # single numbers are found in every permutation
    assert found(biases, np.random.default_rng(0).permutation(dealt)) is None
    check(found(biases, noisy, hints=[hint]), biases, [noisy])
    constants = [np.zeros(8, np.float32), np.ones(8, np.float32), np.zeros(8, np.float32)]
    dealt = np.concatenate(constants)[INTERLEAVED]
    assert found(constants, dealt) is None
    check(found(constants, dealt, hints=[hint]), constants, [dealt])
    dealt[0] += 1e-3
    assert found(constants, dealt, hints=[hint]) is None


def test_rows_that_rounding_mixes_up_are_told_apart():
    random = np.random.default_rng(0)
    rows = np.round(random.standard_normal((3000, 2)), 2)
    rows = np.unique(rows, axis=0)
    rows = rows[: len(rows) // 2 * 2]
    random.shuffle(rows)
    parts = list(np.split(rows, 2))
    whole = rows[random.permutation(len(rows))] + 1e-6 * random.standard_normal(rows.shape)
    check(found(parts, whole), parts, [whole])


def test_parts_are_named_for_people():
    text = {case: found(*made(case)).text for case in ("another order", "transposed", "stacked", "outputs")}
    assert text == {
        "another order": "reference: in the order (2, 0, 1), concatenate along axis 0",
        "transposed": "reference: permute(1, 0), concatenate along axis 1",
        "stacked": "reference: stack along axis 0",
        "outputs": "reference: concatenate along axis 2",
    }


@pytest.mark.parametrize("case", STRUCTURES)
def test_the_structure_of_a_whole_is_written(case):
    relation = found(*made(case), atol=0.0, rtol=0.0)
    assert relation.candidate == STRUCTURES[case]


def test_equal_rows_do_not_hide_how_parts_lie():
    parts = [part.copy() for part in QKV]
    parts[1][3] = parts[2][5] = 0
    relation = found(parts, by_group(parts, 4), atol=0.0, rtol=0.0)
    assert relation.ambiguous
    assert relation.candidate == STRUCTURES["per head"]


def test_natural_parts_are_shown_whether_they_agree_or_not():
    parts = [tensor(part) for part in QKV]
    whole = np.random.default_rng(9).standard_normal((24, 6)).astype(np.float32)
    relations = natural_parts(tensor(whole), parts)
    assert [relation.candidate for relation in relations] == [(Slice(0, 8 * i, 8 * i + 8),) for i in range(3)]
    turned = natural_parts(tensor(whole.T), parts, whole_in_reference=True)
    assert [relation.reference for relation in turned] == [
        (Slice(1, 8 * i, 8 * i + 8), Permute((1, 0))) for i in range(3)
    ]
    assert natural_parts(tensor(whole[:-1]), parts) is None


@given(st.permutations(range(5)), st.lists(st.integers(1, 3), min_size=5, max_size=5), st.booleans())
def test_every_order_of_parts_is_found(order, sizes, flipped):
    random = np.random.default_rng(sum(sizes))
    parts = [random.standard_normal((size, 3)) for size in sizes]
    whole = np.concatenate([parts[number] for number in order])
    relation = found(parts, whole, flipped, 0.0, 0.0)
    joined = relation.candidate if flipped else relation.reference
    arranged = [operation.order for operation in joined if isinstance(operation, Arrange)]
    assert arranged == ([] if list(order) == list(range(5)) else [tuple(order)])


# parts of files


@pytest.fixture(params=["float32", "bfloat16", "swapped"])
def on_disk(request, tmp_path):
    def store(array):
        path = tmp_path / "whole.bin"
        if request.param == "bfloat16":
            raw, dtype = (array.view(np.uint32) >> 16).astype(np.uint16), DTYPES["bfloat16"]
        else:
            raw, dtype = array, DTYPES["float32"]
        path.write_bytes(bytes(7) + (raw.byteswap() if request.param == "swapped" else raw).tobytes())
        window = Window(RegularFile(os.fspath(path)), 7)
        data = FileData(window, dtype.storage, request.param == "swapped")
        return TensorRef("qkv", array.shape, dtype, data), MemoryData(raw)

    return store


@pytest.mark.parametrize("case", ["one behind the other", "transposed", "stacked", "stacked along the last axis"])
def test_a_part_of_a_file_is_a_window_of_it(case, on_disk, monkeypatch):
    parts, array = made(case)
    whole, raw = on_disk(array)
    expected = TensorRef("", array.shape, whole.dtype, raw)
    monkeypatch.setattr(TensorRef, "numpy", TensorRef.numpy)
    for own in natural_parts(whole, [tensor(part) for part in parts]):
        cut = cut_part(whole, own.candidate)
        assert isinstance(settled(cut.data), StridedFileData)
        assert np.array_equal(cut.numpy(), cut_part(expected, own.candidate).numpy())


def test_scattered_places_of_a_file_are_read_too(on_disk):
    parts, array = made("dealt out head by head")
    whole, raw = on_disk(array)
    for own in relate_parts(found(parts, array), [tensor(part) for part in parts]):
        expected = TensorRef("", array.shape, whole.dtype, raw)
        assert np.array_equal(cut_part(whole, own.candidate).numpy(), cut_part(expected, own.candidate).numpy())


def test_a_part_keeps_its_place_and_loses_what_was_known_of_the_whole():
    whole = tensor(made("one behind the other")[1], slot=Slot.OUTPUT, module="qkv", with_stats=True)
    cut = cut_part(whole, [Slice(0, 8, 16)], name="qkv:output.1")
    assert (cut.name, cut.site, cut.storage_id) == ("qkv:output.1", whole.site, None)
    assert (cut.trace.stats, cut.trace.digest, cut.trace.whole) == (None, None, (24, 6))
    assert cut_part(whole, [Slice(0, 8, 8)]).numpy().shape == (0, 6)


# each limit does what it is for; moved threefold, one of these fails


def test_rows_of_two_elements_can_be_found_and_of_one_cannot():
    parts = [part[:, :2].copy() for part in QKV]
    whole = np.concatenate(parts)[INTERLEAVED]
    whole = whole + np.float32(1e-7)  # rounded, so that rows are found by their distance
    check(found(parts, whole), parts, [whole])
    assert found([part[:, :1] for part in parts], whole[:, :1]) is None


def test_a_hundred_experts_in_reverse_order_are_found_and_the_search_ends(monkeypatch):
    experts = [np.full((2, 2), float(number)) for number in range(128)]
    relation = found(experts, np.stack(experts[::-1]))
    assert isinstance(relation.reference[-1], Stack)
    alike = [np.zeros((2, 2)) for _ in range(40)]
    wrong = np.zeros((40, 2, 2))
    wrong[-1, 0, 0] = 1
    tried = []
    agree = fused.FusedSearch.agree
    monkeypatch.setattr(fused.FusedSearch, "agree", lambda *sides: tried.append(1) or agree(*sides))
    assert found(alike, wrong) is None
    assert len(tried) <= 4 * 40 * 40


def test_the_largest_whole_is_read_and_no_larger():
    part = tensor(np.broadcast_to(np.float32(1), (1 << 25, 1)))
    far = TensorRef("x", (3 << 25, 1), part.dtype, part.data)
    assert fused.prove([part, part, part], [far], ATOL, RTOL) is None


def test_long_rows_are_found_by_some_of_their_elements(monkeypatch):
    seen = []
    widen = fused.widen
    monkeypatch.setattr(fused, "widen", lambda array: seen.append(array.shape[1]) or widen(array))
    parts = [np.random.default_rng(i).standard_normal((3, 5120)) for i in range(2)]
    whole = np.concatenate(parts)[[4, 0, 3, 1, 5, 2]] + 1e-7
    check(found(parts, whole), parts, [whole])
    assert set(seen) == {512}


def test_so_many_rows_are_told_apart_by_distance():
    for count, repaired in ((800, True), (2000, False)):
        rows = np.repeat([[1.0, 0.0]], count, axis=0)
        rows[:, 1] = np.arange(count)
        weights = np.random.default_rng(0).standard_normal(2)
        rows[:, 0] = -rows[:, 1] * weights[1] / weights[0]  # every projection is 0 but for rounding
        noise = 1e-9 * np.random.default_rng(1).standard_normal(rows.shape)
        places = fused.match_rows(rows + noise, rows, 1e-6, 0.0)
        assert np.array_equal(places, np.arange(count)) is repaired


def test_the_families_are_tried_in_turn():
    parts, whole = made("stacked")
    assert prove([tensor(part) for part in parts], tensor(whole), ATOL, RTOL) == found(parts, whole)
