"""One frame of eight: depthwise convolutions of stride 2 that never look at padding."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from nest_ssl.features import mask_until

KERNEL, STRIDE = 3, 2
PADDING = (KERNEL - 1) // 2
LengthT = TypeVar("LengthT", int, Tensor)


class ConvSubsampling(nn.Module):
    """Halve time and frequency several times, then project each frame to the width of the encoder."""

    def __init__(self, factor: int, feat_in: int, feat_out: int, channels: int) -> None:
        super().__init__()
        halvings = factor.bit_length() - 1
        activation = nn.ReLU(inplace=True)  # one object, which NeMo's recordings show under one name
        layers: list[nn.Module] = [nn.Conv2d(1, channels, KERNEL, STRIDE, PADDING), activation]
        for _ in range(halvings - 1):
            layers.append(nn.Conv2d(channels, channels, KERNEL, STRIDE, PADDING, groups=channels))
            layers.append(nn.Conv2d(channels, channels, kernel_size=1))
            layers.append(activation)
        self.conv = MaskedConvSequential(*layers)
        frequencies = feat_in
        for _ in range(halvings):
            frequencies = halve_length(frequencies)
        self.out = nn.Linear(channels * frequencies, feat_out)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, fewer frames, width) and the lengths, from (batch, frames, mel) and theirs."""
        x, lengths = self.conv(x, lengths)
        batch, _, time, _ = x.shape
        return self.out(x.transpose(1, 2).reshape(batch, time, -1)), lengths


class MaskedConvSequential(nn.Sequential):
    """Layers before each of which padded frames are set to zero again."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return (batch, channels, frames, frequencies) and the lengths."""
        x = x[:, None]
        mask = mask_frames(x, lengths)
        for layer in self:
            x = layer(x * mask)
            if isinstance(layer, nn.Conv2d) and layer.stride != (1, 1):
                lengths = halve_length(lengths)
                mask = mask_frames(x, lengths)
        return x * mask, lengths


def mask_frames(x: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for frames that are there and 0 for padding, to multiply (batch, channels, frames, ...) with."""
    return mask_until(lengths, x.shape[2])[:, None, :, None].to(x.dtype)


def halve_length(length: LengthT) -> LengthT:
    """Return the length after a convolution of stride 2."""
    return (length + 2 * PADDING - KERNEL) // STRIDE + 1
