"""Where in a layer the error is: its worst channel, its worst token, and the share of values that were clipped."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from nndiff.facts.modes import Place
from nndiff.metrics import Metrics
from nndiff.modes.folder import LayerOutput
from nndiff.recording.format.digests import count_workers
from nndiff.stats.places import Floats, Grid, Table, add_errors
from nndiff.tensors import Shape, TensorRef

_BLOCK = 1 << 17  # elements: both sides stay in the L2 cache
_CHANNELS_SECOND = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "LazyConv", "LazyBatchNorm")


@dataclass(frozen=True)
class Places:
    """Hold the worst channel and token of a layer, and the share of clipped values."""

    channel: Place | None
    token: Place | None
    clipped: float


@dataclass
class _Errors:
    """Gather the squared errors of one tensor."""

    by_channel: Floats
    by_token: Floats
    clipped: int = 0


def find_places(reference: LayerOutput, candidate: LayerOutput, metrics: Metrics) -> Places:
    """Return where two outputs of equal shapes differ most, by mean squared error; what is not finite is left out.

    A value is clipped where the candidate is at its own largest or smallest value and the reference lies beyond it.
    """
    by_channel: Floats | None = None
    worst_token: Place | None = None
    tokens = clipped = count = 0
    for sample, (ref, cand) in enumerate(zip(reference.parts, candidate.parts, strict=True)):
        errors = _sum_errors(ref, cand, metrics)
        clipped += errors.clipped
        count += ref.count
        if not ref.count or not ref.shape:
            continue
        tokens += errors.by_token.size
        if by_channel is None or by_channel.shape == errors.by_channel.shape:
            by_channel = errors.by_channel if by_channel is None else by_channel + errors.by_channel
        worst = int(errors.by_token.argmax())
        mse = float(errors.by_token[worst]) / errors.by_channel.size
        if worst_token is None or mse > worst_token.mse:
            shape = list(ref.shape)
            del shape[_find_channel_axis(ref)]
            index = tuple(int(axis) for axis in np.unravel_index(worst, shape))
            worst_token = Place(index, mse, sample if len(reference.parts) > 1 else None)
    channel = None
    if by_channel is not None:
        worst = int(by_channel.argmax())
        channel = Place((worst,), float(by_channel[worst]) / tokens)
    return Places(channel, worst_token, clipped / count if count else math.nan)


def _find_channel_axis(tensor: TensorRef) -> int:
    """Return the axis of the channels: the last, but the second of images and of what convolutions return."""
    is_second = tensor.site.cls.startswith(_CHANNELS_SECOND)
    return 1 if len(tensor.shape) >= 4 or (len(tensor.shape) == 3 and is_second) else len(tensor.shape) - 1


def _sum_errors(ref: TensorRef, cand: TensorRef, metrics: Metrics) -> _Errors:
    """Return the squared errors of two tensors, summed on every core."""
    shape: Shape = ref.shape or (1,)
    axis = max(0, _find_channel_axis(ref))
    channels, inner = shape[axis], math.prod(shape[axis + 1 :])
    outer = math.prod(shape[:axis])
    width = channels * inner
    errors = _Errors(np.zeros(channels), np.zeros(outer * inner))
    if not ref.count:
        return errors
    ends = (metrics.cand_min, metrics.cand_max)

    def sum_rows(first: int, last: int) -> tuple[Floats, int]:
        by_channel = np.zeros(channels)
        clipped = 0
        step = max(1, _BLOCK // width)
        for start in range(first, last, step):
            stop = min(last, start + step)
            sides = [Table(side.read(start * width, stop * width), side.dtype) for side in (ref, cand)]
            by_token = errors.by_token[start * inner : stop * inner]
            clipped += add_errors(sides[0], sides[1], Grid(channels, inner), ends, by_channel, by_token)
        return by_channel, clipped

    workers = min(count_workers(), -(-ref.count // _BLOCK))
    cuts = [outer * worker // workers for worker in range(workers + 1)]
    for by_channel, clipped in _get_thread_pool().map(sum_rows, cuts[:-1], cuts[1:]):
        errors.by_channel += by_channel
        errors.clipped += clipped
    return errors


@cache
def _get_thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count_workers(), thread_name_prefix="nndiff-places")
