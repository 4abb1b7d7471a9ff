"""What torch.save and torch.jit.save write, read without torch and held against torch."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types
import warnings
import zipfile
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from source_checks import assert_holds, assert_same, one_of_each, tensor_of

from nndiff.errors import SourceError
from nndiff.sources import open_source

FORMATS = [pytest.param(True, id="zip"), pytest.param(False, id="legacy")]


def save(value: Any, path: Path, as_zip: bool) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=as_zip)
    return path


@pytest.mark.parametrize("as_zip", FORMATS)
@pytest.mark.parametrize("shape", [(3, 5), (), (0,), (2, 0, 3)])
def test_every_dtype_and_shape(tmp_path: Path, shape: tuple[int, ...], as_zip: bool) -> None:
    wanted = one_of_each(shape)
    opened = assert_holds(save(wanted, tmp_path / "x.pt", as_zip), wanted)
    assert opened.kind == ("torch" if as_zip else "torch legacy")
    assert opened.foreign == ()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".anything"])
@pytest.mark.parametrize("as_zip", FORMATS)
def test_content_decides_not_the_suffix(tmp_path: Path, suffix: str, as_zip: bool) -> None:
    wanted = {"a": tensor_of(torch.float32)}
    assert_holds(save(wanted, tmp_path / f"x{suffix}", as_zip), wanted)


@pytest.mark.parametrize("as_zip", FORMATS)
def test_views_of_every_kind(tmp_path: Path, as_zip: bool) -> None:
    base = torch.arange(60.0).reshape(3, 4, 5)
    wanted = {
        "base": base,
        "transposed": base.transpose(0, 2),
        "permuted": base.permute(1, 2, 0),
        "sliced": base[1:, ::2, 1:4],
        "row": base[2, 1],
        "scalar": base[1, 2, 3],
        "expanded": base[:, :1].expand(3, 7, 5),
        "nothing": base[:, 4:],
        "column": base.reshape(12, 5).t()[2:3],
        "diagonal": base[0, :, :4].diagonal(),
        "windows": torch.arange(10.0).unfold(0, 4, 2),
    }
    opened = assert_holds(save(wanted, tmp_path / "x.pt", as_zip), wanted)
    identity = opened.tensors["base"].storage_id
    shared = [name for name, tensor in opened.tensors.items() if tensor.storage_id == identity]
    assert "windows" not in shared
    assert {"base", "transposed", "sliced", "expanded"} <= set(shared)


def test_half_of_every_dtype_strided(tmp_path: Path) -> None:
    wanted = {name: tensor.t()[1:, ::2] for name, tensor in one_of_each((4, 6)).items()}
    assert_holds(save(wanted, tmp_path / "x.pt", True), wanted)


def test_lazy_conjugates_and_negatives(tmp_path: Path) -> None:
    base = torch.randn(3, 4, dtype=torch.complex64)
    wanted = {"conj": base.conj(), "both": base.t().conj()}
    assert wanted["conj"].is_conj()
    assert_holds(save(wanted, tmp_path / "x.pt", True), wanted)
    wanted = {"neg": base.conj().imag, "real": base.real}
    assert wanted["neg"].is_neg()
    assert_holds(save(wanted, tmp_path / "y.pt", True), wanted)


def test_halves_of_complex_numbers(tmp_path: Path) -> None:
    base = torch.view_as_complex(tensor_of(torch.float16, (3, 4, 2)))
    assert_holds(
        save({"w": base, "t": base.t()}, tmp_path / "x.pt", True),
        {
            "w": torch.view_as_real(base),
            "t": torch.view_as_real(base.t()),
        },
    )


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors_come_with_their_scales(tmp_path: Path) -> None:
    whole = torch.quantize_per_tensor(torch.randn(3, 4), 0.5, 3, torch.qint8)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]).double(), torch.tensor([1, 2, 3])
    channels = torch.quantize_per_channel(torch.randn(3, 4), scales, zeros, 0, torch.quint8)
    value = {"w": whole, "c": channels}
    wanted = {
        "w": whole.int_repr(),
        "w.scale": torch.tensor(0.5).double(),
        "w.zero_point": torch.tensor(3),
        "c": channels.int_repr(),
        "c.scales": scales,
        "c.zero_points": zeros,
        "c.axis": torch.tensor(0),
    }
    assert_holds(save(value, tmp_path / "x.pt", True), wanted)
    assert_holds(value, wanted)


@pytest.mark.filterwarnings("ignore")
def test_packed_quantised_tensors_are_named_not_called_damaged(tmp_path: Path) -> None:
    packed = torch.quantize_per_tensor(torch.randn(4, 4), 0.5, 3, torch.quint4x2)
    with pytest.raises(SourceError, match=r"holds a storage of torch\.QUInt4x2Storage, which nndiff does not read"):
        open_source(save({"w": packed}, tmp_path / "x.pt", True))


@pytest.mark.filterwarnings("ignore")
def test_sparse_tensors_are_their_dense_parts(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, 4]])
    coo, csr, csc, bsr = dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))
    value = {"coo": coo, "csr": csr, "csc": csc, "bsr": bsr}
    wanted = {
        "coo.indices": coo.indices(),
        "coo.values": coo.values(),
        "csr.crow_indices": csr.crow_indices(),
        "csr.col_indices": csr.col_indices(),
        "csr.values": csr.values(),
        "csc.ccol_indices": csc.ccol_indices(),
        "csc.row_indices": csc.row_indices(),
        "csc.values": csc.values(),
        "bsr.crow_indices": bsr.crow_indices(),
        "bsr.col_indices": bsr.col_indices(),
        "bsr.values": bsr.values(),
    }
    assert_holds(save(value, tmp_path / "x.pt", True), wanted)
    assert_holds(value, wanted)


def test_nested_tensors_lose_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)])
    opened = open_source(save({"n": nested}, tmp_path / "x.pt", True))
    assert opened.tensors["n.args.0"].numpy().tolist() == [0, 1, 0, 1, 2]


def test_a_tensor_of_the_meta_device_says_that_it_has_no_elements(tmp_path: Path) -> None:
    opened = open_source(save({"m": torch.empty(3, 4, device="meta")}, tmp_path / "x.pt", True))
    assert opened.tensors["m"].shape == (3, 4)
    assert "meta device" in (opened.tensors["m"].missing or "")


class Marked(torch.Tensor):
    pass


def test_subclasses_and_parameters_with_attributes(tmp_path: Path) -> None:
    marked = torch.randn(3).as_subclass(Marked)
    marked.note = "text"
    marked.scale = torch.tensor(2.0)
    parameter = torch.nn.Parameter(torch.randn(2))
    parameter.kind = {"deep": [torch.ones(1)], "axis": 3}
    wanted = {
        "m": marked.as_subclass(torch.Tensor),
        "m.scale": torch.tensor(2.0),
        "p": parameter.data,
        "p.kind.deep.0": torch.ones(1),
        "b": torch.ones(1),
    }
    value = {"m": marked, "p": parameter, "b": torch.nn.Buffer(torch.ones(1))}
    opened = assert_holds(save(value, tmp_path / "x.pt", True), wanted)
    assert any("Marked" in name for name in opened.foreign)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8], ids=str)
def test_a_file_of_a_big_endian_machine(tmp_path: Path, dtype: torch.dtype) -> None:
    truth = tensor_of(dtype, (4, 6))
    torch.save({"w": truth, "t": truth.t()}, tmp_path / "little.pt")
    half = truth.element_size() // (2 if dtype.is_complex else 1)
    with zipfile.ZipFile(tmp_path / "little.pt") as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("/byteorder"):
                data = b"big"
            elif "/data/" in name:
                data = (
                    np.frombuffer(data, f"V{half}" if half == 1 else f"u{half}").byteswap().tobytes()
                    if half > 1
                    else data
                )
            new.writestr(name, data)
    assert_holds(tmp_path / "big.pt", {"w": truth, "t": truth.t()})


def test_compressed_storages_are_unpacked(tmp_path: Path) -> None:
    wanted = {f"w{index}": torch.randn(50, 3).t() for index in range(40)} | {"e": torch.zeros(0)}
    torch.save(wanted, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as old,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert_holds(tmp_path / "x.pt", wanted)


# modules


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.rnn = torch.nn.LSTM(4, 2)
        self.tied = self.first
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("passing", torch.arange(4), persistent=False)
        self.plain = torch.ones(2)
        self.blocks = torch.nn.ModuleList(torch.nn.Conv1d(1, 1, 1) for _ in range(2))


@pytest.mark.parametrize("as_zip", FORMATS)
def test_a_whole_pickled_module_has_the_names_of_its_state_dict(tmp_path: Path, as_zip: bool) -> None:
    model = Net()
    opened = assert_holds(save(model, tmp_path / "x.pt", as_zip), dict(model.state_dict()), ordered=False)
    assert any(name.endswith(".Net") for name in opened.foreign)


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.register_buffer("kept", torch.arange(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.kept.sum()


@pytest.mark.filterwarnings("ignore")
def test_torchscript(tmp_path: Path) -> None:
    model = torch.jit.trace(Scripted(), torch.randn(2, 3))
    torch.jit.save(model, str(tmp_path / "x.pt"))
    opened = assert_holds(tmp_path / "x.pt", dict(model.state_dict()), ordered=False)
    assert opened.kind == "torchscript"


def test_modules_in_memory() -> None:
    model = Net()
    opened = assert_holds(model, dict(model.state_dict()))
    assert opened.kind == "module"


# which part is the model, and what else is there

STATE = {"a.weight": torch.randn(2, 3), "a.bias": torch.randn(2)}


def trained() -> dict[str, Any]:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    "key", ["state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params"]
)
@pytest.mark.parametrize("as_zip", FORMATS)
def test_the_model_is_found_beside_training_states(tmp_path: Path, key: str, as_zip: bool) -> None:
    value = {"epoch": 3, "optimizer": trained(), key: STATE, "lr_schedulers": [{"last": 1}], "args": {"lr": 0.1}}
    opened = assert_holds(save(value, tmp_path / "x.pt", as_zip), STATE)
    assert opened.part == key
    assert list(opened.others) == ["epoch", "optimizer", "lr_schedulers", "args"]
    assert opened.describe_others()["epoch"] == "3"
    assert opened.describe_others()["optimizer"] == "6 tensors"


def test_the_model_is_found_two_levels_down(tmp_path: Path) -> None:
    value = {"model": {"state_dict": STATE, "epoch": 1}, "optimizer": trained()}
    opened = assert_holds(save(value, tmp_path / "x.pt", True), STATE)
    assert opened.part == "model.state_dict"
    assert "model.epoch" in opened.others


def test_a_part_is_chosen_by_its_key(tmp_path: Path) -> None:
    states = trained()
    path = save({"state_dict": STATE, "optimizer": states, "epoch": 7}, tmp_path / "x.pt", True)
    moments = states["state"][0]
    assert_holds(
        f"{path}::optimizer.state.0",
        {"step": moments["step"], "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]},
    )
    assert_holds(f"{path}::optimizer.state.0.exp_avg", {"exp_avg": moments["exp_avg"]})
    whole = open_source(f"{path}::optimizer")
    assert whole.tensors["param_groups.0.lr"].numpy() == 0.001
    assert whole.tensors["param_groups.0.lr"].dtype.name == "float64"
    assert_same(whole.tensors["state.1.exp_avg_sq"], states["state"][1]["exp_avg_sq"])
    assert open_source(f"{path}::epoch").tensors["epoch"].numpy() == 7


def test_keys_with_dots_are_found(tmp_path: Path) -> None:
    value = {"a.b": {"c.d": torch.ones(2)}, "a": {"b": {"c": torch.zeros(1)}}}
    path = save(value, tmp_path / "x.pt", True)
    assert_holds(f"{path}::a.b.c.d", {"d": torch.ones(2)})


def test_a_wrong_key_is_answered_with_the_keys_there_are(tmp_path: Path) -> None:
    path = save({"state_dict": STATE, "epoch": 1}, tmp_path / "x.pt", True)
    with pytest.raises(SourceError, match=r"has no part 'state_dic'; did you mean 'state_dict'\?"):
        open_source(f"{path}::state_dic")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"state_dict": STATE, "extra": {"w": torch.ones(1)}}, [*STATE, "extra.w"]),
        ({"state_dict": STATE, "best_acc1": torch.tensor(7.0), "epoch": 1}, [*STATE, "best_acc1"]),
        ({"generator": {"w": torch.ones(1)}, "critic": {"w": torch.ones(1)}}, ["generator.w", "critic.w"]),
        ({"model": {"w": torch.ones(1)}, "net": {"w": torch.ones(1)}}, ["model.w", "net.w"]),
        ({"model": {"w": torch.ones(1)}, "teacher": {"w": torch.ones(1)}}, ["model.w", "teacher.w"]),
        ({"state_dict": STATE, 0: {"w": torch.ones(1)}}, [*STATE, "0.w"]),
        ([{"w": torch.ones(1)}, {"w": torch.ones(1)}], ["0.w", "1.w"]),
        (torch.ones(2), ["tensor"]),
        ({(0, 1): torch.ones(1), (0, 2): torch.ones(1)}, ["0,1", "0,2"]),
        ({"a": (torch.ones(1), {"b": [torch.ones(1)]})}, ["a.0", "a.1.b.0"]),
        (OrderedDict(a=deque([torch.ones(1)]), b=defaultdict(list, c=torch.ones(1))), ["a.0", "b.c"]),
    ],
)
def test_nothing_that_holds_tensors_is_dropped_in_silence(tmp_path: Path, value: Any, names: list[str]) -> None:
    assert list(open_source(save(value, tmp_path / "x.pt", True)).tensors) == names


def test_numbers_of_numpy_are_numbers_not_tensors(tmp_path: Path) -> None:
    path = save({"state_dict": STATE, "score": np.float64(0.5)}, tmp_path / "x.pt", True)
    opened = assert_holds(path, STATE)
    assert "score" in opened.others


def test_a_vocabulary_is_named_not_compared(tmp_path: Path) -> None:
    words = {f"word{number}": number for number in range(200_000)}
    path = save({"embedding": torch.ones(2), "index": words}, tmp_path / "x.pt", True)
    opened = assert_holds(path, {"embedding": torch.ones(2)})
    assert opened.describe_others() == {"index": "200000 entries"}


def test_a_file_with_its_own_separator_in_the_name(tmp_path: Path) -> None:
    assert_holds(save({"a": torch.ones(1)}, tmp_path / "x::y.pt", True), {"a": torch.ones(1)})


# classes that are not there


def foreign(path: Path, as_zip: bool) -> dict[str, torch.Tensor]:
    """Save a checkpoint full of classes that nobody has when it is read."""
    module = types.ModuleType("vanished_package")
    source = """
class Config(dict):
    pass
class Node:
    def __init__(self, value):
        self.value = value
class Slotted:
    __slots__ = ("left", "right")
class Listing(list):
    pass
class Reduced:
    def __init__(self, value):
        self.value = value
    def __reduce__(self):
        return (Reduced, (self.value,), {"more": 1})
class Shade:
    pass
"""
    exec(source, module.__dict__)
    sys.modules["vanished_package"] = module
    for each in (module.Config, module.Node, module.Slotted, module.Listing, module.Reduced):
        each.__module__ = "vanished_package"
    slotted = module.Slotted()
    slotted.left, slotted.right = 1, 2
    state = {"w": torch.randn(3), "b": torch.randn(2)}
    value = {
        "state_dict": state,
        "hyper_parameters": module.Config(a=module.Node(3), b=slotted, c=module.Listing([1, 2])),
        "callbacks": {"best": module.Reduced(torch.tensor(1.0))},
    }
    try:
        torch.save(value, path, _use_new_zipfile_serialization=as_zip)
    finally:
        del sys.modules["vanished_package"]
    return state


@pytest.mark.parametrize("as_zip", FORMATS)
def test_foreign_classes_are_named_and_not_needed(tmp_path: Path, as_zip: bool) -> None:
    state = foreign(tmp_path / "x.ckpt", as_zip)
    opened = assert_holds(tmp_path / "x.ckpt", state)
    wanted = {f"vanished_package.{name}" for name in ("Config", "Node", "Slotted", "Listing", "Reduced")}
    assert wanted <= set(opened.foreign)
    assert opened.describe_others()["callbacks"] == "1 tensor"
    best = open_source(f"{tmp_path}/x.ckpt::callbacks.best")
    assert best.tensors["args.0"].numpy() == 1.0


# plain pickles


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_of_arrays_and_tensors(tmp_path: Path, protocol: int) -> None:
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {
        "c": base,
        "fortran": np.asfortranarray(base),
        "moved": base.transpose(1, 0, 2),
        "moved_more": base.transpose(2, 0, 1),
        "sliced": base[:, ::2],
        "big": base.astype(">f4"),
        "whole": np.arange(5),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j]),
        "zero": np.array(3.0),
        "nothing": np.zeros((2, 0)),
        "latin": np.frombuffer(bytes(range(256)), np.uint8),
    }
    tensors = {"t": torch.randn(3, 4), "s": torch.randn(4, 3).t(), "h": torch.randn(3).bfloat16()}
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({**arrays, **tensors, "text": np.array(["a"]), "note": "hello"}, protocol))
    opened = open_source(path)
    assert list(opened.tensors) == [*arrays, *tensors]
    for name, truth in arrays.items():
        assert opened.tensors[name].shape == truth.shape
        assert opened.tensors[name].dtype.name == truth.dtype.name
        np.testing.assert_array_equal(opened.tensors[name].numpy(), truth)
    for name, truth in tensors.items():
        assert_same(opened.tensors[name], truth)
    assert opened.describe_others()["text"] == "an array of objects or text"


@pytest.mark.parametrize("protocol", [2, 5])
def test_plain_pickles_of_types_numpy_does_not_have(tmp_path: Path, protocol: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        truth = np.array([1.5, -2, 0.25], getattr(ml_dtypes, name))
        (tmp_path / "x.pkl").write_bytes(pickle.dumps({"w": truth}, protocol))
        found = open_source(tmp_path / "x.pkl").tensors["w"]
        assert found.dtype.name == name
        np.testing.assert_array_equal(found.numpy(), truth.astype(np.float32))


def test_large_arrays_of_old_protocols_are_not_held_in_memory(tmp_path: Path) -> None:
    truth = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)
    torch.save({"a": truth, "again": truth}, tmp_path / "x.pt")
    opened = open_source(tmp_path / "x.pt")
    np.testing.assert_array_equal(opened.tensors["a"].numpy(), truth)
    assert opened.tensors["a"].storage_id == opened.tensors["again"].storage_id


def test_records_are_not_taken_for_bfloat16(tmp_path: Path) -> None:
    records = np.zeros(3, [("a", "u1"), ("b", "u1")])
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"r": records, "w": np.ones(1)}))
    opened = open_source(tmp_path / "x.pkl")
    assert list(opened.tensors) == ["w"]
    assert "r" in opened.others


# nothing is read early


def test_shapes_are_known_before_data_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1 << 20), "v": torch.zeros(4)}, tmp_path / "x.pt")
    opened = open_source(tmp_path / "x.pt")
    assert opened.tensors["w"].shape == (1 << 20,)
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(SourceError, match="became shorter while it was being read"):
        opened.tensors["w"].read(0, 4)


def test_a_strided_tensor_of_a_file_that_shrank(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(100, 100).t()}, tmp_path / "x.pt")
    opened = open_source(tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(b"short")
    with pytest.raises(SourceError, match="became shorter while it was being read"):
        opened.tensors["w"].read(0, 4)


def test_a_file_that_was_replaced_is_said_so(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(10)}, tmp_path / "x.pt")
    opened = open_source(tmp_path / "x.pt")
    from nndiff import files

    files._cache.clear()
    torch.save({"w": torch.ones(10)}, tmp_path / "y.pt")
    (tmp_path / "y.pt").replace(tmp_path / "x.pt")
    with pytest.raises(SourceError, match="was replaced"):
        opened.tensors["w"].read(0, 4)


def test_a_legacy_file_lists_its_storages_honestly(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(4.0)}, buffer, _use_new_zipfile_serialization=False)
    raw = bytearray(buffer.getvalue())
    raw[-16 - 8 : -16] = struct.pack("<q", 5)
    (tmp_path / "x.pt").write_bytes(raw)
    with pytest.raises(SourceError, match="has 5 elements where 4 are claimed"):
        open_source(tmp_path / "x.pt")
