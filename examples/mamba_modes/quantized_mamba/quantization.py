"""Symmetric int8: codes with one scale, and a linear layer that multiplies codes and accumulates in int32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LARGEST_CODE = 127


@dataclass(frozen=True)
class Int8Tensor:
    """Hold a tensor as int8 codes: a value is its code times the scale."""

    codes: Tensor
    scale: float

    def dequantize(self) -> Tensor:
        """Return the values in FP32; they lie on the int8 grid."""
        return self.codes.float() * self.scale


def quantize(values: Tensor | Int8Tensor, scale: float) -> Int8Tensor:
    """Return the nearest codes; values beyond the grid are clipped. Codes of the same scale stay as they are."""
    if isinstance(values, Int8Tensor):
        if values.scale == scale:
            return values
        values = values.dequantize()
    codes = torch.round(values.float() / scale).clamp(-LARGEST_CODE, LARGEST_CODE)
    return Int8Tensor(codes.to(torch.int8), scale)


def to_float(values: Tensor | Int8Tensor) -> Tensor:
    """Return values in floating point, whatever they are held in."""
    return values.dequantize() if isinstance(values, Int8Tensor) else values


def round_to_grid(values: Tensor | Int8Tensor, scale: float) -> Tensor:
    """Return the nearest values on the int8 grid, in FP32."""
    return quantize(values, scale).dequantize()


def find_limit(values: Tensor, percentile: float) -> float:
    """Return the size that this share of the values does not exceed."""
    sizes = values.detach().float().abs().flatten()
    rank = max(1, math.ceil(percentile * sizes.numel()))
    return float(sizes.kthvalue(rank).values)


def get_scale(limit: float) -> float:
    """Return the scale of a grid that ends at a limit; values that are all zero fit any."""
    return limit / LARGEST_CODE if limit > 0 else 1.0


def quantize_tensor(weight: Tensor) -> Int8Tensor:
    """Return a weight with one scale, nothing clipped."""
    return quantize(weight.detach(), get_scale(float(weight.detach().abs().amax())))


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of a weight and one scale for each row, its output channel."""
    rows = weight.detach().float()
    limits = rows.abs().amax(dim=1)
    scales = torch.where(limits > 0, limits / LARGEST_CODE, torch.ones_like(limits))
    return torch.round(rows / scales[:, None]).to(torch.int8), scales


class Int8Linear(nn.Module):
    """Compute a linear layer in int8: static input scale, a scale per output channel, int32 sums.

    With an output scale the result is rounded to int8 as well, and returned as FP32 on that grid; without one it is
    returned as it is.
    """

    weight: Tensor
    weight_scales: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, input_scale: float, output_scale: float | None) -> None:
        super().__init__()
        codes, scales = quantize_rows(weight)
        self.register_buffer("weight", codes)
        self.register_buffer("weight_scales", scales)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self.input_scale = input_scale
        self.output_scale = output_scale

    def forward(self, values: Tensor) -> Tensor:
        """Return the layer's output for inputs of any leading shape."""
        codes = quantize(values, self.input_scale).codes
        rows = codes.reshape(-1, codes.shape[-1])
        sums = torch._int_mm(rows, self.weight.T)  # int8 times int8, summed up in int32
        output = sums.float() * (self.weight_scales * self.input_scale)
        if self.bias is not None:
            output = output + self.bias
        if self.output_scale is not None:
            output = round_to_grid(output, self.output_scale)
        return output.reshape(*codes.shape[:-1], -1)
