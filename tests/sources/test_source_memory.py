"""Objects in memory: modules, mappings, sequences, arrays of any library."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from source_checks import assert_holds, one_of_each

from nndiff.errors import SourceError
from nndiff.sources import open_source


def test_torch_tensors_of_every_dtype_and_layout() -> None:
    wanted = one_of_each()
    assert_holds(wanted, wanted)
    assert_holds(
        {name: value.t()[1:, ::2] for name, value in wanted.items()},
        {name: value.t()[1:, ::2] for name, value in wanted.items()},
    )
    assert_holds(one_of_each(()), one_of_each(()))
    assert_holds(one_of_each((0, 3)), one_of_each((0, 3)))


def test_conjugates_parameters_and_shared_storages() -> None:
    base = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
    opened = assert_holds({"p": base, "c": base.detach().conj()}, {"p": base.data, "c": base.detach().conj()})
    assert opened.tensors["p"].storage_id == opened.tensors["c"].storage_id
    pairs = torch.view_as_complex(torch.randn(3, 2).half())
    assert_holds({"h": pairs}, {"h": torch.view_as_real(pairs)})


def test_a_tensor_of_the_meta_device() -> None:
    tensor = open_source({"m": torch.empty(2, device="meta")}).tensors["m"]
    assert (tensor.shape, "meta" in (tensor.missing or "")) == ((2,), True)


def test_numpy_arrays_and_numbers() -> None:
    value = {
        "a": np.arange(6).reshape(2, 3).T,
        "big": np.arange(3, dtype=">f8"),
        "flag": np.array([True, False]),
        "deep": {"list": [np.float32(1), 2, 3.5, True, 1j], "none": None},
        7: np.zeros((2, 0)),
    }
    tensors = open_source(value).tensors
    assert list(tensors) == [
        "a", "big", "flag", "deep.list.0", "deep.list.1", "deep.list.2", "deep.list.3", "deep.list.4", "7"
    ]  # fmt: skip
    np.testing.assert_array_equal(tensors["a"].numpy(), value["a"])
    np.testing.assert_array_equal(tensors["big"].numpy(), [0, 1, 2])
    assert tensors["flag"].numpy().tolist() == [True, False]
    kinds = [tensors[f"deep.list.{index}"].dtype.name for index in range(5)]
    assert kinds == ["float32", "int64", "float64", "bool", "complex128"]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_types_numpy_does_not_have(name: str) -> None:
    truth = np.array([[1, 2, 4], [0.5, 8, 16]], getattr(ml_dtypes, name)).T
    tensor = open_source({"w": truth}).tensors["w"]
    assert tensor.dtype.name == name
    np.testing.assert_array_equal(tensor.numpy(), truth.astype(np.float32))


class Foreign:
    """Be an array the way those of other libraries are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value, dtype)


def test_arrays_of_other_libraries() -> None:
    assert open_source({"w": Foreign([1.0, 2.0])}).tensors["w"].numpy().tolist() == [1.0, 2.0]
    assert open_source(Foreign([[1, 2]])).tensors["tensor"].shape == (1, 2)


def test_sequences_and_single_arrays() -> None:
    assert list(open_source([torch.ones(1), (torch.ones(2),)]).tensors) == ["0", "1.0"]
    assert list(open_source(np.ones(3), "mine").tensors) == ["tensor"]
    assert open_source(np.ones(3), "mine").label == "mine"
    opened = open_source({"a": 1})
    assert open_source(opened) is opened


@pytest.mark.parametrize(
    ("value", "trouble"),
    [
        ({"a": "text"}, "'a' is a str; nndiff compares tensors, arrays of numbers"),
        ({"a": np.array(["x"])}, "'a' is an array of"),
        ({"a": {"b": object()}}, "'a.b' is a object; nndiff compares tensors"),
        ({1: np.ones(1), "1": np.ones(1)}, "holds two tensors named '1'"),
        ({"a": Foreign([[1], [1, 2]])}, "'a' cannot be read as an array"),
    ],
)
def test_what_cannot_be_compared_is_named(value: Any, trouble: str) -> None:
    with pytest.raises(SourceError, match=trouble):
        open_source(value)


def test_a_mapping_that_holds_itself() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(SourceError, match="nested deeper than 100 levels"):
        open_source(value)
