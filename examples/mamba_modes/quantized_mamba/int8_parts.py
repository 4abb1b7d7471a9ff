"""Convolution and scan in int8 arithmetic, and the same in FP32 on the int8 grid."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from quantized_mamba.calibration import MixerScales
from quantized_mamba.mixer import CausalConv, SelectiveScan, compute_step, run_recurrence
from quantized_mamba.quantization import (
    Int8Linear,
    Int8Tensor,
    quantize,
    quantize_rows,
    quantize_tensor,
    round_to_grid,
)


class Handover(Enum):
    """Say what an int8 convolution hands to the scan."""

    CODES = "int8"
    GRID = "the int8 grid in FP32"


class Int8Conv(nn.Module):
    """Convolve int8 inputs with int8 weights, sums in int32; SiLU in FP32; the result is rounded to int8."""

    weight: Tensor
    weight_scales: Tensor
    bias: Tensor | None

    def __init__(self, conv: CausalConv, scales: MixerScales, handover: Handover) -> None:
        super().__init__()
        codes, weight_scales = quantize_rows(conv.weight[:, 0])
        self.register_buffer("weight", codes)
        self.register_buffer("weight_scales", weight_scales)
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())
        self.input_scale, self.output_scale = scales.in_proj_output, scales.conv_output
        self.handover = handover

    def forward(self, values: Tensor) -> Tensor | Int8Tensor:
        """Return (batch, channels, time) as codes, or as FP32 on the same grid."""
        kernel, length = self.weight.shape[1], values.shape[-1]
        padded = F.pad(quantize(values, self.input_scale).codes.int(), (kernel - 1, 0))
        sums = torch.zeros_like(padded[..., :length])
        for tap in range(kernel):
            sums += padded[..., tap : tap + length] * self.weight[:, tap, None].int()
        output = sums.float() * (self.weight_scales * self.input_scale)[:, None]
        if self.bias is not None:
            output = output + self.bias[:, None]
        rounded = quantize(F.silu(output), self.output_scale)
        return rounded if self.handover is Handover.CODES else rounded.dequantize()


class GridConv(CausalConv):
    """Convolve as Int8Conv does, in FP32: inputs, weights and outputs lie on the int8 grid."""

    def __init__(self, conv: CausalConv, scales: MixerScales) -> None:
        codes, weight_scales = quantize_rows(conv.weight[:, 0])
        super().__init__((codes.float() * weight_scales[:, None])[:, None], conv.bias)
        self.input_scale, self.output_scale = scales.in_proj_output, scales.conv_output

    def forward(self, values: Tensor) -> Tensor:
        """Return (batch, channels, time) in FP32 on the grid."""
        return round_to_grid(super().forward(round_to_grid(values, self.input_scale)), self.output_scale)


class Int8Scan(nn.Module):
    """Scan int8 operands: products of codes in int32, the state carried in FP32 and read as int8, sums in int32.

    A is rounded in the logarithm, where a step of the grid is the same share of every value.
    """

    a: Tensor
    d: Tensor
    dt_bias: Tensor

    def __init__(self, scan: SelectiveScan, scales: MixerScales) -> None:
        super().__init__()
        d = quantize_tensor(scan.d)
        self.register_buffer("a", -torch.exp(quantize_tensor(scan.a_log).dequantize()))
        self.register_buffer("d", d.codes)
        self.register_buffer("dt_bias", scan.dt_bias.detach())
        self.d_scale = d.scale
        self.scales = scales

    def forward(self, u: Tensor | Int8Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return (batch, channels, time) in FP32."""
        scales = self.scales
        u = quantize(u, scales.conv_output)
        b_codes, c_codes = (quantize(values, scales.x_proj_output).codes.int() for values in (b, c))
        u_codes = u.codes.int()
        step = compute_step(round_to_grid(dt, scales.dt_proj_output), self.dt_bias)
        products = b_codes[:, None] * u_codes[..., None]
        inflow = step[..., None] * (products.float() * (scales.x_proj_output * u.scale))
        outputs = []
        for time, state in enumerate(run_recurrence(self.a, step, inflow)):
            products = quantize(state, scales.state).codes.int() * c_codes[:, time, None]
            outputs.append(products.sum(-1, dtype=torch.int32).float() * (scales.state * scales.x_proj_output))
        skipped = (u_codes * self.d[:, None].int()).float() * (u.scale * self.d_scale)
        return torch.stack(outputs, dim=-1) + skipped


class GridScan(nn.Module):
    """Scan as Int8Scan does, in FP32: every operand, and the state where it is read, lies on the int8 grid."""

    a: Tensor
    d: Tensor
    dt_bias: Tensor

    def __init__(self, scan: SelectiveScan, scales: MixerScales) -> None:
        super().__init__()
        self.register_buffer("a", -torch.exp(quantize_tensor(scan.a_log).dequantize()))
        self.register_buffer("d", quantize_tensor(scan.d).dequantize())
        self.register_buffer("dt_bias", scan.dt_bias.detach())
        self.scales = scales

    def forward(self, u: Tensor | Int8Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return (batch, channels, time) in FP32."""
        scales = self.scales
        u = round_to_grid(u, scales.conv_output)
        b, c = (round_to_grid(values, scales.x_proj_output) for values in (b, c))
        step = compute_step(round_to_grid(dt, scales.dt_proj_output), self.dt_bias)
        inflow = step[..., None] * b[:, None] * u[..., None]
        outputs = []
        for time, state in enumerate(run_recurrence(self.a, step, inflow)):
            outputs.append((round_to_grid(state, scales.state) @ c[:, time, :, None])[:, :, 0])
        return torch.stack(outputs, dim=-1) + u * self.d[:, None]


class Int8StepProjection(Int8Linear):
    """Project the time step to all channels in int8."""

    def forward(self, values: Tensor) -> Tensor:
        """Return (batch, channels, time) of (batch, time, rank)."""
        return super().forward(values).transpose(1, 2)
