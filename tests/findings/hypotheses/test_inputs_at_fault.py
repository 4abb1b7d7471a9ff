"""Inputs and order: preprocessing is solved for, parts and axes in another order are found."""

from __future__ import annotations

import pytest
import torch
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove
from torch import nn

from nndiff.findings.hypotheses.inputs import INPUTS
from nndiff.findings.hypotheses.layouts import LAYOUTS, REORDERED
from nndiff.findings.hypotheses.parts import PARTS
from nndiff.findings.hypotheses.recurrences import RECURRENCES

MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 3, 6, 10)])
def test_preprocessing_of_images(shape):
    x = images(*shape)
    ours = Code(lambda x: (x / 255 - MEAN) / STD)

    def explain(theirs, reference=ours):
        return prove(make_trial(reference, Code(theirs), x))

    proof = explain(lambda x: x / 127.5 - 1)
    assert proof.cause == "preprocessing"
    assert proof.evidence.startswith(
        "the candidate computes x * 0.007843 + -1 of `0`, the reference x * (0.01712, 0.01751, "
    )
    assert explain(lambda x: (x - MEAN) / STD).cause == "preprocessing"
    assert explain(lambda x: x / 255, Code(lambda x: x / 127.5 - 1)).cause in ("preprocessing", "scaled")
    assert explain(lambda x: (x.flip(1) / 255 - MEAN) / STD).cause == "channel-order"
    assert explain(lambda x: ((x / 255 - MEAN) / STD).flip(1)).cause == "channel-order"
    whole = make_trial(ours, Code(lambda x: (x.byte() / 255 - 0.5) / 0.5), x)
    assert name_cause(whole) == "preprocessing"


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 6, 10, 3)])
def test_preprocessing_of_images_with_channels_last(shape):
    x = images(*shape)
    ours = Code(lambda x: (x.permute(0, 3, 1, 2) / 255 - MEAN) / STD)
    assert name_cause(make_trial(ours, Code(lambda x: x.permute(0, 3, 1, 2) / 255), x)) == "preprocessing"


@pytest.mark.parametrize(("size", "cause"), [((1, 3, 2, 2), None), ((1, 3, 3, 5), "preprocessing")])
def test_a_channel_needs_some_elements(size, cause):
    scale, shift = draw(3, 1, 1, seed=3), draw(3, 1, 1, seed=4)
    proof = INPUTS.prove(make_trial(Code(lambda x: x * scale), Code(lambda x: x * scale + shift), images(*size)))
    assert (proof and proof.cause) == cause


@pytest.mark.parametrize(("channels", "cause"), [(3, "preprocessing"), (8, None)])
def test_many_channels_are_no_image(channels, cause):
    scale, shift = draw(channels, 1, 1, seed=3), draw(channels, 1, 1, seed=4)
    trial = make_trial(Code(lambda x: x * scale), Code(lambda x: x * scale.flip(0) + shift), draw(2, channels, 5, 6))
    proof = INPUTS.prove(trial)
    assert (proof and proof.cause) == cause


@pytest.mark.parametrize("shape", [(2, 64), (3, 1, 100)])
def test_emphasis_is_solved_for(shape):
    def emphasise(share):
        return Code(lambda x: torch.cat([x[..., :1], x[..., 1:] - share * x[..., :-1]], -1))

    for ours, theirs in ((0.97, 0.95), (0.97, 0.0), (0.0, 0.97)):
        proof = prove(make_trial(emphasise(ours), emphasise(theirs), draw(*shape)))
        assert (proof.cause, proof.evidence) in [
            ("preprocessing", f"pre-emphasis is {theirs:g} in the candidate, {ours:g} in the reference"),
        ]


class Join(nn.Module):
    """Join what two layers make, and a token of its own, in some order."""

    def __init__(self, order: tuple[int, ...], sizes: tuple[int, int] = (6, 9), axis: int = -1) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, sizes[0]), nn.Linear(8, sizes[1])
        self._order, self._axis = order, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.first(x), self.second(x)
        return torch.cat([parts[place] for place in self._order], self._axis)


@pytest.mark.parametrize(("sizes", "axis"), [((6, 9), -1), ((8, 8), -1), ((8, 8), 1)])
def test_parts_in_another_order(sizes, axis):
    pair = pair_of(lambda: Join((0, 1), sizes, axis), lambda: Join((1, 0), sizes, axis))
    proof = prove(make_trial(*pair, draw(3, 5, 8)))
    assert proof.cause == "concatenation"
    assert proof.evidence.startswith("joined as second, first in the candidate, as first, second in the reference")


class Token(nn.Module):
    """Put a learned token before or behind a sequence."""

    def __init__(self, size: int, is_behind: bool) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))
        self._is_behind = is_behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        token = self.cls_token.expand(len(x), -1, -1)
        return torch.cat([x, token] if self._is_behind else [token, x], 1)


@pytest.mark.parametrize("size", [8, 12])
def test_a_token_at_the_other_end(size):
    proof = prove(make_trial(*pair_of(lambda: Token(size, False), lambda: Token(size, True)), draw(3, 5, size)))
    assert proof.cause == "concatenation"
    assert "joined as 0, cls_token in the candidate" in proof.evidence


@pytest.mark.parametrize("size", [4, 7])
def test_other_parts(size):
    x = draw(3, 5, 3 * size)
    chunk, stride = Code(lambda x: x[..., :size]), Code(lambda x: x[..., ::3])
    assert name_cause(make_trial(chunk, Code(lambda x: x[..., size : 2 * size]), x)) == "concatenation"
    proof = prove(make_trial(chunk, stride, x))
    assert proof.evidence == (
        "places 0, 3, ... along axis 2 of `0` in the candidate, part 0 of 3 along axis 2 in the reference"
    )


@pytest.mark.parametrize("shape", [(4, 6, 8), (3, 5, 10)])
def test_axes_and_directions(shape):
    def smooth(x):
        return x + torch.sin(3 * x)

    def cause(theirs):
        return name_cause(make_trial(Code(smooth), Code(lambda x: theirs(smooth(x))), draw(*shape)))

    assert cause(lambda y: y.flip(1)) == "rows-permuted"
    assert cause(lambda y: y.transpose(1, 2)) == "permuted"
    assert cause(lambda y: y.transpose(1, 2).reshape(y.shape)) == "permuted"
    assert cause(lambda y: y.reshape(y.shape[0], y.shape[2], y.shape[1]).transpose(1, 2)) == "permuted"
    assert cause(lambda y: torch.cat(y.chunk(2, -1)[::-1], -1)) == "concatenation"


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("size", [6, 7])
def test_recurrent_layers_run_differently(cls, size):
    x = draw(5, 4, size)
    proof = prove(make_trial(*pair_of(lambda: cls(size, 8), lambda: cls(size, 8, batch_first=True)), x))
    assert (proof.cause, proof.repair) == ("permuted", "set `batch_first` to False")
    ours, theirs = pair_of(lambda: cls(size, 8))
    plain, moved = pair_of(lambda: cls(size, 8))
    theirs.forward = lambda x: plain(x.flip(0))[0].flip(0)
    assert name_cause(make_trial(ours, theirs, x)) == "rows-permuted"
    order = [0, 1, 3, 2] if cls is nn.LSTM else [1, 0, 2]
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.copy_(torch.cat([parameter.chunk(len(order))[place] for place in order]))
    theirs.forward = lambda x: moved(x)[0]
    proof = prove(make_trial(ours, theirs, x))
    assert proof.cause == "gate-order"
    assert ("order ifog" if cls is nn.LSTM else "order zrn") in proof.evidence
    theirs.forward = lambda x: plain(x)[0] * 1.001
    assert RECURRENCES.prove(make_trial(ours, theirs, x)) is None


@pytest.mark.parametrize("seed", range(4))
def test_unrelated_errors_are_no_order(seed):
    def smooth(x):
        return x + torch.sin(3 * x)

    for change in (
        lambda y: y + 0.01 * draw(*y.shape, seed=seed),
        lambda y: y * torch.cos(y + seed),
        lambda y: draw(*y.shape, seed=seed + 50),
        lambda y: (y.double() * 1).float() + 1e-9,
        lambda y: y.clamp(max=1),
    ):
        for shape in ((4, 6, 8), (2, 3, 6, 6)):
            trial = make_trial(Code(smooth), Code(lambda x, change=change: change(smooth(x))), draw(*shape))
            assert not any(family.prove(trial) for family in (INPUTS, PARTS, LAYOUTS, REORDERED))


@pytest.mark.parametrize(("deviation", "cause"), [(1.0, "preprocessing"), (1.005, "preprocessing"), (1.02, None)])
def test_samples_of_deviation_one_are_standardised(deviation, cause):
    x = draw(3, 40) * torch.tensor([[0.2], [0.5], [3.0]]) + torch.tensor([[0.1], [2.0], [-1.0]])

    def standardise(x):
        return deviation * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)

    for sides in ((Code(standardise), Code(lambda x: x)), (Code(lambda x: x), Code(standardise))):
        proof = INPUTS.prove(make_trial(*sides, x))
        assert (proof and proof.cause) == cause
