"""The noise floor: how far everything moves when the weights and inputs of a model move by half a unit of rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.perturbation import move_inputs, moved_weights, weights_in_channels_last
from nndiff.recording.capture.plan import Plan
from nndiff.recording.capture.run import RunOptions, run_once
from nndiff.recording.capture.sinks import DigestSink
from nndiff.recording.capture.state import State
from nndiff.recording.format.arrays import raw_array
from nndiff.recording.format.digests import RawTensor
from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.keep_levels import Keep
from nndiff.recording.reader import Recording
from nndiff.tensors import Phase, Site, Slot, TensorRef

_BLOCK = 1 << 18  # elements
_GIVEN = (Slot.MODEL_INPUT, Slot.PARAM, Slot.BUFFER_BEFORE)  # not computed: they hold one rounding each


def measure_noise(
    model: torch.nn.Module,
    inputs: Inputs,
    recording: Recording,
    keep: Keep,
    plan: Plan,
    options: RunOptions,
    state: State,
    draws: int,
) -> dict[str, Any]:
    """Return the metadata of the noise: for every tensor kept in full, its largest movement over some draws."""
    recorded = {name: tensor for name, tensor in recording.source().tensors.items() if not tensor.missing}
    movements = dict.fromkeys(recorded, _STILL)
    for draw in range(draws):
        # another stream than the run's own, so that no weight moves as a dropout mask falls
        seed = (options.seed + 1 + draw) * 0x9E3779B97F4A7C15 % (1 << 63)

        def run_moved(seed: int = seed) -> Mapping[str, _Movement]:
            generator = torch.Generator().manual_seed(seed)
            state.restore(keep_modes=True)
            sink = MovementSink(keep, recorded)
            with moved_weights(model, generator):
                run_once(model, move_inputs(inputs, generator), sink, plan, options, state)
            return sink.movements

        moved = _run_in_channels_last(model, run_moved) if draw % 2 else run_moved()
        for name, tensor in recorded.items():
            if tensor.site.slot not in _GIVEN:
                # a site that the moved model does not reach is as uncertain as can be
                movements[name] = movements[name].join(moved.get(name, _UNBOUNDED))
    state.restore(keep_modes=True)
    return {"draws": draws, "floors": {name: movements[name].get_floor(tensor) for name, tensor in recorded.items()}}


def _run_in_channels_last(
    model: torch.nn.Module, run: Callable[[], Mapping[str, _Movement]]
) -> Mapping[str, _Movement]:
    """Return the movements of a run with the other kernels of convolutions; a plain run where the model takes none."""
    with weights_in_channels_last(model):
        try:
            return run()
        except Exception:  # code that views what is not contiguous, or asserts that it is
            pass
    return run()


class _Movement(NamedTuple):
    """Hold how far the elements of a tensor moved at most, and the largest of those that did."""

    distance: float
    largest: float

    def join(self, other: _Movement) -> _Movement:
        """Return the movement over two draws."""
        return _Movement(max(self.distance, other.distance), max(self.largest, other.largest))

    def get_floor(self, tensor: TensorRef) -> float:
        """Return the noise floor: the movement, or what rounding a result once may do.

        A number that did not move by luck is rounded all the same. Where others moved, those that stayed are
        constants, such as the -1e38 of masks: their rounding says nothing about the rest.
        """
        largest = self.largest
        if not largest:
            stats = tensor.trace.stats
            largest = stats.abs_max if stats is not None else float(np.abs(tensor.numpy()).max(initial=0))
        return max(self.distance, tensor.dtype.half_ulp(largest))


_STILL = _Movement(0.0, 0.0)
_UNBOUNDED = _Movement(math.inf, 0.0)


class MovementSink(DigestSink):
    """Compare a run with a recorded one, and keep by how much each tensor moved."""

    def __init__(self, keep: Keep, recorded: Mapping[str, TensorRef]) -> None:
        super().__init__(keep)
        self.movements: dict[str, _Movement] = {}  # by name
        self._recorded = recorded

    def add_tensor(
        self,
        site: Site,
        load: Callable[[], RawTensor],
        *,
        keep: str | None = None,
        same_as: TensorEvent | None = None,
        forward: int | None = None,
        over: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent:
        """Keep the digest of a tensor, and its movement."""
        load = lru_cache(maxsize=1)(load)
        recorded = self._recorded.get(site.name)
        if recorded is not None and recorded.site.slot not in _GIVEN:
            before = self._recorded.get(same_as.site.name) if same_as else None
            is_same = before is not None and before.trace.digest == recorded.trace.digest
            if same_as and is_same and same_as.site.name in self.movements:
                self.movements[site.name] = self.movements[same_as.site.name]
            else:
                self.movements[site.name] = _measure_movement(recorded, load())
        return super().add_tensor(site, load, keep=keep, same_as=same_as, forward=forward, over=over, phase=phase)

    def add_value(self, site: Site, value: Any, phase: Phase = "forward") -> int:
        """Keep a plain value, and the movement of a number."""
        recorded = self._recorded.get(site.name)
        if recorded is not None and isinstance(value, (bool, int, float)):
            self.movements[site.name] = _measure_movement(recorded, raw_array(np.asarray(value)))
        elif recorded is not None and isinstance(value, str):
            is_same = bytes(recorded.read(0, recorded.count)) == value.encode("utf-8", "surrogatepass")
            self.movements[site.name] = _STILL if is_same else _UNBOUNDED
        return super().add_value(site, value, phase)


def _measure_movement(recorded: TensorRef, moved: RawTensor) -> _Movement:
    """Return how far elements moved; without bound where shapes differ, or numbers that are not finite."""
    if recorded.shape != moved.shape or recorded.dtype != moved.dtype:
        return _UNBOUNDED
    wide = np.complex128 if recorded.dtype.kind == "complex" else np.float64
    movement = _STILL
    with np.errstate(all="ignore"):
        for start in range(0, recorded.count, _BLOCK):
            raw = recorded.read(start, min(start + _BLOCK, recorded.count))
            before = recorded.dtype.decode(raw).astype(wide)
            after = moved.dtype.decode(moved.flat[start : start + _BLOCK]).astype(wide)
            distance = np.abs(after - before)
            distance[(before == after) | (np.isnan(before) & np.isnan(after))] = 0.0
            worst = float(distance.max(initial=0.0))
            if not math.isfinite(worst):
                return _UNBOUNDED
            largest = float(np.max(np.abs(before), where=distance > 0, initial=0.0))
            movement = movement.join(_Movement(worst, largest))
    return movement
