"""The modes: what convolution and scan compute in, and whether linear layers return int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from quantized_mamba.calibration import MixerScales, calibrate
from quantized_mamba.int8_parts import GridConv, GridScan, Handover, Int8Conv, Int8Scan, Int8StepProjection
from quantized_mamba.mixer import CausalConv, Mixer, SelectiveScan, StepProjection, list_mixers
from quantized_mamba.quantization import Int8Linear


def keep_fp32(part: nn.Module, scales: MixerScales) -> nn.Module:
    """Return a part as it is."""
    return part


def convolve_to_codes(conv: CausalConv, scales: MixerScales) -> nn.Module:
    """Return the convolution in int8 that hands int8 on."""
    return Int8Conv(conv, scales, Handover.CODES)


def convolve_to_grid(conv: CausalConv, scales: MixerScales) -> nn.Module:
    """Return the convolution in int8 that hands its result on in FP32, on the int8 grid."""
    return Int8Conv(conv, scales, Handover.GRID)


@dataclass(frozen=True)
class Recipe:
    """Say how a mode changes a mixer. Linear layers are int8 in all of them, static input scales too."""

    make_conv: Callable[[Any, MixerScales], nn.Module]
    make_scan: Callable[[Any, MixerScales], nn.Module]
    linear_outputs_int8: bool = True  # else FP32


RECIPES = {
    "0": Recipe(convolve_to_codes, Int8Scan),
    "2-0": Recipe(convolve_to_grid, Int8Scan),  # the scan requantises
    "2-1": Recipe(convolve_to_codes, Int8Scan),
    "2-2": Recipe(GridConv, GridScan),
    "2-3": Recipe(keep_fp32, Int8Scan),  # the scan requantises
    "2-4": Recipe(keep_fp32, keep_fp32),
    "3": Recipe(keep_fp32, keep_fp32, linear_outputs_int8=False),
}


def make_mode(recipe: Recipe) -> Callable[[nn.Module, Sequence[Any]], nn.Module]:
    """Return the mode as nndiff takes it: a function of a fresh model and the calibration samples."""

    def apply_mode(model: nn.Module, samples: Sequence[Any]) -> nn.Module:
        for mixer, scales in zip(list_mixers(model), calibrate(model, samples), strict=True):
            quantize_mixer(mixer, scales, recipe)
        return model

    return apply_mode


def quantize_mixer(mixer: Mixer, scales: MixerScales, recipe: Recipe) -> None:
    """Replace the parts of a mixer."""
    assert isinstance(mixer.conv1d, CausalConv)
    assert isinstance(mixer.scan, SelectiveScan)
    assert isinstance(mixer.in_proj, nn.Linear)
    assert isinstance(mixer.x_proj, nn.Linear)
    assert isinstance(mixer.dt_proj, StepProjection)
    assert isinstance(mixer.out_proj, nn.Linear)

    def choose_output(scale: float) -> float | None:
        return scale if recipe.linear_outputs_int8 else None

    in_proj, x_proj, dt_proj, out_proj = mixer.in_proj, mixer.x_proj, mixer.dt_proj, mixer.out_proj
    mixer.in_proj = Int8Linear(in_proj.weight, in_proj.bias, scales.in_proj_input, choose_output(scales.in_proj_output))
    mixer.x_proj = Int8Linear(x_proj.weight, x_proj.bias, scales.conv_output, choose_output(scales.x_proj_output))
    mixer.dt_proj = Int8StepProjection(dt_proj.weight, None, scales.x_proj_output, choose_output(scales.dt_proj_output))
    mixer.out_proj = Int8Linear(out_proj.weight, out_proj.bias, scales.out_proj_input, None)  # into the residual
    mixer.conv1d = recipe.make_conv(mixer.conv1d, scales)
    mixer.scan = recipe.make_scan(mixer.scan, scales)
