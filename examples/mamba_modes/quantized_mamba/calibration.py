"""Static scales: how large the values at every int8 boundary of a mixer get on calibration samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from quantized_mamba.mixer import Mixer, SelectiveScan, list_mixers
from quantized_mamba.quantization import find_limit, get_scale, to_float

PERCENTILE = 0.9999  # of the values of a sample; those beyond are clipped


@dataclass(frozen=True)
class MixerScales:
    """Hold the scales of one mixer. What one part returns the next one takes, with the same scale."""

    in_proj_input: float
    in_proj_output: float
    conv_output: float  # what x_proj and the scan take
    x_proj_output: float  # dt, B and C
    dt_proj_output: float
    state: float
    out_proj_input: float


def calibrate(model: nn.Module, samples: Sequence[Any], percentile: float = PERCENTILE) -> list[MixerScales]:
    """Return the scales of every mixer: a grid ends at the largest percentile that any sample showed."""
    mixers = list_mixers(model)
    limits = [dict.fromkeys((field.name for field in fields(MixerScales)), 0.0) for _ in mixers]
    handles = []
    for mixer, mixer_limits in zip(mixers, limits, strict=True):
        handles += _watch_mixer(mixer, mixer_limits, percentile)
    try:
        with torch.no_grad():
            for sample in samples:
                model(**sample)
    finally:
        for handle in handles:
            handle.remove()
    scales = []
    for mixer_limits in limits:
        scales.append(MixerScales(**{name: get_scale(limit) for name, limit in mixer_limits.items()}))
    return scales


def _watch_mixer(mixer: Mixer, limits: dict[str, float], percentile: float) -> list[Any]:
    """Let the limits of a mixer grow with what its parts see; return the handles of the hooks."""

    def grow(name: str, values: Tensor) -> None:
        limits[name] = max(limits[name], find_limit(values, percentile))

    def watch_input(name: str) -> Callable[..., None]:
        return lambda module, args: grow(name, args[0])

    def watch_output(name: str) -> Callable[..., None]:
        return lambda module, args, output: grow(name, to_float(output))

    def watch_states(scan: SelectiveScan, args: tuple[Tensor, ...]) -> None:
        u, dt, b, _ = args
        grow("state", torch.stack(list(scan.compute_states(u, dt, b))))  # of all tokens, as everywhere

    return [
        mixer.in_proj.register_forward_pre_hook(watch_input("in_proj_input")),
        mixer.in_proj.register_forward_hook(watch_output("in_proj_output")),
        mixer.conv1d.register_forward_hook(watch_output("conv_output")),
        mixer.x_proj.register_forward_hook(watch_output("x_proj_output")),
        mixer.dt_proj.register_forward_hook(watch_output("dt_proj_output")),
        mixer.scan.register_forward_pre_hook(watch_states),
        mixer.out_proj.register_forward_pre_hook(watch_input("out_proj_input")),
    ]
