"""A law: a saved result judged again says what comparing anew at that tolerance would say, or that it cannot."""

from __future__ import annotations

import copy

import pytest
import torch
from nndiff.judging import UNDECIDED, WITHOUT_EFFECT
from test_idle_gradients import Dropping
from test_rewrites import INPUT, REWRITES, Masked
from torch import nn

import nndiff
from nndiff import result_json
from nndiff.__main__ import main
from nndiff.judge import UNPROVEN
from nndiff.tolerance import Tolerance, rounded_up

TOLERANCES = [10.0**power for power in range(-8, 0)]
SAVED = (1e-8, 1e-5, 1e-3)

MASKED = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
DROPPED = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))


def alike(one, other):
    other.load_state_dict(one.state_dict())
    return one, other


class Guessed(nn.Module):
    """Three layers by numbers; in other implementations two of them change places where it does not matter."""

    def __init__(self, names):
        super().__init__()
        torch.manual_seed(0)
        made = {name: nn.Linear(6, 6) for name in ("a", "b", "z")}
        self.order = [made["a"], made["b"], made["z"]] if names == "abz" else [made["b"], made["a"], made["z"]]
        for new, name in zip(names, made, strict=True):
            self.add_module(new, made[name])

    def forward(self, x):
        one, other, last = self.order
        return last(one(x) + other(x))


CASES = {
    **{name: (REWRITES[name], INPUT) for name in (
        *("fused", "functional", "another kernel", "named against numbered", "one activation for all", "wrapped"),
        *("time first inside", "convolution against linear", "positions for each row", "no weight norm"),
        *("a list in another order", "no dropout at rest", "dict against tuple", "branches in another order"),
    )},
    "another mask": (lambda: alike(Masked(truths=True), Masked(truths=False)), MASKED),
    "masked twice": (lambda: alike(Dropping(True).eval(), Dropping(False).eval()), DROPPED),
    "guessed": (lambda: (Guessed("abz"), Guessed("xyw")), INPUT),
}  # fmt: skip
# Which layers belong together in spite of their names is asked at each tolerance; the saved numbers are of one answer.
MAY_BE_OPEN = ("a list in another order", "no dropout at rest")


def spoil(model, size):
    """Put a little into the last layer."""
    with torch.no_grad():
        list(model.parameters())[-1].add_(size)


def recorded(folder, case, size, **options):
    make, inputs = CASES[case]
    one, other = make()
    spoil(other, size)
    for name, model in (("one", one), ("other", other)):
        nndiff.record(model, inputs, path=folder / f"{name}.nnrec", seed=42, **options)
    return folder / "one.nnrec", folder / "other.nnrec"


def at(tolerance):
    return Tolerance(tolerance, tolerance, "given")


def is_open(result):
    """Tell whether a result says that it does not know."""
    notes = any(note.startswith(UNDECIDED) for note in result.notes)
    return notes or any(UNPROVEN in pair.note for pair in result.pairs)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("size", [0.0, 3e-5], ids=["exact", "nearly"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", CASES)
def test_judged_again_as_if_compared_again(case, backward, size, tmp_path):
    both = recorded(tmp_path, case, size, backward=backward)
    live = {each: nndiff.compare(*both, atol=each, rtol=each) for each in TOLERANCES}
    assert {result.exit_code for result in live.values()} >= {0}  # it passes somewhere
    for saved in SAVED:
        loaded = result_json.from_dict(live[saved].to_dict())
        for each, wanted in live.items():
            again = loaded.judged_at(at(each))
            if case in MAY_BE_OPEN and is_open(again):
                assert again.exit_code == 1
                continue
            assert not is_open(again)
            assert (again.verdict, again.exit_code) == (wanted.verdict, wanted.exit_code), (saved, each)
            assert case in MAY_BE_OPEN or _summary(again) == _summary(wanted)
            if not backward:  # where something lies otherwise the saved numbers may tell another place
                assert bool(_first(again)) == bool(_first(wanted))


def _first(result):
    return result.first_divergence and result.first_divergence.name


def _summary(result):
    """Return what there is to see of a result besides its numbers."""
    rows = [(pair.name, pair.verdict) for pair in result.pairs]
    left = sorted((left.side, left.name, left.shape, left.hint, left.counts) for left in result.leftovers if left.aside)
    harmless = {finding.cause for finding in result.findings if finding.harmless}
    return rows, left, harmless if result.exit_code == 0 else None


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("size", [0.0, 3e-5], ids=["exact", "nearly"])
@pytest.mark.parametrize("case", CASES)
def test_it_passes_at_what_is_said_and_not_below(case, size, tmp_path):
    both = recorded(tmp_path, case, size)
    for saved in SAVED:
        result = nndiff.compare(*both, atol=saved, rtol=saved)
        needed = result.needed_tolerance
        assert needed is not None
        printed = float(rounded_up(needed))
        assert result.judged_at(at(printed)).exit_code == 0
        assert nndiff.compare(*both, atol=printed, rtol=printed).exit_code == 0
        if needed > 0:
            below = needed * (1 - 1e-6)
            assert result.judged_at(at(below)).exit_code == 1
            named_anew = case in MAY_BE_OPEN and result.exit_code == 1
            assert named_anew or nndiff.compare(*both, atol=below, rtol=below).exit_code == 1


@pytest.mark.parametrize("case", ["another mask", "time first inside", "masked twice", "fused"])
def test_it_passes_at_what_is_said_backward_too(case, tmp_path):
    both = recorded(tmp_path, case, 3e-5, backward=True)
    result = nndiff.compare(*both)
    printed = float(rounded_up(result.needed_tolerance))
    assert result.judged_at(at(printed)).exit_code == 0
    assert nndiff.compare(*both, atol=printed, rtol=printed).exit_code == 0
    below = result.needed_tolerance * (1 - 1e-6)
    assert result.judged_at(at(below)).exit_code == 1
    # of gradients, which are judged on their own scale, a few points are kept and the chords between them
    far_below = result.needed_tolerance / 2
    assert nndiff.compare(*both, atol=far_below, rtol=far_below).exit_code == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_judged_at_its_own_tolerance_it_stays_as_it_is(case, tmp_path):
    result = nndiff.compare(*recorded(tmp_path, case, 3e-5, backward=True))
    again = result.judged_at(result.tolerance)
    assert (again.pairs, again.aside, again.notes) == (result.pairs, result.aside, result.notes)
    assert sorted(again.leftovers, key=str) == sorted(result.leftovers, key=str)
    assert sorted(again.findings, key=str) == sorted(result.findings, key=str)


def test_there_and_back_again(tmp_path):
    result = nndiff.compare(*recorded(tmp_path, "another mask", 3e-5), atol=1e-4, rtol=1e-4)
    back = result.judged_at(at(1e-6)).judged_at(at(1e-4))
    assert (back.verdict, _summary(back)) == (result.verdict, _summary(result))


@pytest.mark.parametrize("keep", ["sketch", "stats", "digest"])
def test_what_kept_less_than_everything_is_judged_alike_too(keep, tmp_path):
    make, inputs = lambda: nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(64, 6)
    torch.manual_seed(0)
    one = make()
    other = copy.deepcopy(one)
    spoil(other, 3e-4)
    for name, model in (("one", one), ("other", other)):
        nndiff.record(model, inputs, path=tmp_path / f"{name}.nnrec", keep=keep)
    both = tmp_path / "one.nnrec", tmp_path / "other.nnrec"
    live = {each: nndiff.compare(*both, atol=each, rtol=each) for each in TOLERANCES}
    for saved in SAVED:
        for each, wanted in live.items():
            again = live[saved].judged_at(at(each))
            assert is_open(again) or (again.verdict, again.exit_code) == (wanted.verdict, wanted.exit_code)


def test_the_command_says_the_same(tmp_path, capsys):
    both = recorded(tmp_path, "another mask", 3e-5)
    result = nndiff.compare(*both)
    assert result.exit_code == 1
    result.save(tmp_path / "saved.json")
    assert main(["report", str(tmp_path / "saved.json"), "--atol", "1e-4", "--rtol", "1e-4"]) == 0
    said = capsys.readouterr().out
    assert nndiff.compare(*both, atol=1e-4, rtol=1e-4).exit_code == 0
    assert "makes of it agrees" in said  # the middle of long lines is left out


def test_what_the_saved_numbers_do_not_tell_is_said(tmp_path, capsys, weights_unknown):
    both = recorded(tmp_path, "a list in another order", 3e-5)
    nndiff.compare(*both).save(tmp_path / "saved.json")
    assert nndiff.compare(*both, atol=1e-3, rtol=1e-3).exit_code == 0
    assert main(["report", str(tmp_path / "saved.json"), "--atol", "1e-3", "--rtol", "1e-3"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{UNDECIDED}, the saved numbers do not tell: compare the sources again" in said


def test_where_runs_part_is_told_at_a_smaller_tolerance_than_they_passed_at(tmp_path):
    one = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), nn.Linear(4, 4)))
    other = copy.deepcopy(one)
    other[1][0].approximate = "tanh"
    result = nndiff.compare(one, other, inputs=torch.randn(3, 4), atol=0.1, rtol=0.1)
    assert result.exit_code == 0
    assert any(WITHOUT_EFFECT in note for note in result.notes)
    result.save(tmp_path / "r.json")
    again = result_json.load(tmp_path / "r.json").judged_at(at(1e-6))
    assert again.exit_code == 1
    assert _first(again) == "1.0:output"
    assert "a saved result does not tell what went into it" in again.first_divergence.why
    assert not any(WITHOUT_EFFECT in note for note in again.notes)
    assert again.judged_at(at(0.1)).first_divergence is None


def test_what_was_found_of_gradients_alone_is_gone_where_outputs_differ_too():
    one = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    other = copy.deepcopy(one)
    with torch.no_grad():
        other[0].bias.add_(1e-6)
    other[1].register_full_backward_hook(lambda module, given, handed: (3 * given[0],))
    result = nndiff.compare(one, other, inputs=torch.randn(3, 4), backward=True, atol=1e-3, rtol=1e-3)
    assert "gradients-only" in {finding.cause for finding in result.findings}
    again = result.judged_at(at(1e-8))
    assert _first(again) == "0:output"
    assert not {"gradients-only", "gradients-scaled"} & {finding.cause for finding in again.findings}
    assert _first(result.judged_at(at(1e-4))) == _first(result)
