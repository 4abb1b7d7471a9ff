"""Models wrapped for distributed training are recorded by the names the wrapper gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trainings import digest_of, make_model, train

from nndiff.runs.reader import open_run
from nndiff.runs.recorder import TrainingRecorder
from nndiff.runs.run import TensorKind

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


@pytest.mark.parametrize(
    ("wrap", "prefix"),
    [(nn.parallel.DistributedDataParallel, "module."), (shard, "")],
)
def test_wrapped_models_have_the_tensors_of_bare_ones(
    wrap: Callable[[nn.Module], Any], prefix: str, process_group: None, tmp_path: Path
) -> None:
    train(tmp_path / "plain", range(3), keep="full")
    train(tmp_path / "wrapped", range(3), wrap(make_model()), keep="full")
    plain, wrapped = open_run(tmp_path / "plain").read_tensors(2), open_run(tmp_path / "wrapped").read_tensors(2)
    assert {key.name for key in wrapped.keys} == {prefix + key.name for key in plain.keys}
    for key in plain.keys:
        expected = digest_of(plain, key.kind, key.name, key.state)
        assert digest_of(wrapped, key.kind, prefix + key.name, key.state) == expected, key
    assert {key.kind for key in wrapped.keys} == set(TensorKind)


def test_a_sharded_tensor_is_noted(tmp_path: Path) -> None:
    class Part(torch.Tensor):
        """Stand for a DTensor of which another process has the other half."""

        def to_local(self) -> torch.Tensor:
            return self.as_subclass(torch.Tensor)[:2]

    model = nn.Module()
    model.register_buffer("split", torch.ones(4).as_subclass(Part))
    TrainingRecorder(tmp_path / "run", model).close()
    run = open_run(tmp_path / "run")
    assert run.read_tensors(None).shapes == ((2,),)
    assert run.description.notes == (
        "the model is sharded: of its tensors, only the parts in this process were recorded",
    )
