"""The torch code of a map: run, it makes the same bits; read, it has loops and no surprises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conversion.map_builders import draw, make_map, read_raw
from helpers import Arrays
from nndiff.align import Rename
from nndiff.conversion import ConversionMap, Entry, Missing, MissingReason, convert_source
from nndiff.conversion.torch_code import write_torch_code
from nndiff.errors import ConversionError
from nndiff.plan import PairingRules
from nndiff.relations.fold_operations import AddLowRank, FoldBatchNorm, FoldNorm
from nndiff.relations.operations import (
    Add,
    Arrange,
    Concatenate,
    Expand,
    Flatten,
    Multiply,
    Permute,
    Reshape,
    Slice,
    Stack,
    SumOver,
    Take,
    WeightNorm,
)
from nndiff.sources import open_source


def run_code(code: str, arrays: Arrays) -> dict[str, torch.Tensor]:
    """Return what the printed function makes of arrays."""
    names: dict[str, Any] = {}
    exec(compile(code, "convert.py", "exec"), names)
    state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    made: dict[str, torch.Tensor] = names["convert"](state)
    return made


def assert_same_bits(conversion: ConversionMap, arrays: Arrays) -> str:
    """Check that the printed code makes what the map makes; return the code."""
    code = write_torch_code(conversion)
    expected = read_raw(convert_source(open_source(arrays), conversion))
    made = run_code(code, arrays)
    assert made.keys() == expected.keys()
    for name, (dtype, shape, raw) in expected.items():
        assert str(made[name].dtype) == f"torch.{dtype}"
        assert tuple(made[name].shape) == shape
        assert made[name].reshape(-1).view(torch.uint8).numpy().tobytes() == raw
    return code


LAYER, NORM = {"w": (6, 6, 3)}, {"gamma": (6,), "beta": (6,), "mean": (6,), "variance": (6,)}
BIAS: tuple[dict[str, tuple[int, ...]], ...] = ({}, {"bias": (6,)})

OPERATIONS: dict[str, tuple[tuple[Any, ...], tuple[int, ...], str]] = {
    "copy": ((), (4, 6), "float32"),
    "cast": ((), (4, 6), "bfloat16"),
    "float8": ((), (4, 6), "float8_e4m3fn"),
    "reshape": ((Reshape((2, 3, 4)), Permute((2, 0, 1))), (4, 2, 3), "float32"),
    "scalar": ((Slice(0, 0, 1), Slice(1, 0, 1), Reshape(())), (), "float32"),
    "flatten": ((Flatten(),), (24,), "float32"),
    "turn": ((Permute((1, 0)),), (6, 4), "float16"),
    "take": ((Take(1, (5, 0, 3)),), (4, 3), "float32"),
    "expand": ((Reshape((4, 1, 6)), Expand((4, 3, 6)), Reshape((12, 6))), (12, 6), "float32"),
    "multiply": ((Multiply(1 / 3),), (4, 6), "float32"),
}


@pytest.mark.parametrize(("operations", "shape", "dtype"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_operation_gives_the_same_bits(operations: Any, shape: tuple[int, ...], dtype: str) -> None:
    assert_same_bits(ConversionMap("", "", (Entry("b", ("a",), operations, dtype, shape),)), draw(0, a=(4, 6)))


def test_several_sources_give_the_same_bits() -> None:
    arrays = draw(1, q=(4, 6), k=(4, 6), v=(4, 6))
    entries = (
        Entry("qkv", ("q", "k", "v"), (Permute((1, 0)), Arrange((2, 0, 1)), Concatenate(1)), "float32", (6, 12)),
        Entry("experts", ("q", "k"), (Stack(1),), "float32", (4, 2, 6)),
        Entry("half", ("q",), (), "float16", (4, 6)),
    )
    assert_same_bits(ConversionMap("", "", entries), arrays)


def make_layers(count: int) -> tuple[Arrays, Arrays]:
    """Return a model of several layers, and the same with other names and transposed weights."""
    arrays, other = {}, {}
    for number in range(count):
        layer = draw(number, weight=(4, 6), bias=(6,))
        arrays[f"model.layers.{number}.fc.weight"] = layer["weight"]
        arrays[f"model.layers.{number}.fc.bias"] = layer["bias"]
        other[f"h.{number}.mlp.0.weight"] = layer["weight"].T
        other[f"h.{number}.mlp.0.bias"] = layer["bias"]
    return arrays, other


@pytest.mark.parametrize(
    ("operations", "sources", "shape"),
    [
        ((Add(),), {"a": (8,), "b": (8,)}, (8,)),
        ((WeightNorm((1, 2)),), {"g": (8, 1, 1), "v": (8, 4, 3)}, (8, 4, 3)),
        ((WeightNorm((0, 1, 2)),), {"g": (), "v": (8, 4, 3)}, (8, 4, 3)),
        ((AddLowRank(0.5, False),), {"w": (8, 6), "a": (2, 6), "b": (8, 2)}, (8, 6)),
        ((AddLowRank(2.0, True),), {"w": (6, 8), "a": (2, 6), "b": (8, 2)}, (6, 8)),
        ((FoldNorm(1, False),), {"w": (8, 6), "g": (6,)}, (8, 6)),
        *(
            ((FoldBatchNorm(1e-3, axis, has_bias), Arrange((number,))), LAYER | BIAS[has_bias] | NORM, shape)
            for axis in (0, 1)
            for has_bias in (False, True)
            for number, shape in enumerate(((6, 6, 3), (6,)))
        ),
    ],
)
def test_folded_layers_give_the_same_numbers(operations: Any, sources: dict[str, tuple[int, ...]], shape: Any) -> None:
    arrays = {name: np.abs(array) + 0.1 for name, array in draw(2, **sources).items()}
    conversion = ConversionMap("", "", (Entry("made", tuple(arrays), operations, "float64", shape),))
    (expected,) = (tensor.numpy() for tensor in convert_source(open_source(arrays), conversion).tensors.values())
    made = run_code(write_torch_code(conversion), arrays)["made"]
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_layers_become_one_loop() -> None:
    arrays, other = make_layers(12)
    rules = PairingRules((Rename.parse(r"^h\.(\d+)\.mlp\.0=>model.layers.\1.fc"),))
    conversion, _ = make_map(arrays, other, rules)
    code = assert_same_bits(conversion, arrays)
    assert code.count("new[") == 2
    assert "    for i in range(12):\n" in code
    assert "        new[f'h.{i}.mlp.0.weight'] = state[f'model.layers.{i}.fc.weight'].T\n" in code


def copy_entry(target: str, source: str) -> Entry:
    """Return an entry that copies a tensor of three elements."""
    return Entry(target, (source,), (), "float32", (3,))


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        ([("b.0", "a.1"), ("b.1", "a.2")], "for i in range(2):"),
        ([("b.3", "a.3"), ("b.4", "a.4")], "for i in range(3, 5):"),
        ([("b.0", "a.0"), ("b.2", "a.2")], "for i in [0, 2]:"),
        ([("b.0", "a.0"), ("b.1", "a.10"), ("b.2", "a.2")], "for i, j in [(0, 0), (1, 10), (2, 2)]:"),
        ([(f"b.{i}.{j}", f"a.{j}.x.{i}") for i in range(2) for j in range(3)], "in product(range(2), range(3)):"),
        ([("b.007", "a.0"), ("b.07", "a.1")], "new['b.007'] = state['a.0']"),
        ([("b{i}.0'\"", "a{0}.0\\"), ("b{i}.1'\"", "a{0}.1\\")], "for i in range(2):"),
        ([("b.0", "a.1"), ("b.1", "a.0")], "for i, j in [(0, 1), (1, 0)]:"),
    ],
)  # fmt: skip
def test_numbers_of_layers_may_be_anything(pairs: list[tuple[str, str]], line: str) -> None:
    conversion = ConversionMap("", "", tuple(copy_entry(*pair) for pair in pairs))
    arrays = {source: np.full(3, number, np.float32) for number, (_, source) in enumerate(pairs)}
    assert line in assert_same_bits(conversion, arrays)


def test_hostile_names_run_nothing() -> None:
    name = "x'] = __import__('os').system('false') #\n\"\"\""
    missing = Missing("y\nraise SystemExit", MissingReason.NO_PARTNER)
    conversion = ConversionMap('"""\nraise SystemExit', "\\", (copy_entry(name, "a"),), (missing,))
    assert_same_bits(conversion, draw(0, a=(3,)))


def test_an_operation_without_torch_code_is_refused() -> None:
    with pytest.raises(ConversionError, match="use nndiff convert"):
        write_torch_code(ConversionMap("", "", (Entry("b", ("a",), (SumOver((0,)),), "float32", (1, 6)),)))
