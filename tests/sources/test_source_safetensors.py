"""safetensors files, shards, indexes and Hugging Face folders, written by their own libraries."""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from source_checks import assert_holds, one_of_each, tensor_of

from nndiff.errors import SourceError
from nndiff.sources import open_source


def by_hand(path: Path, entries: dict[str, tuple[str, list[int], bytes]], metadata: object = None) -> Path:
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, (code, shape, data) in entries.items():
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.mark.parametrize("shape", [(3, 5), (), (0,), (2, 0, 3), (1, 1, 7)])
def test_every_dtype_and_shape_is_read_as_the_library_wrote_it(tmp_path: Path, shape: tuple[int, ...]) -> None:
    wanted = one_of_each(shape)
    del wanted["complex128"]  # which the format does not have
    save_file(wanted, tmp_path / "x.safetensors")
    opened = assert_holds(tmp_path / "x.safetensors", wanted, ordered=False)
    assert opened.kind == "safetensors"


def test_metadata_is_kept(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors", {"format": "pt"})
    assert open_source(tmp_path / "x.safetensors").meta == {"format": "pt"}


def test_bytes_of_no_tensor_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.ones(3)}, path)
    assert open_source(path).notes == ()
    path.write_bytes(path.read_bytes() + b"junk")
    (note,) = open_source(path).notes
    assert note.startswith("4 bytes in the file belong to no tensor and were not compared")


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.weights")
    assert_holds(tmp_path / "model.weights", {"a": torch.ones(2)})


def test_complex_and_packed_kinds_the_library_does_not_write(tmp_path: Path) -> None:
    complex_ = np.array([1 + 2j, 3 - 4j], np.complex128)
    path = by_hand(
        tmp_path / "x.safetensors",
        {
            "c": ("C64", [2], complex_.astype(np.complex64).tobytes()),
            "four": ("F4", [2, 4], bytes(range(4))),
            "six": ("F6_E2M3", [4], bytes(range(3))),
        },
    )
    tensors = open_source(path).tensors
    assert tensors["c"].numpy().tolist() == [1 + 2j, 3 - 4j]
    assert (tensors["four"].shape, tensors["four"].dtype.name) == ((4,), "f4")
    assert tensors["four"].read(1, 3).tolist() == [1, 2]
    assert tensors["six"].read(0, 3).tolist() == [0, 1, 2]


def test_a_part_of_a_file_is_chosen_by_its_prefix(tmp_path: Path) -> None:
    wanted = {"a.x": torch.ones(2), "a.y": torch.zeros(3), "b": torch.ones(1)}
    save_file(wanted, tmp_path / "x.safetensors")
    assert_holds(f"{tmp_path}/x.safetensors::a", {"x": wanted["a.x"], "y": wanted["a.y"]})
    assert_holds(f"{tmp_path}/x.safetensors::a.x", {"x": wanted["a.x"]})
    with pytest.raises(SourceError, match="has no tensors below 'c'"):
        open_source(f"{tmp_path}/x.safetensors::c")


def test_a_terabyte_opens_at_once(tmp_path: Path) -> None:
    count = 1 << 38
    path = by_hand(tmp_path / "x.safetensors", {})
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with path.open("r+b") as file:
        try:
            file.truncate(8 + len(header) + 4 * count)
        except OSError:
            pytest.skip("the file system has no room for a sparse file of this size")
    tensor = open_source(path).tensors["w"]
    assert tensor.nbytes == 1 << 40
    assert tensor.read(count - 3, count).tolist() == [0.0, 0.0, 0.0]


def test_no_tensor_data_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({f"w{index}": torch.randn(1000) for index in range(50)}, tmp_path / "x.safetensors")
    read = 0
    original = os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal read
        count = original(fd, buffers, offset)
        read += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    opened = open_source(tmp_path / "x.safetensors")
    assert [tensor.shape for tensor in opened.tensors.values()] == [(1000,)] * 50
    header = struct.unpack("<Q", (tmp_path / "x.safetensors").read_bytes()[:8])[0]
    assert read <= header + 8 + 8 + 512
    opened.tensors["w3"].read(0, 10)
    assert read <= header + 8 + 8 + 512 + 40


# shards, by their index and without one


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    parts = [{"a.w": tensor_of(torch.bfloat16), "a.b": tensor_of(torch.float32)}, {"z.w": tensor_of(torch.int64)}]
    weight_map = {}
    for number, part in enumerate(parts, 1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file(part, folder / shard)
        weight_map.update(dict.fromkeys(part, shard))
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {**parts[0], **parts[1]}


def test_shards_are_found_by_their_index_by_their_folder_and_without_an_index(tmp_path: Path) -> None:
    wanted = sharded(tmp_path)
    assert_holds(tmp_path / "model.safetensors.index.json", wanted, ordered=False)
    assert_holds(tmp_path, wanted, ordered=False)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert_holds(tmp_path, wanted, ordered=False)


def test_sharded_bin_files(tmp_path: Path) -> None:
    parts = [{"a.w": tensor_of(torch.bfloat16)}, {"model.z": tensor_of(torch.int64)}]
    weight_map = {}
    for number, part in enumerate(parts, 1):
        torch.save(part, tmp_path / f"pytorch_model-{number}.bin")
        weight_map.update(dict.fromkeys(part, f"pytorch_model-{number}.bin"))
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_holds(tmp_path, {**parts[0], **parts[1]}, ordered=False)


def test_an_index_that_names_a_missing_shard_or_a_wrong_one(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SourceError, match=r"model-00002-of-00002.safetensors: no such file"):
        open_source(tmp_path)
    save_file({"other": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(
        SourceError, match=r"says that 'model-00002-of-00002.safetensors' holds 'z.w', but that file does not"
    ):
        open_source(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_a_hugging_face_folder(tmp_path: Path, shard_size: str) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=200
    )
    model = BertModel(config)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    opened = assert_holds(tmp_path, dict(model.state_dict()), ordered=False)
    if shard_size == "5GB":
        assert opened.meta["model_type"] == "bert"


def test_a_folder_of_numpy_safetensors(tmp_path: Path) -> None:
    save_numpy({"x": np.arange(6.0).reshape(2, 3)}, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text('{"model_type": "toy", "hidden_size": 4}')
    opened = open_source(tmp_path)
    assert opened.tensors["x"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert opened.meta["model_type"] == "toy"


def test_many_files_where_few_may_be_open(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        names = {f"w{number}": f"{number}.safetensors" for number in range(60)}
        for number, (name, file) in enumerate(names.items()):
            save_file({name: torch.full((3,), float(number))}, tmp_path / folder / file)
        (tmp_path / folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    command = f"ulimit -n 32 && {shlex.quote(sys.executable)} -m nndiff diff a b -q"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 60 tensors have the same values" in done.stdout
