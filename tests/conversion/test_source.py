"""Converted sources: every way to make a tensor is exact, lazy and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file as save_torch

import nndiff.conversion.source as converted
from conversion.map_builders import assert_leads, draw, make_entry, make_map, store_map
from helpers import Arrays, refs, save
from nndiff.align import Rename
from nndiff.conversion import ConversionMap, Entry, MissingReason, convert_source, list_unmentioned, read_conversion_map
from nndiff.conversion.pairs import build_map
from nndiff.dtypes import DTYPES
from nndiff.errors import ConversionError, NndiffError
from nndiff.plan import PairingRules
from nndiff.relations import measure_related, prove
from nndiff.relations.operations import Expand, Flatten, Multiply, Permute, Reshape, Slice, Stack, Take
from nndiff.result import Method, Pair, Related
from nndiff.sources import Source, open_source
from nndiff.verdict import Verdict

WEIGHT = np.arange(24, dtype=np.float32).reshape(4, 6)


def convert_one(array: Any, entry: Entry) -> Any:
    """Return what one entry makes of an array called `a`."""
    source = convert_source(open_source({"a": array}), ConversionMap("", "", (entry,)))
    return source.tensors[entry.target].numpy()


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((), WEIGHT),
        ((Reshape((3, 8)),), WEIGHT.reshape(3, 8)),
        ((Flatten(),), WEIGHT.ravel()),
        ((Permute((1, 0)),), WEIGHT.T),
        ((Slice(1, 2, 5), Permute((1, 0))), WEIGHT[:, 2:5].T),
        ((Take(0, (3, 0, 2, 1)),), WEIGHT[[3, 0, 2, 1]]),
        ((Reshape((4, 1, 6)), Expand((4, 2, 6))), np.repeat(WEIGHT[:, None], 2, 1)),
        ((Reshape((2, 2, 6)), Permute((1, 0, 2)), Reshape((4, 6))), WEIGHT[[0, 2, 1, 3]]),
        ((Multiply(0.1),), (WEIGHT.astype(np.float64) * 0.1).astype(np.float32)),
    ],
)
@pytest.mark.parametrize("held", [1 << 26, 0], ids=["held", "read in pieces"])
def test_operations_give_what_numpy_gives(
    operations: Any, expected: Any, held: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(converted, "HELD_ELEMENTS", held)
    entry = Entry("b", ("a",), operations, "float32", expected.shape)
    for value in (WEIGHT, save(tmp_path / "a.safetensors", {"a": WEIGHT})):
        source = value if isinstance(value, str) else {"a": value}
        tensor = convert_source(open_source(source), ConversionMap("", "", (entry,))).tensors["b"]
        assert (tensor.shape, tensor.dtype.name) == (expected.shape, "float32")
        np.testing.assert_array_equal(tensor.numpy(), expected)
        np.testing.assert_array_equal(tensor.read(3, 11), expected.ravel()[3:11])


@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_casts_are_those_of_torch(name: str) -> None:
    random = np.random.default_rng(0)
    numbers = np.concatenate(
        [random.normal(size=20_000) * 10.0 ** random.integers(-9, 6, 20_000), [0.0, -0.0, 448.0, 464.0, 1e30, -1e30]]
    ).astype(np.float32)
    for extra in np.arange(256, dtype=np.uint8), np.arange(0, 65536, 7, dtype=np.uint16):  # values, and ties between
        kind = ml_dtypes.float8_e4m3fn if extra.dtype == np.uint8 else ml_dtypes.bfloat16
        values = np.sort(extra.view(kind).astype(np.float32))
        values = values[np.isfinite(values)]
        with np.errstate(over="ignore"):
            numbers = np.concatenate([numbers, values, values[:-1] / 2 + values[1:] / 2])
    expected = torch.from_numpy(numbers).to(getattr(torch, name)).view(torch.uint8).numpy().tobytes()
    made = DTYPES[name].encode(numbers)
    assert made.tobytes() == expected


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_not_a_number_stays_one(name: str) -> None:
    raw = DTYPES[name].encode(np.array([np.nan, -np.nan, 1.0], np.float32))
    assert np.isnan(DTYPES[name].decode(raw)).tolist() == [True, True, False]


def test_every_value_of_a_short_type_is_encoded_as_itself() -> None:
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16"):
        dtype = DTYPES[name]
        codes = np.arange(1 << 8 * dtype.itemsize, dtype=dtype.storage)
        numbers = dtype.decode(codes)
        kept = ~np.isnan(numbers)
        np.testing.assert_array_equal(dtype.encode(numbers)[kept], codes[kept])


def test_rearranged_elements_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(256, 256)
    save_torch({"a": bits}, str(tmp_path / "a.safetensors"))
    entry = Entry("b", ("a",), (Permute((1, 0)),), "bfloat16", (256, 256))
    source = convert_source(open_source(str(tmp_path / "a.safetensors")), ConversionMap("", "", (entry,)))
    assert source.tensors["b"].read(0, 65536).tobytes() == bits.T.contiguous().view(torch.uint8).numpy().tobytes()


def test_several_sources_become_one() -> None:
    arrays = draw(0, q=(4, 6), k=(4, 6))
    entry = Entry("s", ("q", "k"), (Stack(0),), "float32", (2, 4, 6))
    source = convert_source(open_source(arrays), ConversionMap("", "", (entry,)))
    np.testing.assert_array_equal(source.tensors["s"].numpy(), np.stack([arrays["q"], arrays["k"]]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("b", ("a",), (), "float32", (6, 4)), r"copies 'a' of shape \[4, 6\]"),
        (Entry("b", ("a", "a"), (), "float32", (4, 6)), "copies 'a'"),
        (Entry("b", ("x",), (), "float32", (4, 6)), "'x', which is not there"),
        (Entry("b", ("a",), (Permute((1, 0, 2)),), "float32", (6, 4)), "does not fit"),
        (Entry("b", ("a",), (Permute((1, 0)),), "float32", (4, 6)), r"makes \[6, 4\], expected \[4, 6\]"),
        (Entry("b", ("a",), (Take(0, (0, 9)),), "float32", (2, 6)), "does not fit"),
        (Entry("b", ("a", "a"), (Permute((1, 0)),), "float32", (6, 4)), "makes"),
        (Entry("b", ("a",), (Expand((1 << 20, 4, 6)),), "float32", (1 << 20, 4, 6)), "25,165,824 elements of 24"),
        (Entry("b", ("a",), (Expand((1 << 25, 4, 6)), Slice(0, 0, 1)), "float32", (1, 4, 6)), "elements of 24"),
    ],
)
def test_entries_that_do_not_fit_are_refused(entry: Entry, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        convert_one(WEIGHT, entry)


def test_exchanged_sides_are_told() -> None:
    entry = Entry("a", ("transformer.a",), (), "float32", (4, 6))
    with pytest.raises(ConversionError, match="are the sides of the map exchanged"):
        convert_one(WEIGHT, entry)


def test_memory_stays_flat_while_many_tensors_are_made(tmp_path: Path) -> None:
    count, rows = 40, 1 << 10
    save(tmp_path / "a.safetensors", {f"{n}": np.full((rows, rows), n, np.float32) for n in range(count)})
    entries = [Entry(f"t{n}", (f"{n}",), (Permute((1, 0)),), "bfloat16", (rows, rows)) for n in range(count)]
    source = convert_source(open_source(str(tmp_path / "a.safetensors")), ConversionMap("", "", tuple(entries)))
    for tensor in source.tensors.values():
        tensor.read(0, 10)
    assert len(converted._made) <= converted.KEPT
    del source, tensor
    assert not converted._made


# -- from pairs to a map ----------------------------------------------------------------------------------------------


def lead_both_ways(reference: Arrays, candidate: Arrays, rules: PairingRules | None = None) -> ConversionMap:
    """Check the maps of both directions bit for bit, and return that from reference to candidate."""
    back, _ = make_map(candidate, reference, rules)
    assert_leads(back, candidate, reference)
    conversion, _ = make_map(reference, candidate, rules)
    assert_leads(conversion, reference, candidate)
    return conversion


def test_transposed_reshaped_and_equal_tensors_lead_both_ways() -> None:
    arrays = draw(1, linear=(4, 6), square=(5, 5), conv=(3, 4, 2, 2), bias=(6,), flat=(3, 8))
    other = {
        "linear": arrays["linear"].T,
        "square": arrays["square"].T,
        "conv": arrays["conv"].transpose(2, 3, 1, 0),
        "bias": arrays["bias"],
        "flat": arrays["flat"].reshape(3, 2, 4),
    }
    conversion = lead_both_ways(arrays, other)
    assert not conversion.missing
    assert len(conversion.entries) == 5


def test_a_scaled_tensor_is_made_to_rounding() -> None:
    arrays = draw(2, a=(64, 64))
    conversion, _ = make_map(arrays, {"a": arrays["a"] * np.float32(8)})
    assert_leads(conversion, arrays, {"a": arrays["a"] * np.float32(8)})
    back, _ = make_map({"a": arrays["a"] * np.float32(8)}, arrays)
    assert_leads(back, {"a": arrays["a"] * np.float32(8)}, arrays)


def test_what_only_differs_is_copied_and_not_proven() -> None:
    arrays = draw(3, a=(4, 6), b=(3,))
    conversion, _ = make_map(arrays, {**arrays, "a": draw(33, a=(4, 6))["a"]})
    assert {entry.target: entry.proven for entry in conversion.entries} == {"a": False, "b": True}


def test_what_cannot_be_made_is_missing_with_its_reason() -> None:
    arrays = draw(4, a=(4, 6), b=(3,), old=(7,))
    conversion, _ = make_map(arrays, {"a": draw(5, a=(4, 7))["a"], "b": arrays["b"], "new": np.ones(9, np.float32)})
    assert {item.target: item.reason for item in conversion.missing} == {
        "a": MissingReason.SHAPE,
        "new": MissingReason.NO_PARTNER,
    }
    assert conversion.unused == ("a", "old")


def test_a_tied_tensor_is_written_twice_or_left_out() -> None:
    arrays = draw(6, wte=(5, 4), b=(3,))
    tied = {**arrays, "head": arrays["wte"].copy()}
    conversion = lead_both_ways(arrays, tied)
    assert {entry.target: entry.sources for entry in conversion.entries}["head"] == ("wte",)
    back, _ = make_map(tied, arrays)
    assert back.unused == ("head",)


def test_another_dtype_is_stored_as_the_candidate_has_it(tmp_path: Path) -> None:
    values = torch.randn(32, 16).to(torch.bfloat16)
    save_torch({"w": values.float()}, str(tmp_path / "a.safetensors"))
    save_torch({"w": values.T.contiguous()}, str(tmp_path / "b.safetensors"))
    sides = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    for one, other in (sides, sides[::-1]):
        conversion, _ = make_map(one, other)
        assert_leads(conversion, one, other)


def test_renamed_tensors_are_made_under_the_new_names() -> None:
    arrays = {f"model.layers.{n}.w": value for n, value in enumerate(draw(7, a=(4, 6), b=(4, 6)).values())}
    other = {name.replace("model.layers", "h"): value.T for name, value in arrays.items()}
    rules = PairingRules((Rename.parse(r"^h\.=>model.layers."),))
    conversion, _ = make_map(arrays, other, rules)
    assert_leads(conversion, arrays, other)
    assert [entry.target for entry in conversion.entries] == ["h.0.w", "h.1.w"]


def test_fused_tensors_are_joined_and_split() -> None:
    parts = draw(8, q=(4, 6), k=(4, 6), v=(2, 6))
    whole = {"qkv": np.concatenate([parts["q"], parts["k"], parts["v"]])}
    for turned in (False, True):
        fused = {"qkv": whole["qkv"].T.copy()} if turned else whole
        for sides in ((parts, fused), (fused, parts)):
            tensors = [list(refs(side).values()) for side in sides]
            relation = prove(tensors[0], tensors[1], 0.0, 0.0)
            assert relation is not None
            names = [" + ".join(side) for side in sides]
            shapes = tensors[0][0].shape, tensors[1][0].shape
            related = Related(relation, measure_related(relation, *tensors, 0.0, 0.0), accepted=False)
            pair = Pair("b", *names, Method.CONTENT, True, Verdict.SHAPE, shapes, ("float32", "float32"), 0,
                        related=related)  # fmt: skip
            conversion = build_map(open_source(sides[0]), open_source(sides[1]), [pair], [])
            assert not conversion.missing
            assert_leads(conversion, *sides)


def test_a_tensor_whose_name_holds_the_joint_is_one() -> None:
    arrays = {"a + b": WEIGHT, "c": WEIGHT[0] + 0.5}
    conversion, _ = make_map(arrays, arrays)
    assert [entry.sources for entry in conversion.entries] == [("a + b",), ("c",)]


def test_unmentioned_tensors_are_listed(tmp_path: Path) -> None:
    path = store_map(tmp_path / "map.json", make_entry(), unused=["c"])
    source = open_source({"a": WEIGHT, "c": WEIGHT, "d": WEIGHT})
    assert list_unmentioned(source, read_conversion_map(path)) == ["d"]


def test_recordings_are_refused() -> None:
    source = Source("x.nnrec", "recording", {})
    with pytest.raises(NndiffError, match="is a recording"):
        convert_source(source, ConversionMap("", "", ()))
