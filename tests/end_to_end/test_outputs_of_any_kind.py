"""Whatever a model returns is compared, or it is told that it was not: nothing passes that nobody looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from nndiff.recording.record import record
from nndiff.reports import ReportOptions, get_report, summary
from nndiff.result import NoteSlug

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Returns(nn.Module):
    """Return what is made of its layer's output and of a number that no layer knows."""

    def __init__(self, make: Callable[[torch.Tensor, int], Any], number: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.make, self.number = make, number

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.fc(x).detach(), self.number)


READ: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "array": lambda y, n: (y + n).numpy(),
    "array in a dict": lambda y, n: {"a": (y + n).numpy()},
    "NumPy scalar": lambda y, n: np.float32(n),
    "array in an object": lambda y, n: _held((y + n).numpy()),
    "big-endian array": lambda y, n: (y + n).numpy().astype(">f4"),
    "bytes": lambda y, n: bytes([1, n]),
    "bytearray": lambda y, n: bytearray([1, n]),
    "set of numbers": lambda y, n: {7, 8, n},
    "long text": lambda y, n: "a" * 2000 + str(n),
    "complex number": lambda y, n: complex(1, n),
    "large number": lambda y, n: (1 << 80) + n,
    "dtype": lambda y, n: torch.float32 if n else torch.float64,
    "range": lambda y, n: range(n + 1),
}


class Holder:
    """Hold something, as key-value caches do."""


def _held(value: Any) -> Holder:
    holder = Holder()
    holder.value = value  # type: ignore[attr-defined]
    return holder


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is_compared(kind: str) -> None:
    make = READ[kind]
    assert nndiff.compare(Returns(make), Returns(make), inputs=X).verdict == "identical"
    result = nndiff.compare(Returns(make), Returns(make, 1), inputs=X)
    assert (result.verdict, result.exit_code) == ("different", 1)


def test_every_plain_value_that_differs_is_named() -> None:
    def make(y: torch.Tensor, number: int) -> Any:
        return {"y": y, "count": number, "ids": [1, number], "text": f"n{number}"}

    result = nndiff.compare(Returns(make, 3), Returns(make, 4), inputs=X)
    names = {pair.name for pair in result.worst()}
    assert names == {"(model):output.count", "(model):output.ids.1", "(model):output.text"}


UNREAD: dict[str, tuple[Callable[[torch.Tensor, int], Any], str]] = {
    "generator": (lambda y, n: (each for each in [y]), "a generator"),
    "set of tensors": (lambda y, n: {y}, "a set"),
    "meta tensor": (lambda y, n: y.to("meta"), "a Tensor, of shape (3, 4), whose elements cannot be read"),
    "array of objects": (lambda y, n: np.array([None, n]), "a ndarray, of dtype object"),
    "object": (lambda y, n: object(), "a object"),
    "masked array": (lambda y, n: np.ma.masked_array([1.0, 2.0], [True, False]), "a MaskedArray, of dtype float64"),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_what_cannot_be_read_is_no_pass(kind: str) -> None:
    make, what = UNREAD[kind]
    result = nndiff.compare(Returns(make), Returns(make), inputs=X)
    assert (result.verdict, result.exit_code) == ("nothing compared", 2)
    assert summary.headline(result).startswith("nothing compared: no output of the model could be")
    assert f"(model):output is {what}" in summary.headline(result)
    assert result.needed_tolerance is None
    text = get_report("terminal").render(result, ReportOptions(width=200, color=False))
    assert "all outputs match" not in text
    assert "--exclude '(model):output'" in text
    assert 'errors="2"' in get_report("junit").render(result, ReportOptions())


def test_one_output_of_several_that_cannot_be_read_is_told_and_no_pass(tmp_path: Path) -> None:
    def make(y: torch.Tensor, number: int) -> Any:
        return y, {"z": (each for each in [y])}

    result = nndiff.compare(Returns(make), Returns(make), inputs=X)
    assert (result.verdict, result.exit_code) == ("different", 1)
    assert summary.headline(result).startswith("different: outputs are identical")
    assert "1 final output not compared" in summary.headline(result)
    notes = list(summary.list_notes(result))
    assert (
        "not compared: (model):output.1.z is a generator, not looked into in the reference and the candidate" in notes
    )
    for name in ("terminal", "md", "html"):
        text = get_report(name).render(result, ReportOptions(width=200, color=False))
        assert "but (model):output.1.z could not be compared" in text
    assert 'errors="1"' in get_report("junit").render(result, ReportOptions())
    result.save(tmp_path / "r.json")
    from nndiff.relations import load_relation
    from nndiff.result_json import load

    assert load(str(tmp_path / "r.json"), load_relation).exit_code == 1
    left_out = nndiff.compare(Returns(make), Returns(make), inputs=X, exclude="(model):output.1.z")
    assert left_out.verdict == "identical"


def test_nothing_and_empty_containers_are_no_secret() -> None:
    for make in (lambda y, n: (y, None, []), lambda y, n: None):
        assert nndiff.compare(Returns(make), Returns(make), inputs=X).verdict == "identical"


class Silent(nn.Module):
    """Make something and tell nobody."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> None:
        self.kept = x * self.factor


def test_inputs_alone_are_nothing_compared(tmp_path: Path) -> None:
    for number, factor in enumerate((1.0, 2.0)):
        record(Silent(factor), X, path=tmp_path / str(number), inputs_kept=True)
    result = nndiff.compare(tmp_path / "0", tmp_path / "1")
    assert (result.verdict, result.exit_code) == ("nothing compared", 2)
    assert summary.headline(result).startswith("nothing compared: only the inputs")
    assert result.needed_tolerance is None


def test_a_run_that_is_repeated_sees_into_arrays(tmp_path: Path) -> None:
    calls = []

    def make(y: torch.Tensor, number: int) -> Any:
        calls.append(y)
        return (y + len(calls)).numpy()

    found = record(Returns(make), X, path=tmp_path / "a.nnrec", repeat=2)
    assert found.meta["self_agreement"]["names"] == ["(model):output"]


def test_outputs_in_another_form_are_told() -> None:
    def short(y: torch.Tensor, number: int) -> Any:
        return y, y + 1

    def long(y: torch.Tensor, number: int) -> Any:
        return y, None, y + 1

    result = nndiff.compare(Returns(short), Returns(long), inputs=X)
    assert result.verdict == "identical"
    (note,) = result.notes
    assert note.slug is NoteSlug.OUTPUT_FORM
    assert "another form" in note.text
    assert "output.1 -> output.2" in note.text
    assert nndiff.compare(Returns(long), Returns(long), inputs=X).notes == ()


class Encoder(nn.Module):
    """Return two tensors of one shape, in some form."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.spread, self.form = nn.Linear(4, 3), nn.Linear(4, 3), form

    def forward(self, x):
        return self.form(self.mean(x), self.spread(x))


@pytest.mark.parametrize("backward", [False, True])
def test_outputs_in_another_place_are_told(backward):
    by_name = Encoder(lambda mean, spread: {"mean": mean, "spread": spread})
    for form, told in ((lambda a, b: (a, b), "another form"), (lambda a, b: (b, a), "another order")):
        in_a_row = Encoder(form)
        for sides in ((by_name, in_a_row), (in_a_row, by_name)):
            result = nndiff.compare(*sides, inputs=torch.randn(2, 4), backward=backward)
            assert result.exit_code == 0
            (note,) = [note for note in result.notes if note.slug is NoteSlug.OUTPUT_FORM]
            assert told in note.text


def test_the_loss_is_not_said_to_be_out_for_all_outputs_where_one_is_missing():
    first = nndiff.compare(
        Encoder(lambda a, b: (a, b)), Encoder(lambda a, b: (a,)), inputs=torch.randn(2, 4), backward=True
    ).first_divergence
    assert first.slot == "loss"
    assert "every output that both sides return agrees" in first.why
