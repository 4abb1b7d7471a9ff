"""Torch distributed checkpoints, written by torch in one process and by two."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from source_checks import assert_holds, one_of_each
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

from nndiff.errors import SourceError
from nndiff.sources import open_source

pytestmark = pytest.mark.filterwarnings("ignore")


def save(state: dict[str, Any], path: Path) -> Path:
    dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def test_every_dtype_nested_names_and_odd_shapes(tmp_path: Path) -> None:
    state = {**one_of_each(), "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 2), "t": torch.randn(3, 4).t()}
    nested = {"layer": {"w": torch.randn(2, 2)}, "list": [torch.ones(1)], "step": 3, **state}
    opened = open_source(save(nested, tmp_path / "d"))
    wanted = {**state, "layer.w": nested["layer"]["w"], "list.0": torch.ones(1)}
    assert_holds(opened, wanted, ordered=False)
    assert opened.kind == "distributed"
    assert "step" in opened.others


def test_the_model_beside_its_optimizer(tmp_path: Path) -> None:
    weight = torch.randn(3, 2)
    state = {"model": {"w": weight}, "optimizer": {"state": {"w": {"exp_avg": torch.ones(3, 2)}}}}
    path = save(state, tmp_path / "d")
    opened = assert_holds(path, {"w": weight})
    assert opened.part == "model"
    assert opened.describe_others()["optimizer"] == "1 tensor"
    assert_holds(f"{path}::optimizer.state.w", {"exp_avg": torch.ones(3, 2)})
    assert_holds(f"{path}::model.w", {"w": weight})
    with pytest.raises(SourceError, match="has no tensors below 'nothing'"):
        open_source(f"{path}::nothing")


_TWO = textwrap.dedent(
    """
    import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.device_mesh import init_device_mesh
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35.0).reshape(5, 7)
    state = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "both": distribute_tensor(whole, mesh, [Replicate()]),
        "uneven": distribute_tensor(torch.arange(3), mesh, [Shard(0)]),
        "lonely": distribute_tensor(torch.ones(1, 2), mesh, [Shard(0)]),
        "plain": torch.ones(2),
    }
    dcp.save(state, checkpoint_id=f"{folder}/d")
    dist.destroy_process_group()
    """
)


def test_tensors_sharded_over_two_processes_are_put_together(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _TWO, str(rank), str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    troubles = [rank.communicate(timeout=120)[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        pytest.skip(f"two processes cannot meet here: {troubles[0][-200:]}")
    whole = torch.arange(35.0).reshape(5, 7)
    wanted = {
        "rows": whole,
        "columns": whole,
        "both": whole,
        "uneven": torch.arange(3),
        "lonely": torch.ones(1, 2),
        "plain": torch.ones(2),
    }
    assert_holds(tmp_path / "d", wanted, ordered=False)


def changed(path: Path, change: Any) -> Path:
    """Write the metadata of a checkpoint again, with torch's own classes, after a change."""
    file = path / ".metadata"
    metadata: Metadata = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))
    return path


def _set_size(metadata: Metadata, *size: int) -> None:
    metadata.state_dict_metadata["w"].size = torch.Size(size)


def _set_chunks(metadata: Metadata, *chunks: tuple[list[int], list[int]]) -> None:
    made = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
    metadata.state_dict_metadata["w"].chunks = made


def _set_place(metadata: Metadata, **fields: Any) -> None:
    for info in metadata.storage_data.values():
        for name, value in fields.items():
            setattr(info, name, value)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        (lambda m: _set_size(m, 4, 4), "do not make up its 16 elements"),
        (lambda m: _set_size(m, 1 << 40), "missing or does not fit"),
        (lambda m: _set_chunks(m, ([0, 0], [9, 9])), "missing or does not fit"),
        (lambda m: _set_chunks(m, ([1, 0], [2, 4])), "missing or does not fit"),
        (lambda m: _set_chunks(m), "do not make up its 12 elements"),
        (lambda m: _set_chunks(m, ([0, 0], [2, 4]), ([0, 0], [1, 4])), "overlap"),
        (lambda m: _set_place(m, relative_path="../d/x"), "names a file outside its own folder"),
        (lambda m: _set_place(m, relative_path="/etc/passwd"), "names a file outside its own folder"),
        (lambda m: _set_place(m, relative_path=3), r"\.metadata is damaged"),
        (lambda m: _set_place(m, relative_path="missing"), "missing: no such file"),
        (lambda m: _set_place(m, offset=1 << 50), "claims bytes"),
        (lambda m: _set_place(m, length=1 << 50), "claims bytes"),
        (lambda m: _set_place(m, length=3), "too short for its 12 elements"),
        (lambda m: setattr(m, "storage_data", None), "names no storage"),
        (lambda m: setattr(m, "state_dict_metadata", [1]), r"\.metadata is damaged"),
    ],
)
def test_metadata_that_lies(tmp_path: Path, change: Any, trouble: str) -> None:
    path = changed(save({"w": torch.randn(3, 4)}, tmp_path / "d"), change)
    with pytest.raises(SourceError, match=trouble):
        open_source(path).tensors["w"].numpy()
