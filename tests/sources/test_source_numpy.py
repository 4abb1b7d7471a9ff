"""NumPy's files, folders of files, and how many files may be open."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from nndiff.errors import SourceError
from nndiff.sources import open_source

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", "c16"]


def array_of(dtype: str, shape: tuple[int, ...] = (2, 3, 4)) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(3).standard_normal(shape) * 50).astype(dtype)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", [(2, 3, 4), (), (0,), (3, 0, 2), (5,)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("end", "<>")
def test_npy_files(tmp_path: Path, shape: tuple[int, ...], order: Any, end: str) -> None:
    for dtype in DTYPES:
        truth = np.asarray(array_of(dtype, shape), order=order).astype(np.dtype(dtype).newbyteorder(end))
        np.save(tmp_path / "x.npy", truth)
        (found,) = open_source(tmp_path / "x.npy").tensors.values()
        assert (found.name, found.shape) == ("x", shape)
        assert found.dtype.name == truth.dtype.name
        np.testing.assert_array_equal(found.numpy(), truth)
        pieces = [found.read(start, min(start + 5, found.count)) for start in range(0, found.count, 5)]
        flat = np.concatenate(pieces) if pieces else np.empty(0)
        np.testing.assert_array_equal(flat, truth.reshape(-1))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(3), version)
    assert open_source(tmp_path / "x.npy").tensors["x"].numpy().tolist() == [0, 1, 2]


def test_types_numpy_does_not_have(tmp_path: Path) -> None:
    truth = np.array([1.5, -2.25, 3], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", truth)
    found = open_source(tmp_path / "x.npy").tensors["x"]
    assert found.dtype.name == "bfloat16"
    np.testing.assert_array_equal(found.numpy(), truth.astype(np.float32))
    # numpy.save does not keep which float8 it was: the bytes are compared, not the numbers
    np.save(tmp_path / "y.npy", truth.astype(ml_dtypes.float8_e4m3fn))
    assert open_source(tmp_path / "y.npy").tensors["y"].dtype.kind == "opaque"


@pytest.mark.parametrize("value", [np.array([{}, "a"], object), np.array(["a", "b"]), np.zeros(2, [("a", "f4")])])
def test_what_is_no_number_is_said_so(tmp_path: Path, value: Any) -> None:
    np.save(tmp_path / "x.npy", value, allow_pickle=True)
    with pytest.raises(SourceError, match="not numbers; pickled objects are not read"):
        open_source(tmp_path / "x.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path: Path, save: Any) -> None:
    wanted = {f"layer.{dtype[-1]}{index}": array_of(dtype) for index, dtype in enumerate(DTYPES[:6])}
    wanted |= {"fortran": np.asfortranarray(array_of("f4")), "big": array_of("f4").astype(">f4"), "none": np.zeros(0)}
    save(tmp_path / "x.npz", **wanted, text=np.array(["a"]))
    opened = open_source(tmp_path / "x.npz")
    assert list(opened.tensors) == list(wanted)
    assert opened.describe_others() == {"text": "an array of objects or text"}
    for _ in range(2):  # read twice: unpacked, let go and unpacked again
        for name, truth in wanted.items():
            assert opened.tensors[name].shape == truth.shape
            np.testing.assert_array_equal(opened.tensors[name].numpy(), truth)


def test_a_compressed_array_is_not_unpacked_to_learn_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nndiff.files import TemporaryFile

    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 20))
    unpacked = []
    original = TemporaryFile.append
    monkeypatch.setattr(
        TemporaryFile, "append", lambda self, chunk: (unpacked.append(len(chunk)), original(self, chunk))
    )
    opened = open_source(tmp_path / "x.npz")
    assert opened.tensors["a"].shape == (1 << 20,)
    assert not unpacked
    opened.tensors["a"].read(5, 7)
    assert sum(unpacked) == (8 << 20) + 128


def test_folders_of_files(tmp_path: Path) -> None:
    np.save(tmp_path / "layer10.npy", np.arange(2))
    np.save(tmp_path / "layer9.npy", np.arange(3))
    np.savez(tmp_path / "more.npz", a=np.ones(1), b=np.ones(2))
    torch.save(torch.ones(4), tmp_path / "single.pt")
    torch.save({"w": torch.ones(5)}, tmp_path / "state.pt")
    (tmp_path / "notes.txt").write_text("nothing")
    opened = open_source(tmp_path)
    assert {name: tensor.shape for name, tensor in opened.tensors.items()} == {
        "layer9": (3,),
        "layer10": (2,),
        "more.a": (1,),
        "more.b": (2,),
        "single": (4,),
        "state.w": (5,),
    }
    assert open_source(f"{tmp_path}::more").tensors["b"].shape == (2,)


def test_a_folder_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="a folder without any file nndiff can read"):
        open_source(tmp_path)


_MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from nndiff.sources import open_source
opened = open_source(sys.argv[1])
for _ in range(2):
    for number, tensor in enumerate(opened.tensors.values()):
        assert tensor.numpy().tolist() == [number] * 2, tensor
print(len(opened.tensors))
"""


@pytest.mark.parametrize("kind", ["folder of npy", "npz compressed"])
def test_thousands_of_arrays_need_few_open_files(tmp_path: Path, kind: str) -> None:
    count = 3000 if kind == "folder of npy" else 600
    path = tmp_path / "x.npz"
    if kind == "folder of npy":
        path = tmp_path
        for number in range(count):
            np.save(tmp_path / f"a{number}.npy", np.full(2, number))
    else:
        np.savez_compressed(path, **{f"a{number}": np.full(2, number) for number in range(count)})
    command = [sys.executable, "-c", _MANY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(count), "")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 256
