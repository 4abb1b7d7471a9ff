"""Written checkpoints: what safetensors reads, complete or absent, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from helpers import refs, save
from nndiff.conversion.writer import plan_shards, write_checkpoint
from nndiff.dtypes import opaque
from nndiff.errors import ConversionError
from nndiff.sources import open_source
from nndiff.tensors import NoData, TensorRef


def test_every_dtype_is_read_back_by_safetensors(tmp_path: Path) -> None:
    names = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int8", "uint8",
             "bool", "complex64")  # fmt: skip
    values = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    values |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "ü\n": torch.ones(1)}
    save_file(values, str(tmp_path / "a.safetensors"), metadata={"format": "pt"})
    source = open_source(str(tmp_path / "a.safetensors"))
    (written,) = write_checkpoint(str(tmp_path / "b.safetensors"), list(source.tensors.values()))
    loaded = load_file(str(tmp_path / "b.safetensors"))
    assert loaded.keys() == values.keys()
    for name, value in values.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)
    with safe_open(str(tmp_path / "b.safetensors"), "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert (written.tensors, written.nbytes) == (len(values), (tmp_path / "b.safetensors").stat().st_size)


def test_shards_are_what_nndiff_and_transformers_read(tmp_path: Path) -> None:
    tensors = refs({f"w{number}": np.full(250, number, np.float32) for number in range(10)})
    written = write_checkpoint(str(tmp_path / "m.safetensors"), list(tensors.values()), most_bytes=3000)
    assert [Path(file.path).name for file in written] == [f"m-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    index = json.loads((tmp_path / "m.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 10_000
    assert set(index["weight_map"].values()) == {Path(file.path).name for file in written}
    source = open_source(str(tmp_path))
    assert {name: tensor.numpy()[0] for name, tensor in source.tensors.items()} == {f"w{n}": n for n in range(10)}
    (only,) = plan_shards("m.safetensors", list(tensors.values()), 10_000)
    assert only == "m.safetensors"


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorRef("q", (2,), opaque("qint8"), NoData("")), "qint8, which safetensors files cannot hold"),
        (TensorRef("q", (2,), open_source({"a": np.ones(1)}).tensors["a"].dtype, NoData("on meta")), "on meta"),
        (refs({"__metadata__": np.ones(1)})["__metadata__"], "cannot be called"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path, tensor: TensorRef, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        write_checkpoint(str(tmp_path / "b.safetensors"), [*refs({"a": np.ones(3)}).values(), tensor])
    assert list(tmp_path.iterdir()) == []


class Failing:
    """Fail when the elements are read."""

    def read(self, start: int, stop: int) -> Any:
        """Raise."""
        raise ConversionError("the second tensor does not fit")


def test_a_tensor_that_fails_leaves_nothing(tmp_path: Path) -> None:
    good = refs({"a": np.ones(3, np.float32)})["a"]
    (tmp_path / "b.safetensors").write_text("before")
    with pytest.raises(ConversionError, match="does not fit"):
        write_checkpoint(str(tmp_path / "b.safetensors"), [good, TensorRef("b", (3,), good.dtype, Failing())])
    assert [path.name for path in tmp_path.iterdir()] == ["b.safetensors"]
    assert (tmp_path / "b.safetensors").read_text() == "before"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(ConversionError, match="cannot be written: file too large"):
            write_checkpoint(str(tmp_path / "b.safetensors"), list(refs({"a": np.ones(1 << 20)}).values()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="no such file or directory"):
        write_checkpoint(str(tmp_path / "no" / "b.safetensors"), list(refs({"a": np.ones(1)}).values()))


def test_a_killed_conversion_leaves_no_checkpoint(tmp_path: Path) -> None:
    arrays = {f"w{number}": np.ones((1 << 9, 1 << 9), np.float32) for number in range(64)}
    source = save(tmp_path / "a.safetensors", arrays)
    out = tmp_path / "out"
    out.mkdir()
    program = (
        "import sys, time\n"
        "from nndiff.conversion import writer\n"
        "from nndiff.sources import open_source\n"
        "tensors = list(open_source(sys.argv[1]).tensors.values())\n"
        "def wait(done, total):\n"
        "    print(done, flush=True)\n"
        "    time.sleep(0.05)\n"
        "writer.write_checkpoint(sys.argv[2], tensors, 20 << 20, wait)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, source, str(out / "b.safetensors")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(40):  # the second shard is being written
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [path.name for path in out.iterdir() if not path.name.startswith(".nndiff-")] == []
