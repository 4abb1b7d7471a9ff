"""The calls under way: which module began when, inside of which other, and which time that is."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nndiff.tensors import Link, Phase


@dataclass
class Frame:
    """Hold a call that has begun."""

    module: torch.nn.Module
    name: str
    call: int
    entered: int
    depth: int
    phase: Phase
    parent: int | None
    inputs: tuple[Link, ...] = ()


class _Stack(threading.local):
    """Hold the calls under way in one thread."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []


class UnderWay:
    """Keep the stack of calls, for each thread its own; calls in the backward pass are repetitions, not counted."""

    def __init__(self, reserve: Callable[[], int]) -> None:
        self.counts: Counter[str] = Counter()
        self._reserve = reserve
        self._stack = _Stack()

    def begin(self, module: torch.nn.Module, name: str) -> Frame:
        """Put a call on the stack."""
        depth = _python_depth()
        frames = self._stack.frames
        while frames and frames[-1].depth >= depth:
            frames.pop()  # left by an exception: nothing on the stack can be as deep as what it calls
        phase: Phase = "recompute" if torch._C._current_graph_task_id() != -1 else "forward"
        call = self.counts[name]
        if phase == "forward":
            self.counts[name] += 1
        parent = frames[-1].entered if frames else None
        frame = Frame(module, name, call, self._reserve(), depth, phase, parent)
        frames.append(frame)
        return frame

    def end(self, module: torch.nn.Module) -> Frame | None:
        """Take a call off the stack, with all that was left inside of it; None where it never began."""
        frames = self._stack.frames
        while frames:
            frame = frames.pop()
            if frame.module is module:
                return frame
        return None


def _python_depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        depth += 1
        frame = frame.f_back  # type: ignore[assignment]  # the last one has none
    return depth
