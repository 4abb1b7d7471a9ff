"""Layers whose outputs and weights lie otherwise, with axes put together and in another order: told, and no bug."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from gradients import with_gradient
from nndiff.verdict import RelationKind

WIDTH, PATCH = 8, 4
IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
TEXT = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(3))


def same_numbers(layer, other):
    """Give a layer the numbers of another, in its own shapes."""
    with torch.no_grad():
        for one, their in zip(layer.parameters(), other.parameters(), strict=True):
            one.copy_(their.reshape(one.shape))
    return layer


class Patches(nn.Module):
    """Patches of an image, by a convolution."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = self.layer(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

    def layer(self):
        return nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)

    def forward(self, x):
        return self.out(self.norm(self.tokens(x)))

    def tokens(self, x):
        return self.embed(x).flatten(2).transpose(1, 2)


class Unfolded(Patches):
    """The same by a linear layer."""

    def layer(self):
        return nn.Linear(3 * PATCH * PATCH, WIDTH)

    def tokens(self, x):
        return self.embed(F.unfold(x, PATCH, stride=PATCH).transpose(1, 2))


class ByRows(Unfolded):
    """The same, all patches of all images in one row after the other."""

    def tokens(self, x):
        return self.embed(F.unfold(x, PATCH, stride=PATCH).transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1))


class Split(nn.Module):
    """A projection that returns its heads apart."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 12)

    def forward(self, x):
        return self.fc(x).unflatten(-1, (3, 4)).transpose(1, 2)


class Whole(Split):
    def forward(self, x):
        return self.fc(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (self.projection() for _ in range(3))
        self.out = nn.Linear(12, 6)

    def projection(self):
        return Split()

    def split(self, x):
        return x

    def forward(self, x):
        q, k, v = (self.split(each(x)) for each in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SplitLater(Heads):
    def projection(self):
        return Whole()

    def split(self, x):
        return x.unflatten(-1, (3, 4)).transpose(1, 2)


class Wrapped(nn.Module):
    """Do something to what goes into a layer, and undo it after."""

    def __init__(self, do=lambda x: x, undo=lambda x: x):
        super().__init__()
        self.fc, self.out, self.do, self.undo = nn.Linear(12, 12), nn.Linear(12, 6), do, undo

    def forward(self, x):
        return self.out(torch.tanh(self.undo(self.fc(self.do(x)))))


def pair(one, other):
    torch.manual_seed(0)
    first = one().eval()
    return first, same_numbers(other().eval(), first)


LAYOUTS = {
    "patches": (lambda: pair(Patches, Unfolded), IMAGE, {"permuted"}),
    "patches in one row": (lambda: pair(Patches, ByRows), IMAGE, {"permuted"}),
    "rows of patches": (lambda: pair(Unfolded, ByRows), IMAGE, {"reshaped"}),
    "heads": (lambda: pair(Heads, SplitLater), TEXT, {"permuted"}),
    "time first": (
        lambda: pair(Wrapped, lambda: Wrapped(lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1))),
        TEXT,
        {"permuted"},
    ),
    "time first in one row": (
        lambda: pair(
            Wrapped,
            lambda: Wrapped(
                lambda x: x.transpose(0, 1).flatten(0, 1), lambda x: x.unflatten(0, (5, 2)).transpose(0, 1)
            ),
        ),
        TEXT,
        {"permuted"},
    ),
    "one row": (
        lambda: pair(Wrapped, lambda: Wrapped(lambda x: x.flatten(0, 1), lambda x: x.unflatten(0, (2, 5)))),
        TEXT,
        {"reshaped"},
    ),
    "an axis of one": (
        lambda: pair(Wrapped, lambda: Wrapped(lambda x: x[:, None], lambda x: x[:, 0])),
        TEXT,
        {"reshaped"},
    ),
}


@pytest.mark.parametrize(
    ("flipped", "backward"), [(False, False), (False, True), (True, True)], ids=["forward", "backward", "flipped"]
)
@pytest.mark.parametrize("case", LAYOUTS)
def test_what_lies_otherwise_is_told_and_no_bug(case, flipped, backward):
    make, inputs, causes = LAYOUTS[case]
    result = nndiff.compare(*make()[:: -1 if flipped else 1], inputs=inputs, backward=backward)
    assert result.exit_code == 0, result.worst()
    assert causes <= {finding.cause for finding in result.findings}
    assert all(finding.harmless for finding in result.findings)
    assert any(pair.related and pair.related.relation.kind is RelationKind.LAYOUT for pair in result.pairs)


@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("case", LAYOUTS)
def test_a_wrong_number_in_what_lies_otherwise_is_found(case, flipped):
    make, inputs, _ = LAYOUTS[case]
    for number in range(2):
        one, other = make()
        with torch.no_grad():
            list(other.parameters())[number].view(-1)[1] += 1e-2
        result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=inputs, backward=True)
        assert result.exit_code == 1


def one_element_wrong(grad):
    grad = grad.clone(memory_format=torch.contiguous_format)
    grad.view(-1)[3] *= 1.1
    return grad


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_wrong_gradient_at_what_lies_otherwise_is_found(case):
    make, inputs, _ = LAYOUTS[case]
    one, other = make()
    layer = next(module for module in other.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    plain = layer.forward
    layer.forward = lambda x: with_gradient(plain(x), one_element_wrong)
    result = nndiff.compare(one, other, inputs=inputs, backward=True)
    assert result.exit_code == 1
    wrong = {pair.slot for pair in result.pairs if pair.verdict.value in ("different", "shape")}
    assert {"grad_output", "param_grad"} & wrong
    assert not all(finding.harmless for finding in result.findings)


@pytest.mark.parametrize("keep", ["full", "sketch"])
def test_weights_and_their_gradients_lie_otherwise_too(tmp_path, keep):
    sides = pair(Patches, Unfolded)
    options = {"backward": True, "params": True, "keep": keep}
    recordings = [nndiff.record(side, IMAGE, path=tmp_path / str(n), **options) for n, side in enumerate(sides)]
    result = nndiff.compare(*recordings)
    assert result.exit_code == 0, result.worst()
    told = {finding.cause: set(finding.where) for finding in result.findings}
    assert told["reshaped"] == {"embed.weight:param", "embed.weight:param_grad"}
    assert told["permuted"] == {"embed:output", "embed:grad_output"}


class Renamed(Unfolded):
    """The same under other names."""

    def __init__(self):
        super().__init__()
        self.patches, self.embed = self.embed, nn.Identity()

    def parameters(self, recurse=True):
        return (*self.patches.parameters(), *self.norm.parameters(), *self.out.parameters())

    def tokens(self, x):
        return self.patches(F.unfold(x, PATCH, stride=PATCH).transpose(1, 2))


@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
def test_layers_of_other_names_that_lie_otherwise_are_compared_too(tmp_path, flipped):
    sides = pair(Patches, Renamed)[:: -1 if flipped else 1]
    options = {"backward": True, "params": True}
    recordings = [nndiff.record(side, IMAGE, path=tmp_path / str(n), **options) for n, side in enumerate(sides)]
    result = nndiff.compare(*recordings)
    assert result.exit_code == 0, [left for left in result.leftovers if left.counts]
    assert {"permuted", "reshaped"} <= {finding.cause for finding in result.findings}
    with torch.no_grad():
        sides[not flipped].patches.weight[3, 5] += 1e-2
    wrong = nndiff.record(sides[not flipped], IMAGE, path=tmp_path / "wrong", **options)
    assert nndiff.compare(recordings[flipped], wrong).exit_code == 1


@pytest.mark.parametrize("keep", ["stats", "digest"])
@pytest.mark.parametrize("fault", [False, True])
def test_nothing_is_excused_that_was_not_kept(tmp_path, keep, fault):
    one, other = pair(Patches, Unfolded)
    if fault:
        with torch.no_grad():
            other.embed.weight.view(-1)[1] += 1e-2
    options = {"backward": True, "keep": keep}
    recordings = [nndiff.record(side, IMAGE, path=tmp_path / str(n), **options) for n, side in enumerate((one, other))]
    result = nndiff.compare(*recordings)
    assert result.exit_code == 1
    assert not {"permuted", "reshaped"} & {finding.cause for finding in result.findings}


def test_what_comes_out_of_the_model_lies_as_it_does():
    one, _ = pair(Patches, Unfolded)
    other = copy.deepcopy(one)
    other.forward = lambda x: Patches.forward(other, x).unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    result = nndiff.compare(one, other, inputs=IMAGE)
    assert result.exit_code == 1
    (finding,) = (each for each in result.findings if each.cause == "permuted")
    assert "permute(0, 2, 3, 1), reshape[2, 16, 4]" in finding.repair


def test_constants_do_not_say_how_they_lie():
    class Zeros(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self.shape, self.blank = shape, nn.Identity()

        def forward(self, x):
            return x + self.blank(torch.zeros(self.shape)).sum()

    turned = nndiff.compare(Zeros(2, 8, 4, 4), Zeros(2, 16, 8), inputs=IMAGE)
    assert turned.exit_code == 1
    assert "permuted" not in {finding.cause for finding in turned.findings}
    merged = nndiff.compare(Zeros(2, 8, 4, 4), Zeros(2, 8, 16), inputs=IMAGE)
    assert merged.exit_code == 0


class Turning(nn.Module):
    """Hand on what a layer returns, or that with its axes exchanged."""

    def __init__(self):
        super().__init__()
        self.layer, self.hand_on, self.turned = nn.Linear(6, 6), nn.Hardtanh(-9, 9), False

    def forward(self, x):
        out = self.layer(x)
        return self.hand_on(out.transpose(-1, -2).contiguous()).transpose(-1, -2) if self.turned else self.hand_on(out)


@pytest.mark.parametrize("tolerance", [1e-5, 0.1, 0.8, 2.0])
def test_what_lies_otherwise_is_known_at_any_larger_tolerance(tolerance):
    torch.manual_seed(0)
    one = nn.Sequential(Turning(), Turning())
    other = copy.deepcopy(one)
    other[1].turned = True
    result = nndiff.compare(one, other, inputs=torch.randn(2, 5, 6), backward=True, atol=tolerance, rtol=tolerance)
    assert result.exit_code == 0
