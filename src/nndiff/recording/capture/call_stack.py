"""The stack of running calls: which module was entered when, by which call, and for which time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from nndiff.tensors import Link, Phase


@dataclass
class CallFrame:
    """Hold a call that has begun."""

    module: torch.nn.Module
    name: str
    call: int
    entered: int
    python_depth: int
    phase: Phase
    parent: int | None
    inputs: tuple[Link, ...] = ()
    replaced: dict[str, torch.Tensor] = field(default_factory=dict)  # outputs that others are handed on for, by path


class _ThreadFrames(threading.local):
    def __init__(self) -> None:
        self.frames: list[CallFrame] = []


class CallStack:
    """Keep the running calls, per thread; calls in the backward pass are recomputations and are not counted."""

    def __init__(self, reserve_order: Callable[[], int]) -> None:
        self.call_counts: Counter[str] = Counter()
        self._reserve_order = reserve_order
        self._thread = _ThreadFrames()

    def enter_call(self, module: torch.nn.Module, name: str) -> CallFrame:
        """Put a call on the stack."""
        depth = 0
        python_frame = sys._getframe()
        while python_frame is not None:
            depth += 1
            python_frame = python_frame.f_back  # type: ignore[assignment]  # the last one has none
        frames = self._thread.frames
        while frames and frames[-1].python_depth >= depth:
            frames.pop()  # left by an exception: a caller is never as deep as the call it makes
        phase: Phase = "recompute" if torch._C._current_graph_task_id() != -1 else "forward"
        call = self.call_counts[name]
        if phase == "forward":
            self.call_counts[name] += 1
        parent = frames[-1].entered if frames else None
        frame = CallFrame(module, name, call, self._reserve_order(), depth, phase, parent)
        frames.append(frame)
        return frame

    def leave_call(self, module: torch.nn.Module) -> CallFrame | None:
        """Take a call off the stack, and any call left inside it; None if it was never entered."""
        frames = self._thread.frames
        while frames:
            frame = frames.pop()
            if frame.module is module:
                return frame
        return None
