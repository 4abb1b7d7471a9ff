"""Where in a layer the error is: its worst channel, its worst token, and the share of values that were clipped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nndiff.metrics import Metrics
from nndiff.mode_facts import Place
from nndiff.modes.folder import LayerOutput
from nndiff.tensors import Shape, TensorRef

Floats = NDArray[np.float64]

_BLOCK = 1 << 15  # elements: a handful of float64 temporaries of this size stay in the L2 cache
_CHANNELS_SECOND = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "LazyConv", "LazyBatchNorm")


@dataclass(frozen=True)
class Places:
    """Hold the worst channel and token of a layer, and the share of clipped values."""

    channel: Place | None
    token: Place | None
    clipped: float


@dataclass(frozen=True)
class _Grid:
    """See a tensor as outer positions x channels x inner positions."""

    outer: int
    channels: int
    inner: int
    token_shape: Shape  # without the channels

    @property
    def tokens(self) -> int:
        return self.outer * self.inner


def find_places(reference: LayerOutput, candidate: LayerOutput, metrics: Metrics) -> Places:
    """Return where two outputs of equal shapes differ most, by mean squared error; what is not finite is left out.

    A value is clipped where the candidate is at its own largest or smallest value and the reference lies beyond it.
    """
    channel_sums: Floats | None = None
    worst_token: Place | None = None
    tokens = clipped = count = 0
    for sample, (ref, cand) in enumerate(zip(reference.parts, candidate.parts, strict=True)):
        grid = _see_grid(ref)
        sums = np.zeros(grid.channels)
        token_sums = np.zeros(grid.tokens)
        for block in _read_blocks(ref, cand, grid):
            clipped += block.add_errors(sums, token_sums, metrics.cand_min, metrics.cand_max)
        count += ref.count
        tokens += grid.tokens
        if channel_sums is None or channel_sums.shape == sums.shape:
            channel_sums = sums if channel_sums is None else channel_sums + sums
        if ref.shape and token_sums.size and grid.channels:
            worst = int(token_sums.argmax())
            mse = float(token_sums[worst]) / grid.channels
            if worst_token is None or mse > worst_token.mse:
                index = tuple(int(axis) for axis in np.unravel_index(worst, grid.token_shape))
                worst_token = Place(index, mse, sample if len(reference.parts) > 1 else None)
    channel = None
    if channel_sums is not None and channel_sums.size and tokens and reference.parts[0].shape:
        worst = int(channel_sums.argmax())
        channel = Place((worst,), float(channel_sums[worst]) / tokens)
    return Places(channel, worst_token, clipped / count if count else math.nan)


def _see_grid(tensor: TensorRef) -> _Grid:
    """Return a tensor's channels: its last axis, the second of images and of what convolutions return."""
    shape = tensor.shape
    is_second = len(shape) >= 4 or (len(shape) == 3 and tensor.site.cls.startswith(_CHANNELS_SECOND))
    axis = 1 if is_second else len(shape) - 1
    if not shape:
        return _Grid(1, 1, 1, ())
    return _Grid(
        math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), (*shape[:axis], *shape[axis + 1 :])
    )


@dataclass(frozen=True)
class _Block:
    """Hold some outer positions of both sides, all channels, all inner positions."""

    ref: Floats
    cand: Floats
    start: int  # first outer position
    grid: _Grid

    def add_errors(self, channel_sums: Floats, token_sums: Floats, low: float, high: float) -> int:
        """Add the squared errors to the sums; return how many values are clipped."""
        with np.errstate(all="ignore"):
            squares = np.square(self.cand - self.ref)
        squares[~np.isfinite(squares)] = 0.0
        table = squares.reshape(-1, self.grid.channels, self.grid.inner)
        channel_sums += table.sum(axis=(0, 2))
        outer = len(table)
        begin = self.start * self.grid.inner
        token_sums[begin : begin + outer * self.grid.inner] = table.sum(axis=1).reshape(-1)
        beyond = (self.cand == high) & (self.ref > high)
        beyond |= (self.cand == low) & (self.ref < low)
        return int(np.count_nonzero(beyond))


def _read_blocks(ref: TensorRef, cand: TensorRef, grid: _Grid) -> Iterator[_Block]:
    width = grid.channels * grid.inner
    if not width:
        return
    step = max(1, _BLOCK // width)
    for start in range(0, grid.outer, step):
        stop = min(grid.outer, start + step)
        first, last = start * width, stop * width
        ref_block = ref.dtype.decode(ref.read(first, last)).astype(np.float64)
        yield _Block(ref_block, cand.dtype.decode(cand.read(first, last)).astype(np.float64), start, grid)
