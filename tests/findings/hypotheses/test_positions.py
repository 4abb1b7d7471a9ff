"""Positions: numbers, learned tables, rotary angles and sinusoids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from attention_trials import make_trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.positions import POSITIONS


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def explain(reference: nn.Module, candidate: nn.Module, *args: Any, **kwargs: Any) -> Any:
    trial = make_trial(reference, candidate, *args, **kwargs)
    return POSITIONS.prove(trial) if POSITIONS.applies(trial) else None


class Rotary(nn.Module):
    """Cosines and sines, with frequencies as a buffer or computed on the spot."""

    def __init__(self, size: int, theta: float = 10000.0, held: bool = True, **choices: Any) -> None:
        super().__init__()
        self.choices, self.size, self.held, self.theta = choices, size, held, theta
        frequencies = self.compute()
        if choices.get("short"):
            frequencies = frequencies.bfloat16().float()
        if held:
            self.register_buffer("freqs", frequencies, persistent=False)

    def compute(self) -> torch.Tensor:
        return 1.0 / (self.choices.get("theta_used", self.theta) ** (torch.arange(0, self.size, 2).float() / self.size))

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = self.freqs if self.held else self.compute()
        positions = (positions.float() + self.choices.get("shift", 0)) / self.choices.get("factor", 1.0)
        angles = positions[..., None] * frequencies
        if self.choices.get("interleaved"):
            angles = angles.repeat_interleave(2, -1)
        elif not self.choices.get("once"):
            angles = torch.cat([angles, angles], -1)
        if self.choices.get("swapped"):
            return angles.sin(), angles.cos()
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(("size", "length"), [(16, 11), (32, 100)])
@pytest.mark.parametrize(
    ("right", "wrong", "cause", "words"),
    [
        ({}, {"theta": 500000.0}, Cause.ROPE_THETA, "theta is 500000 in the candidate, 10000"),
        ({}, {"theta": 23456.0}, Cause.ROPE_THETA, "23456"),
        ({"theta": 1e6, "once": True}, {"theta": 1e4}, Cause.ROPE_THETA, "theta is 10000 in the candidate, 1e+06"),
        ({}, {"shift": 1}, Cause.POSITION_OFFSET, "shifted by +1"),
        ({"interleaved": True}, {"shift": -2}, Cause.POSITION_OFFSET, "shifted by -2"),
        ({}, {"interleaved": True}, Cause.POSITION_LAYOUT, "twice, interleaved in the candidate"),
        ({}, {"swapped": True}, Cause.POSITION_LAYOUT, "sines where the reference gives cosines"),
        ({}, {"factor": 4.0}, Cause.SCALED, "divided by 4"),
        ({}, {"factor": 1.7}, Cause.SCALED, "divided by 1.7"),
    ],
)
def test_rotary_angles(held, size, length, right, wrong, cause, words):
    reference, candidate = (Rotary(size, held=held, **choices) for choices in (right, {**right, **wrong}))
    for module in (reference, candidate):
        module.theta_hidden, module.theta = module.theta, None  # settings do not tell
        if not held:
            module.choices = {**module.choices, "theta_used": module.theta_hidden}
        del module.theta_hidden
    proof = explain(reference, candidate, torch.arange(length)[None])
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (cause, True), proof


@pytest.mark.parametrize("size", [16, 64])
def test_frequencies_rounded_to_bfloat16(size):
    proof = explain(Rotary(size), Rotary(size, short=True), torch.arange(40)[None])
    assert proof.cause == Cause.LOW_PRECISION


class Learned(nn.Module):
    """Embeddings with a table of positions."""

    def __init__(self, width: int, start: int | None = 0, rows: int = 40, words: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.words = start, nn.Embedding(50, width) if words else nn.Identity()
        self.places = nn.Parameter(torch.randn(rows, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x)
        if self.start is not None:
            y = y + self.places[self.start : self.start + y.shape[1]]
        return self.norm(y)


@pytest.mark.parametrize(("width", "length"), [(16, 9), (24, 30)])
@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [(0, 2, Cause.POSITION_OFFSET), (2, 0, Cause.POSITION_OFFSET), (0, None, Cause.LAYER_SKIPPED)],
)
def test_learned_tables(width, length, right, wrong, cause):
    tokens = torch.arange(2 * length).view(2, length) % 50
    proof = explain(Learned(width, right), Learned(width, wrong), tokens)
    assert proof is not None
    assert proof.cause == cause
    proof = explain(Learned(width, right, words=False), Learned(width, wrong, words=False), draw(2, length, width))
    assert proof.cause == cause


class Counted(nn.Module):
    """Position numbers handed to an embedding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(64, 8)

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        plain = torch.arange(mask.shape[1]).expand(mask.shape)
        counted = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
        return self.table({"plain": plain, "two": plain + 2, "kept": counted}[self.how])


@pytest.mark.parametrize("length", [7, 20])
@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("plain", "two", "begin at 2 in the candidate, at 0"),
        ("two", "plain", "begin at 0 in the candidate, at 2"),
        ("plain", "kept", "without padding, which is 1 in the candidate, from 0 on, padding included"),
    ],
)
def test_numbers_of_positions(length, right, wrong, words):
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, :3] = 0
    proof = explain(Counted(right), Counted(wrong), mask)
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (Cause.POSITION_OFFSET, True), proof


class Waves(nn.Module):
    """Sinusoids added to what is given."""

    def __init__(self, how: str, start: int = 0) -> None:
        super().__init__()
        self.how, self.start = how, start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, width = x.shape[1:]
        half = width // 2
        steps = half - 1 if self.how == "whisper" else half
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half).float() / steps)
        angles = (torch.arange(length).float() + self.start)[:, None] * frequencies
        parts = [angles.sin(), angles.cos()]
        if self.how == "cosines":
            parts.reverse()
        table = torch.stack(parts, -1).flatten(1) if self.how == "interleaved" else torch.cat(parts, -1)
        return torch.tanh(x) + table


@pytest.mark.parametrize(("length", "width"), [(12, 16), (60, 32)])
@pytest.mark.parametrize(
    ("right", "wrong", "cause", "words"),
    [
        (("halves",), ("interleaved",), Cause.POSITION_LAYOUT, "sines first, interleaved in the candidate"),
        (("interleaved",), ("halves",), Cause.POSITION_LAYOUT, "sines first, in halves in the candidate"),
        (("halves",), ("cosines",), Cause.POSITION_LAYOUT, "cosines first"),
        (("halves",), ("whisper",), Cause.POSITION_LAYOUT, "d / 2 - 1 in the candidate"),
        (("interleaved",), ("interleaved", 1), Cause.POSITION_OFFSET, "begin at 1 in the candidate, at 0"),
    ],
)
def test_sinusoids(length, width, right, wrong, cause, words):
    proof = explain(Waves(*right), Waves(*wrong), draw(2, length, width))
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (cause, True), proof


class Changed(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change = change
        self.places = nn.Parameter(torch.randn(40, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(torch.cos(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y * 1.1,
        lambda y: y + 0.1,
        lambda y: y + 0.1 * torch.randn(y.shape, generator=torch.Generator().manual_seed(3)),
        lambda y: y.flip(1),
        lambda y: torch.nn.functional.gelu(y),
        lambda y: y + torch.sin(torch.arange(16.0) * 1.3),
    ],
)
def test_other_faults_get_no_cause_here(change):
    assert explain(Changed(lambda y: y), Changed(change), draw(2, 9, 16)) is None
