"""What tests of recording share: a bare run to hold a recording against, and a look at what a model is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nndiff.recording.capture.inputs import as_inputs
from nndiff.recording.capture.losses import compute_loss
from nndiff.recording.capture.state import State
from nndiff.recording.capture.tensors import is_tensor, raw_tensor
from nndiff.recording.environment.randomness import preserve_randomness, seed_everything
from nndiff.recording.format.digests import measure_tensor
from nndiff.recording.format.values import flatten
from nndiff.recording.reader import Recording
from nndiff.recording.record import record

SEED = 7


def digest(tensor: torch.Tensor) -> str:
    return measure_tensor(raw_tensor(tensor), with_stats=False).digest


def bare(model: torch.nn.Module, inputs: Any, backward: bool = True, loss: Any = None) -> dict[str, str]:
    """Run a model as it would run alone; return digests of outputs, gradients and changed buffers by name."""
    state = State(model)
    with preserve_randomness():
        fed = as_inputs(inputs).fresh()
        state.clear_gradients()
        seed_everything(SEED)
        with torch.set_grad_enabled(backward):
            output = model(*fed.args, **fed.kwargs)
        leaves = [(path, leaf) for path, leaf in flatten(output, is_tensor, objects=True) if is_tensor(leaf)]
        found = {f"(model):output{'.' + path if path else ''}": digest(leaf) for path, leaf in leaves}
        if backward:
            compute_loss(loss, model, fed, output, SEED)[0].backward()
            named = [(name, each.grad) for name, each in model.named_parameters() if each.grad is not None]
            found |= {f"{name}:param_grad": digest(grad) for name, grad in named}
        found |= {
            f"{module}.{name}:buffer".lstrip("."): digest(now) for module, name, _, now in state.list_changed_buffers()
        }
        state.restore()
    return found


def fingerprint(model: torch.nn.Module) -> dict[str, Any]:
    """Return everything about a model and its surroundings that a recording must leave alone."""
    return {
        "state": {name: digest(value) for name, value in model.state_dict().items() if is_tensor(value)},
        "buffers": {name: id(each) for name, each in model.named_buffers()},
        "grads": {name: (id(each.grad), each.requires_grad) for name, each in model.named_parameters()},
        "modes": {name: getattr(each, "training", None) for name, each in model.named_modules()},
        "hooks": {
            name: (len(each._forward_hooks), len(each._forward_pre_hooks)) for name, each in model.named_modules()
        },
        "global": len(torch.nn.modules.module._global_forward_hooks),
        "plain": {
            f"{name}.{key}": value
            for name, each in model.named_modules()
            for key, value in vars(each).items()
            if isinstance(value, (int, float, str))
        },
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
    }


def check_recording(
    model: torch.nn.Module, inputs: Any, path: Path, *, backward: bool = True, **options: Any
) -> Recording:
    """Record, and hold the recording against a bare run and the model against itself; return the recording."""
    wanted = bare(model, inputs, backward, options.get("loss"))
    before = fingerprint(model)
    recording = record(model, inputs, path=path, seed=SEED, backward=backward, **options)
    assert fingerprint(model) == before
    held = {name: ref.trace.digest for name, ref in recording.source().tensors.items()}
    assert wanted, "the bare run produced nothing to hold against"
    assert {name: held.get(name) for name in wanted} == wanted
    assert bare(model, inputs, backward, options.get("loss")) == wanted
    return recording


def names(recording: Recording, slot: str = "output") -> list[str]:
    """Return the names of a slot's tensors, in order."""
    return [event.site.name for event in recording.tensors if event.site.slot == slot]


def numbers(recording: Recording, name: str) -> np.ndarray[Any, Any]:
    """Return one tensor of a recording."""
    return recording.source().tensors[name].numpy()


X = torch.arange(12.0).reshape(3, 4) / 7 - 1


def linear(size: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(size, size)


class Shared(nn.Module):
    """One ReLU under two names, called three times; a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.first = nn.ReLU()
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.fc(self.second(self.fc(self.first(x)))))
