"""A law: a saved result judged again says what comparing anew at that tolerance would say, or to compare again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nndiff
from findings_matrix import CASES, INPUT
from nndiff import result_json
from nndiff.__main__ import main
from nndiff.relations import load_relation
from nndiff.result import NoteSlug
from nndiff.tolerance import Tolerance, round_up

TOLERANCES = [1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-1]
SAVED = (1e-8, 1e-5, 1e-3)


class Square(nn.Module):
    """Hand a square on as it is or transposed, inside."""

    def __init__(self, transposed):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.turn, self.last = nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 6)
        self.transposed = [transposed]

    def forward(self, x):
        y = self.first(x[:2, 0].repeat(3, 1) * torch.arange(6)[:, None])
        return self.last(self.turn(y.T).T if self.transposed[0] else self.turn(y))


class Normed(nn.Module):
    """Put a bias in front of a batch norm, which takes it away: its gradient is noise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.last = nn.Conv1d(5, 8, 1), nn.BatchNorm1d(8), nn.Linear(6, 6)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.conv(x))))


class Stack(nn.Module):
    """Run layers in an order of their own."""

    def __init__(self, places):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(6, 6) for _ in places]
        self.places = places
        self.layers = nn.ModuleList(layers[places.index(place)] for place in range(len(places)))

    def forward(self, x):
        for place in self.places:
            x = torch.tanh(self.layers[place](x))
        return x


class Masked(nn.Module):
    """Mask by a boolean mask or by an additive one."""

    def __init__(self, truths):
        super().__init__()
        torch.manual_seed(0)
        self.mask, self.fc, self.truths = nn.Identity(), nn.Linear(6, 6), [truths]

    def forward(self, x):
        hidden = torch.ones(5, 6, dtype=torch.bool).triu(1)
        if self.truths[0]:
            return self.fc(x.masked_fill(self.mask(hidden), -1e4).softmax(-1))
        return self.fc((x + self.mask(torch.zeros(5, 6).masked_fill(hidden, -1e9))).clamp(min=-1e4).softmax(-1))


def take(name):
    return CASES[name][0]


MODELS = {
    "a copy": take("a copy"),
    "another eps": take("eps"),
    "a wrong backward": take("a wrong backward"),
    "gradients halved": take("all gradients halved"),
    "no bias": take("no bias"),
    "a scale moved": take("a scale moved"),
    "outputs transposed": take("time first"),
    "inside transposed": take("transposed inside"),
    "fused": take("fused"),
    "no weight norm": take("no weight norm"),
    "a square inside": lambda: (Square(False), Square(True)),
    "a bias without effect": lambda: (Normed(), Normed()),
    "a list in another order": lambda: (Stack([0, 1, 2]), Stack([2, 0, 1])),
    "another mask": lambda: (Masked(truths=True), Masked(truths=False)),
}
# Relations are proven at one tolerance: what holds at another, the saved numbers do not always tell.
MAY_BE_OPEN = ("inside transposed", "no weight norm", "a square inside")


def spoil(model, size):
    """Put a little into the last layer and less into the first."""
    first, *_, last = model.parameters()
    with torch.no_grad():
        first.add_(size / 10)
        last.add_(size)


def record_both(folder, case, size, **options):
    reference, candidate = MODELS[case]()
    spoil(candidate, size)
    for name, model in (("reference", reference), ("candidate", candidate)):
        nndiff.record(model, INPUT, path=folder / f"{name}.nnrec", seed=42, **options)
    return folder / "reference.nnrec", folder / "candidate.nnrec"


def at(tolerance):
    return Tolerance(tolerance, tolerance, "given")


def is_open(result):
    """Tell whether a result says to compare again."""
    return any(note.slug is NoteSlug.COMPARE_AGAIN for note in result.notes)


def check_law(live):
    """Check each live result against every saved one; return how many say to compare again."""
    asked_again = 0
    for saved in SAVED:
        loaded = result_json.from_dict(live[saved].to_dict(), load_relation)
        for tolerance, wanted in live.items():
            again = loaded.judged_at(at(tolerance))
            if is_open(again):
                asked_again += 1
                assert again.exit_code != 0
                continue
            assert (again.verdict, again.exit_code) == (wanted.verdict, wanted.exit_code), (saved, tolerance)
            assert bool(again.first_divergence) == bool(wanted.first_divergence), (saved, tolerance)
    return asked_again


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(("size", "backward"), [(3e-5, False), (0.0, True), (3e-5, True)])
@pytest.mark.parametrize("case", MODELS)
def test_judged_again_as_if_compared_again(case, backward, size, tmp_path):
    both = record_both(tmp_path, case, size, backward=backward)
    live = {tolerance: nndiff.compare(*both, atol=tolerance, rtol=tolerance) for tolerance in TOLERANCES}
    asked_again = check_law(live)
    assert asked_again == 0 or (case in MAY_BE_OPEN and asked_again < len(SAVED) * len(TOLERANCES) / 2)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", ["a copy", "inside transposed", "fused", "no weight norm", "another mask"])
def test_it_passes_at_what_is_said_and_not_below(case, tmp_path):
    both = record_both(tmp_path, case, 3e-5)
    for saved in SAVED:
        result = nndiff.compare(*both, atol=saved, rtol=saved)
        needed = result.needed_tolerance
        if needed is None:  # no relation holds at this tolerance, so there are no numbers
            assert any(pair.metrics is None for pair in result.pairs)
            continue
        printed = float(round_up(needed))
        assert result.judged_at(at(printed)).exit_code == 0
        assert nndiff.compare(*both, atol=printed, rtol=printed).exit_code == 0
        below = needed * (1 - 1e-6)
        assert result.judged_at(at(below)).exit_code == 1
        assert nndiff.compare(*both, atol=below, rtol=below).exit_code == 1


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", MODELS)
def test_judged_at_its_own_tolerance_it_stays_as_it_is(case, tmp_path):
    result = nndiff.compare(*record_both(tmp_path, case, 3e-5, backward=True))
    again = result.judged_at(result.tolerance)
    assert again == result


def test_there_and_back_again(tmp_path):
    result = nndiff.compare(*record_both(tmp_path, "another mask", 3e-5), atol=1e-4, rtol=1e-4)
    back = result.judged_at(at(1e-6)).judged_at(at(1e-4))
    assert (back.verdict, back.first_divergence, is_open(back)) == (result.verdict, None, False)
    assert [pair.verdict for pair in back.pairs] == [pair.verdict for pair in result.pairs]


def test_what_was_open_once_stays_open_until_compared_again(tmp_path):
    """A square that passes as it is: whether it is transposed nobody looked, at no tolerance in between either."""
    result = nndiff.compare(*record_both(tmp_path, "a square inside", 0.0), atol=100.0, rtol=0.1)
    assert result.exit_code == 0
    open_result = result.judged_at(at(1e-3))
    assert is_open(open_result)
    assert is_open(open_result.judged_at(at(1e-4)))


@pytest.mark.parametrize("keep", ["sketch", "stats", "digest"])
def test_what_kept_less_than_everything_is_judged_alike_too(keep, tmp_path):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64))
    candidate = copy.deepcopy(reference)
    spoil(candidate, 3e-4)
    both = tmp_path / "reference.nnrec", tmp_path / "candidate.nnrec"
    for path, model in zip(both, (reference, candidate), strict=True):
        nndiff.record(model, torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), path=path, keep=keep)
    check_law({tolerance: nndiff.compare(*both, atol=tolerance, rtol=tolerance) for tolerance in TOLERANCES})


def test_the_command_says_the_same(tmp_path, capsys):
    both = record_both(tmp_path, "another mask", 3e-5)
    result = nndiff.compare(*both)
    assert result.exit_code == 1
    result.save(tmp_path / "saved.json")
    assert main(["report", str(tmp_path / "saved.json"), "--atol", "1e-4", "--rtol", "1e-4"]) == 0
    assert "close" in capsys.readouterr().out
    assert nndiff.compare(*both, atol=1e-4, rtol=1e-4).exit_code == 0


def test_the_command_says_to_compare_again(tmp_path, capsys):
    both = record_both(tmp_path, "a square inside", 0.0)
    nndiff.compare(*both, atol=100.0, rtol=0.1).save(tmp_path / "saved.json")
    assert nndiff.compare(*both).exit_code == 0
    assert main(["report", str(tmp_path / "saved.json"), "--atol", "1e-5", "--rtol", "1e-5"]) == 1
    assert "compare the sources again" in " ".join(capsys.readouterr().out.split())


def test_where_runs_part_is_told_at_a_smaller_tolerance_than_they_passed_at(tmp_path):
    reference = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), nn.Linear(4, 4)))
    candidate = copy.deepcopy(reference)
    candidate[1][0].approximate = "tanh"
    result = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4), atol=0.1, rtol=0.1)
    assert result.exit_code == 0
    assert NoteSlug.SETTINGS_WITHOUT_EFFECT in {note.slug for note in result.notes}
    result.save(tmp_path / "r.json")
    again = result_json.load(tmp_path / "r.json", load_relation).judged_at(at(1e-6))
    assert again.exit_code == 1
    assert again.first_divergence.name == "1.0:output"
    assert again.first_divergence.inputs is None
    assert NoteSlug.SETTINGS_WITHOUT_EFFECT not in {note.slug for note in again.notes}
    assert again.judged_at(at(0.1)).first_divergence is None


def test_what_was_found_of_gradients_alone_is_gone_where_outputs_differ_too():
    reference = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[0].bias.add_(1e-6)
    candidate[1].register_full_backward_hook(lambda module, at_inputs, at_outputs: (3 * at_inputs[0],))
    result = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4), backward=True, atol=1e-3, rtol=1e-3)
    assert "gradients-only" in {finding.cause for finding in result.findings}
    again = result.judged_at(at(1e-8))
    assert again.first_divergence.name == "0:output"
    assert not {"gradients-only", "gradients-scaled"} & {finding.cause for finding in again.findings}
    assert result.judged_at(at(1e-4)).first_divergence.name == result.first_divergence.name
