"""Harmless rewrites are no bugs: the same network written otherwise passes, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn
from torch.utils.checkpoint import checkpoint

import nndiff
from nndiff.result import Method, NoteSlug
from nndiff.tensors import Slot
from nndiff.verdict import Outcome, Verdict

INPUT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        return self.o(torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x))


class Kernel(Attention):
    def forward(self, x):
        return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), scale=1.0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2 = nn.LayerNorm(6), Attention(), nn.LayerNorm(6)
        self.up, self.act, self.down = nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(self.act(self.up(self.n2(x))))


class Functional(Block):
    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class InPlace(Block):
    def forward(self, x):
        y = self.attn(self.n1(x))
        y += x
        z = self.down(self.act(self.up(self.n2(y))))
        z += y
        return z


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.head = nn.Linear(6, 6), nn.ModuleList(Block() for _ in range(2)), nn.Linear(6, 3)

    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)

    def run(self, block, x):
        return block(x)


class Checkpointed(Net):
    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=False)


class Reentrant(Net):
    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=True)


class Wrapper(nn.Module):
    """As DataParallel and its kind."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class InDict(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return {"logits": self.net(x)}


def made(kind, seed=0):
    torch.manual_seed(seed)
    return kind().eval()


def changed(change):
    """Return the net, and its copy with something done to every block."""
    one = made(Net)
    other = copy.deepcopy(one)
    for block in other.blocks:
        change(block)
    return one, other.eval()


def functional(block):
    block.__class__ = Functional
    del block.act


def in_place(block):
    block.__class__ = InPlace


def padded(block):
    block.up = nn.Sequential(nn.Identity(), block.up, nn.Identity())


def kernel(block):
    block.attn.__class__ = Kernel


class Stack(nn.Module):
    """Layers in a list, run through in an order of their own; `places` says where each one lies."""

    def __init__(self, places):
        super().__init__()
        layers = [nn.Linear(6, 6) for _ in places]
        self.places, self.layers = places, nn.ModuleList(layers[places.index(place)] for place in range(len(places)))

    def forward(self, x):
        for place in self.places:
            x = torch.tanh(self.layers[place](x))
        return x


class Branches(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.left, self.right, self.norm, self.swapped = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6), swapped

    def forward(self, x):
        if self.swapped:
            right, left = self.right(x), self.left(x)
        else:
            left, right = self.left(x), self.right(x)
        return self.norm(left * torch.tanh(right))


class Contiguous(nn.Module):
    def __init__(self, copied):
        super().__init__()
        self.a, self.b, self.copied = nn.Linear(6, 6), nn.Linear(5, 6), copied

    def forward(self, x):
        y = self.a(x).transpose(1, 2)
        return self.b(y.contiguous() if self.copied else y)


class Returning(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.a, self.b, self.form = nn.Linear(6, 6), nn.Linear(6, 6), form

    def forward(self, x):
        hidden = self.a(x)
        return self.form(hidden, self.b(hidden))


class Positions(nn.Module):
    """Positions looked up once for all rows, or anew for each of them."""

    def __init__(self, each_row):
        super().__init__()
        self.pos, self.fc, self.each_row = nn.Embedding(5, 6), nn.Linear(6, 6), each_row

    def forward(self, x):
        places = torch.arange(5)
        return self.fc(x + self.pos(places.expand(len(x), -1) if self.each_row else places))


def without_dropout():
    one = made(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))
    return one, nn.Sequential(*(copy.deepcopy(each) for each in one if not isinstance(each, nn.Dropout))).eval()


def named_against_numbered():
    names = ("fc1", "act1", "fc2", "act2", "fc3")
    one = made(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))
    other = nn.Sequential()
    for name, each in zip(names, one, strict=True):
        other.add_module(name, copy.deepcopy(each))
    return one, other.eval()


def one_relu_for_all():
    one = made(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)))
    other = copy.deepcopy(one)
    other[3] = other[1]
    return one, other


REWRITES = {
    "functional": lambda: changed(functional),
    "in place": lambda: changed(in_place),
    "identities": lambda: changed(padded),
    "another kernel": lambda: changed(kernel),
    "checkpointed": lambda: (made(Net), made(Checkpointed)),
    "checkpointed, reentrant": lambda: (made(Net), made(Reentrant)),
    "checkpointed in two ways": lambda: (made(Checkpointed), made(Reentrant)),
    "wrapped": lambda: (made(Net), Wrapper(made(Net))),
    "wrapped, its output in a dict": lambda: (made(Net), InDict(made(Net))),
    "named against numbered": named_against_numbered,
    "one activation for all": one_relu_for_all,
    "branches in another order": lambda: (made(lambda: Branches(False)), made(lambda: Branches(True))),
    "a view against a copy": lambda: (made(lambda: Contiguous(True)), made(lambda: Contiguous(False))),
    "a list in another order": lambda: (made(lambda: Stack([0, 1, 2])), made(lambda: Stack([2, 0, 1]))),
    "dict against tuple": lambda: (
        made(lambda: Returning(lambda hidden, out: {"hidden": hidden, "out": out})),
        made(lambda: Returning(lambda hidden, out: (hidden, out))),
    ),
    "no dropout at rest": without_dropout,
    "positions for each row": lambda: (made(lambda: Positions(False)), made(lambda: Positions(True))),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("flipped", "backward"), [(False, False), (False, True), (True, True)], ids=["forward", "backward", "flipped"]
)
@pytest.mark.parametrize("case", REWRITES)
def test_a_rewrite_is_no_bug(case, flipped, backward):
    one, other = REWRITES[case]()
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=INPUT, backward=backward)
    failing = [(pair.name, pair.candidate_name, pair.method.value) for pair in result.pairs if not pair.verdict.passed]
    assert result.exit_code == 0, (failing, [left for left in result.leftovers if left.counts])
    assert result.first_divergence is None
    assert all(finding.harmless for finding in result.findings)


def paired_by_weights(result):
    return any(note.slug is NoteSlug.PAIRED_BY_WEIGHTS for note in result.notes)


def spoil(parameter):
    with torch.no_grad():
        parameter.view(-1)[0] += 0.5


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("case", REWRITES)
def test_a_bug_in_what_was_rewritten_is_found(case, flipped):
    one, other = REWRITES[case]()
    for parameter in list(other.parameters())[-2:]:
        spoil(parameter)
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=INPUT, backward=True)
    assert result.exit_code == 1
    assert result.first_divergence is not None


def test_names_that_mislead_are_told():
    result = nndiff.compare(*REWRITES["a list in another order"](), inputs=INPUT)
    assert paired_by_weights(result)
    partners = {pair.name: pair.candidate_name for pair in result.pairs if pair.method is Method.WEIGHTS}
    assert partners == {f"layers.{place}:output": f"layers.{(place + 2) % 3}:output" for place in range(3)}


def test_names_count_where_no_weights_are_equal():
    one, other = REWRITES["a list in another order"]()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 1e-6)
    result = nndiff.compare(one, other, inputs=INPUT, atol=1e-4)
    (judgement,) = result.judgements.values()
    assert (result.verdict, judgement.outside) == ("different", Outcome.CLOSE)
    assert "cancels-out" in {finding.cause for finding in result.findings if finding.harmless}
    assert nndiff.compare(one, other, inputs=INPUT, atol=1e-4, judge="outputs").exit_code == 0


def test_layers_that_changed_places_are_found_where_the_output_differs():
    one = made(Attention)
    other = copy.deepcopy(one)
    other.q, other.k = other.k, other.q
    result = nndiff.compare(one, other, inputs=INPUT)
    first = result.first_divergence
    assert (result.exit_code, first.module, first.after, first.before) == (1, "", "v:output", "o:output")
    (finding,) = (finding for finding in result.findings if finding.cause == "weights-swapped")
    assert finding.where == ("q", "k")


class Normed(nn.Module):
    """Call convolutions and norms that have names."""

    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)
        for norm in (self.b1, self.b2):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        return self.fc(F.relu(self.b2(self.c2(x)) + x).mean((2, 3)))


class Folded(Normed):
    def __init__(self, plain):
        super().__init__()
        self.c1 = torch.nn.utils.fuse_conv_bn_eval(plain.c1, plain.b1)
        self.c2 = torch.nn.utils.fuse_conv_bn_eval(plain.c2, plain.b2)
        self.fc = plain.fc
        del self.b1, self.b2

    def forward(self, x):
        x = F.relu(self.c1(x))
        return self.fc(F.relu(self.c2(x) + x).mean((2, 3)))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_folded_norm_is_a_difference_only_in_the_gradients_of_the_norm(flipped, backward):
    torch.manual_seed(0)
    plain = Normed().eval()
    folded = Folded(plain).eval()
    both = (folded, plain) if flipped else (plain, folded)
    result = nndiff.compare(*both, inputs=torch.randn(2, 3, 16, 16), backward=backward)
    assert result.exit_code == (1 if backward else 0)
    harmless = {finding.cause for finding in result.findings if finding.harmless}
    assert "batch-norm-folded" in harmless
    assert all(finding.harmless for finding in result.findings)  # gradients follow the fold
    assert not any(pair.verdict is Verdict.DIFFERENT for pair in result.pairs)
    assert any(item.site.slot is Slot.PARAM_GRAD for item in result.leftovers if item.counts) == backward
    assert not paired_by_weights(result)


class Product(nn.Module):
    def forward(self, x):
        return x.contiguous() * 1


class Turning(nn.Module):
    """Hand on what a layer returns, or that with its axes exchanged."""

    def __init__(self):
        super().__init__()
        self.layer, self.hand_on, self.turned = nn.Linear(6, 6), Product(), False

    def forward(self, x):
        out = self.layer(x)
        return self.hand_on(out.transpose(-1, -2)).transpose(-1, -2) if self.turned else self.hand_on(out)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_names_that_mislead_beside_an_output_that_lies_otherwise_are_no_bug(flipped, backward):
    torch.manual_seed(0)
    one = nn.Sequential(Turning(), nn.Linear(6, 6), nn.LayerNorm(6))
    other = copy.deepcopy(one)
    other[0].turned = True
    other = nn.Sequential(other[0], other[1], nn.Identity(), other[2])
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=INPUT, backward=backward)
    assert (result.verdict, result.exit_code, result.needed_tolerance) == ("identical", 0, 0.0)
    assert {finding.cause for finding in result.findings} == {"permuted"}
    assert paired_by_weights(result)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_norms_that_go_by_names_of_others_are_paired_with_what_they_hold(flipped, backward):
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    other = nn.Sequential(nn.Identity(), *copy.deepcopy(one))
    both = (other, one) if flipped else (one, other)
    result = nndiff.compare(*both, inputs=torch.randn(8, 6), backward=backward, mode="train")
    assert (result.verdict, result.exit_code) == ("identical", 0)


def test_a_running_statistic_that_differs_is_found_under_names_that_mislead():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    other = nn.Sequential(nn.Identity(), *copy.deepcopy(one))
    other[2].momentum = 0.2
    assert nndiff.compare(one, other, inputs=torch.randn(8, 6), mode="train").exit_code == 1


class Holed(nn.Module):
    """Spoil one element of a large tensor between two layers."""

    def __init__(self, spoiled):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.spoiled = {"at": spoiled}

    def forward(self, x):
        y = self.a(x) * 1.5
        if self.spoiled["at"]:
            y[3, 5] = 0.0
        return self.b(y)


def test_one_wrong_element_between_layers_is_not_blamed_on_the_next_layer():
    result = nndiff.compare(Holed(False), Holed(True), inputs=torch.randn(64, 64))
    assert result.first_divergence.name == "(model):output"


class Looped(nn.Module):
    """Go through two layers twice, with one activation for both or one for each."""

    def __init__(self, shared, second=None):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act1 = nn.Tanh()
        self.act2 = self.act1 if shared else second or nn.Tanh()

    def forward(self, x):
        for _ in range(2):
            x = self.act2(self.two(self.act1(self.one(x))))
        return x


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_one_activation_for_several_in_a_loop_is_no_bug(flipped, backward):
    models = [Looped(shared=True), Looped(shared=False)][:: -1 if flipped else 1]
    assert nndiff.compare(*models, inputs=torch.randn(3, 4), backward=backward).exit_code == 0


def test_another_activation_in_a_loop_is_found():
    result = nndiff.compare(Looped(shared=True), Looped(False, nn.Softsign()), inputs=torch.randn(3, 4))
    assert result.exit_code == 1
    assert result.first_divergence.module in ("act1", "two")
