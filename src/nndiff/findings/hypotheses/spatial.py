"""Convolution, pooling and resizing in NumPy, small and clear: what a layer of some settings makes of numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nndiff.findings.hypotheses.operands import Array

LARGEST_WINDOWS = 1 << 24  # numbers under all places of a kernel that are held at once

Sizes = tuple[int, ...]
_PAD_MODES = {
    "zeros": "constant",
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True)
class Window:
    """Describe how a kernel moves over the spatial axes of an input."""

    kernel: Sizes
    stride: Sizes
    padding: tuple[tuple[int, int], ...]  # in front and behind, for each axis
    dilation: Sizes
    mode: str = "zeros"

    @property
    def spans(self) -> Sizes:
        """Return how many places a kernel covers along each axis."""
        return tuple(step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilation, strict=True))

    def measure_output(self, sizes: Sizes) -> Sizes | None:
        """Return the spatial sizes of the output; None if the kernel does not fit."""
        result = []
        for size, (front, behind), span, stride in zip(sizes, self.padding, self.spans, self.stride, strict=True):
            room = size + front + behind - span
            can_pad = max(front, behind) < size or self.mode in ("zeros", "constant", "replicate")
            if room < 0 or stride < 1 or min(front, behind) < 0 or not can_pad:
                return None
            result.append(room // stride + 1)
        return tuple(result)

    def collect(self, values: Array, fill: float = 0.0) -> Array:
        """Return what is under the kernel at each place: spatial axes of the output, then those of the kernel."""
        rank = len(self.kernel)
        edges = [(0, 0)] * (values.ndim - rank) + list(self.padding)
        mode: Any = _PAD_MODES[self.mode]
        options = {"constant_values": fill} if mode == "constant" else {}
        padded = np.pad(values, edges, mode=mode, **options)
        axes = tuple(range(values.ndim - rank, values.ndim))
        windows: Array = sliding_window_view(padded, self.spans, axis=axes)
        front = (slice(None),) * (values.ndim - rank)
        taken: Array = windows[front + _step(self.stride) + _step(self.dilation)]
        return taken

    def is_too_large(self, shape: Sizes) -> bool:
        """Return True if the numbers under all places of the kernel are too many."""
        output = self.measure_output(shape[len(shape) - len(self.kernel) :])
        counted = math.prod(shape[: len(shape) - len(self.kernel)]) * math.prod(self.kernel)
        return output is not None and math.prod(output) * counted > LARGEST_WINDOWS


def _step(sizes: Sizes) -> tuple[slice, ...]:
    return tuple(slice(None, None, size) for size in sizes)


def convolve(values: Array, weight: Array, bias: Array | None, window: Window) -> Array | None:
    """Return a convolution as torch computes it; None if shapes do not fit. Groups follow from the shapes."""
    rank = weight.ndim - 2
    if values.ndim == rank + 1:
        single = convolve(values[None], weight, bias, window)
        return None if single is None else single[0]
    if values.ndim != rank + 2 or values.shape[1] % weight.shape[1]:
        return None
    groups = values.shape[1] // weight.shape[1]
    output = window.measure_output(values.shape[2:])
    if output is None or weight.shape[0] % groups or window.is_too_large(values.shape):
        return None
    windows = window.collect(values)
    batch, places, size = values.shape[0], math.prod(output), weight[0].size
    grouped = windows.reshape(batch, groups, weight.shape[1], *output, *window.kernel)
    grouped = np.moveaxis(grouped, 2, 2 + rank).reshape(batch, groups, places, size)
    kernels = weight.reshape(groups, -1, size).transpose(0, 2, 1)
    made: Array = (grouped @ kernels).transpose(0, 1, 3, 2).reshape(batch, weight.shape[0], *output)
    return made if bias is None else made + bias.reshape(1, -1, *(1,) * rank)


def convolve_transposed(
    values: Array, weight: Array, bias: Array | None, window: Window, extra: Sizes, groups: int
) -> Array | None:
    """Return a transposed convolution: zeros between the inputs, then a convolution with the flipped kernel."""
    rank = weight.ndim - 2
    if values.ndim != rank + 2 or values.shape[1] != weight.shape[0] or weight.shape[0] % groups:
        return None
    sizes = [(size - 1) * stride + 1 for size, stride in zip(values.shape[2:], window.stride, strict=True)]
    spread = np.zeros((*values.shape[:2], *sizes))
    spread[(slice(None), slice(None)) + _step(window.stride)] = values  # noqa: RUF005  # Python 3.10
    flipped = np.flip(weight, tuple(range(2, weight.ndim)))
    kernel = flipped.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).swapaxes(1, 2)
    kernel = kernel.reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])
    edges = []
    for span, (front, behind), more in zip(window.spans, window.padding, extra, strict=True):
        edges.append((span - 1 - front, span - 1 - behind + more))
    inner = Window(window.kernel, (1,) * rank, tuple(edges), window.dilation)
    return convolve(spread, kernel, bias, inner)


@dataclass(frozen=True)
class Pool:
    """Describe a pooling."""

    kind: str  # max, mean
    window: Window
    ceil: bool = False
    counts_padding: bool = True

    def run(self, values: Array) -> Array | None:
        """Return the pooled numbers; None if the kernel does not fit."""
        window, rank = self.window, len(self.window.kernel)
        if values.ndim < rank or window.is_too_large(values.shape):
            return None
        sizes = values.shape[values.ndim - rank :]
        edges = list(window.padding)
        if self.ceil:
            for axis, (size, (front, behind)) in enumerate(zip(sizes, window.padding, strict=True)):
                span, stride = window.spans[axis], window.stride[axis]
                count = -(-(size + front + behind - span) // stride) + 1
                if (count - 1) * stride >= size + front:  # the last window would start behind the input
                    count -= 1
                edges[axis] = front, max(behind, (count - 1) * stride + span - size - front)
        whole = Window(window.kernel, window.stride, tuple(edges), window.dilation)
        if whole.measure_output(sizes) is None:
            return None
        axes = tuple(range(-rank, 0))
        if self.kind == "max":
            return np.asarray(whole.collect(values, -np.inf).max(axes))
        sums = whole.collect(values).sum(axes)
        inside: Array = np.ones(sizes)
        if self.counts_padding:
            inside = np.pad(inside, window.padding, constant_values=1.0)
            rest = [(0, edge[1] - padding[1]) for edge, padding in zip(edges, window.padding, strict=True)]
            counts = Window(window.kernel, window.stride, tuple(rest), window.dilation).collect(inside)
        else:
            counts = whole.collect(inside)
        with np.errstate(all="ignore"):
            return np.asarray(sums / counts.sum(axes))


def pool_adaptively(values: Array, sizes: Sizes, kind: str) -> Array:
    """Return adaptive pooling to some spatial sizes."""
    for axis, size in enumerate(sizes, values.ndim - len(sizes)):
        length = values.shape[axis]
        parts = []
        for place in range(size):
            part = np.take(values, range(place * length // size, -(-(place + 1) * length // size)), axis)
            parts.append(part.max(axis) if kind == "max" else part.mean(axis))
        values = np.stack(parts, axis)
    return values


def make_resize_matrix(before: int, after: int, kind: str) -> Array:
    """Return the matrix that resizes an axis: nearest, nearest-exact, linear, cubic, with aligned corners or not."""
    kind, _, aligned = kind.partition(", ")
    places = np.arange(after)
    matrix = np.zeros((after, before))
    if kind.startswith("nearest"):
        shift = 0.5 if kind == "nearest-exact" else 0.0
        source = np.minimum(np.floor((places + shift) * before / after).astype(int), before - 1)
        matrix[places, source] = 1
        return matrix
    centers = (
        places * ((before - 1) / (after - 1) if after > 1 else 0.0)
        if aligned
        else (places + 0.5) * before / after - 0.5
    )
    if kind == "linear":
        centers = np.maximum(centers, 0)
    first = np.floor(centers).astype(int)
    part = centers - first
    taps = {0: 1 - part, 1: part} if kind == "linear" else {step: _weigh_cubic(part - step) for step in (-1, 0, 1, 2)}
    for step, share in taps.items():
        np.add.at(matrix, (places, np.clip(first + step, 0, before - 1)), share)
    return matrix


def _weigh_cubic(distance: Array, sharpness: float = -0.75) -> Array:
    d = np.abs(distance)
    near = ((sharpness + 2) * d - (sharpness + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * sharpness - 4 * sharpness
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


RESIZES = ("nearest", "nearest-exact", "linear", "linear, corners aligned", "cubic", "cubic, corners aligned")


def resize(values: Array, sizes: Sizes, kind: str) -> Array:
    """Return numbers resized along their last axes."""
    for axis, size in enumerate(sizes, values.ndim - len(sizes)):
        matrix = make_resize_matrix(values.shape[axis], size, kind)
        values = np.moveaxis(np.tensordot(values, matrix, (axis, 1)), -1, axis)
    return values


def read_sizes(value: Any, rank: int) -> Sizes | None:
    """Return a setting of a layer as one number for each spatial axis."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return (value,) * rank
    if isinstance(value, (list, tuple)) and len(value) in (1, rank) and all(isinstance(size, int) for size in value):
        return tuple(value) * (rank // len(value))
    return None


def read_window(settings: Mapping[str, Any], kernel: Sizes) -> Window | None:
    """Return how a layer's kernel moves, by its settings; where one is missing, by torch's default."""
    rank = len(kernel)
    dilation = read_sizes(settings.get("dilation", 1), rank)
    stride = read_sizes(settings.get("stride") or 1, rank)
    padding = settings.get("padding", 0)
    if stride is None or dilation is None:
        return None
    if padding == "same":
        edges = tuple(split_same(step * (size - 1)) for size, step in zip(kernel, dilation, strict=True))
    else:
        sizes = (0,) * rank if padding == "valid" else read_sizes(padding, rank)
        if sizes is None:
            return None
        edges = tuple((size, size) for size in sizes)
    return Window(kernel, stride, edges, dilation, str(settings.get("padding_mode", "zeros")))


def split_same(total: int) -> tuple[int, int]:
    """Return padding split as for SAME: the odd one behind."""
    return total // 2, total - total // 2


def list_paddings(window: Window, sizes: Sizes) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """Yield other ways to pad, with what they are called."""
    spans, strides = window.spans, window.stride
    yield "0", tuple((0, 0) for _ in spans)
    totals = [
        max(0, (-(-size // stride) - 1) * stride + span - size)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    yield "SAME, the odd one behind", tuple(split_same(total) for total in totals)
    yield "SAME, the odd one in front", tuple(split_same(total)[::-1] for total in totals)
    for name, totals in (
        ("the whole kernel", [span - 1 for span in spans]),
        ("both ends' padding", [front + behind for front, behind in window.padding]),
    ):
        yield f"in front only ({name}: causal)", tuple((total, 0) for total in totals)
        yield f"behind only ({name})", tuple((0, total) for total in totals)
    for size in range(1, max(spans)):
        yield f"{size}", tuple((size, size) for _ in spans)
    if len(spans) == 2:
        for first, second in itertools.product(range(max(spans)), repeat=2):
            if first != second:
                yield f"({first}, {second})", ((first, first), (second, second))
