"""The Mamba mixer in FP32, cut into the parts that modes exchange. It computes what transformers' own mixer does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from quantized_mamba.quantization import Int8Tensor, to_float


class CausalConv(nn.Module):
    """Convolve every channel over time with what came before, then apply SiLU."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())  # (channels, 1, kernel)
        self.bias = None if bias is None else nn.Parameter(bias.detach())

    def forward(self, values: Tensor) -> Tensor | Int8Tensor:
        """Return (batch, channels, time)."""
        kernel = self.weight.shape[-1]
        output = F.conv1d(values, self.weight, self.bias, padding=kernel - 1, groups=self.weight.shape[0])
        return F.silu(output[:, :, : values.shape[-1]])


class StepProjection(nn.Module):
    """Project the time step to all channels; its bias is added in the scan."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())

    def forward(self, values: Tensor) -> Tensor:
        """Return (batch, channels, time) of (batch, time, rank)."""
        return self.weight @ values.transpose(1, 2)


class SelectiveScan(nn.Module):
    """Run the state space model over time; u and dt are (batch, channels, time), B and C (batch, time, states)."""

    def __init__(self, a_log: Tensor, d: Tensor, dt_bias: Tensor) -> None:
        super().__init__()
        self.a_log = nn.Parameter(a_log.detach())
        self.d = nn.Parameter(d.detach())
        self.dt_bias = nn.Parameter(dt_bias.detach())

    def forward(self, u: Tensor | Int8Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return (batch, channels, time)."""
        u = to_float(u)
        outputs = []
        for time, state in enumerate(self.compute_states(u, dt, b)):
            outputs.append((state.to(u.dtype) @ c[:, time, :, None])[:, :, 0])
        return torch.stack(outputs, dim=-1) + u * self.d.float()[:, None]

    def compute_states(self, u: Tensor, dt: Tensor, b: Tensor) -> Iterator[Tensor]:
        """Yield the state (batch, channels, states) after every token."""
        step = compute_step(dt, self.dt_bias)
        inflow = step[..., None] * b[:, None].float() * u[..., None].float()
        return run_recurrence(-torch.exp(self.a_log.float()), step, inflow)


def compute_step(dt: Tensor, bias: Tensor) -> Tensor:
    """Return the length of the time step of every channel, which is positive."""
    return F.softplus(dt + bias.to(dt.dtype)[:, None])


def run_recurrence(a: Tensor, step: Tensor, inflow: Tensor) -> Iterator[Tensor]:
    """Yield the state after every token: the state before decays, and the inflow (..., time, states) is added."""
    decay = torch.exp(a[None, :, None, :] * step[..., None])
    state = torch.zeros_like(inflow[:, :, 0])
    for time in range(inflow.shape[2]):
        state = decay[:, :, time] * state + inflow[:, :, time]
        yield state


class Mixer(nn.Module):
    """Mix tokens as transformers' MambaMixer does, with its weights; each part is a module that a mode may replace."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.in_proj: nn.Module = mixer.in_proj
        self.conv1d: nn.Module = CausalConv(mixer.conv1d.weight, mixer.conv1d.bias)
        self.x_proj: nn.Module = mixer.x_proj
        self.dt_proj: nn.Module = StepProjection(mixer.dt_proj.weight)
        self.scan: nn.Module = SelectiveScan(mixer.A_log, mixer.D, mixer.dt_proj.bias)
        self.out_proj: nn.Module = mixer.out_proj
        self.sizes = [int(mixer.time_step_rank), int(mixer.ssm_state_size), int(mixer.ssm_state_size)]

    def forward(self, hidden_states: Tensor, cache_params: Any = None, attention_mask: Any = None) -> Tensor:
        """Return the mixed tokens (batch, time, width); whole sequences only, without cache and padding."""
        if cache_params is not None or attention_mask is not None:
            raise NotImplementedError("this mixer takes whole sequences: use_cache=False and no attention mask")
        values, gate = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        u = self.conv1d(values)
        dt, b, c = torch.split(self.x_proj(to_float(u).transpose(1, 2)), self.sizes, dim=-1)
        mixed = self.scan(u, self.dt_proj(dt), b, c) * F.silu(gate)
        return self.out_proj(mixed.transpose(1, 2).to(hidden_states.dtype))  # type: ignore[no-any-return]


def replace_mixers(model: nn.Module) -> nn.Module:
    """Put this mixer in the place of every one of transformers'; return the model."""
    for block in model.get_submodule("backbone.layers").children():
        block.mixer = Mixer(block.mixer)
    return model


def list_mixers(model: nn.Module) -> list[Mixer]:
    """Return the mixers of a model, first to last."""
    return [module for module in model.modules() if isinstance(module, Mixer)]
