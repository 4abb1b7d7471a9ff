"""Wrong, lost and scaled gradients: where they come from is said, as far as it is known and no farther."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from old_folders import old_script
from torch import nn

import nndiff
from gradients import slightly, with_gradient
from nndiff.errors import ModelError
from nndiff.reports import ReportOptions, get_report
from nndiff.result import PartingReason
from nndiff.tensors import Slot
from nndiff.verdict import Verdict
from noisy import compare_by_noise

INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Part(nn.Module):
    """Three layers with something between the first two."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = [between]

    def forward(self, x):
        return self.c(self.b(self.between[0](self.a(x))))


class Net(nn.Module):
    def __init__(self, between=lambda x: x, after=lambda x: x):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.part, self.head = nn.Linear(4, 4), Part(between), nn.Linear(4, 2)
        self.after = [after]

    def forward(self, x):
        return self.after[0](self.head(self.part(self.stem(x))))


class Wrong(nn.Linear):
    def forward(self, x):
        return super().forward(slightly(x))


def wrong_layer(between=lambda x: x):
    made = Net(between)
    weights = made.part.b.state_dict()
    made.part.b = Wrong(4, 4)
    made.part.b.load_state_dict(weights)
    return made


def report(result):
    return get_report("terminal").render(result, ReportOptions(width=200, color=False))


def compared(reference, candidate, **options):
    return nndiff.compare(reference, candidate, inputs=INPUT, backward=True, **options)


def causes(result):
    return {finding.cause for finding in result.findings}


def unseen(tensor):
    """Hand on what is given as it is: nothing of it is seen in the forward pass."""
    return with_gradient(tensor, lambda grad: grad * 1.1, copied=False)


# what is done between two layers of the reference, of the candidate, and what is said
BETWEEN = {
    "straight there": (lambda x: x, slightly, "between part.a and part.b in the candidate, or of part.b"),
    "an identity there": (lambda x: x, unseen, "between part.a and part.b in the candidate, or of part.b"),
    "a copy there": (torch.clone, slightly, "between part.a and part.b in the reference and the candidate"),
    "a function there": (torch.tanh, lambda x: slightly(torch.tanh(x)), "part.b or of the code in between"),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_a_wrong_backward_between_two_layers_is_not_blamed_on_the_next(case):
    reference, candidate, said = BETWEEN[case]
    first = compared(Net(reference), Net(candidate)).first_divergence
    assert (first.name, first.module) == ("part.a:grad_output", "part")
    assert said in first.why


def test_a_wrong_backward_of_a_layer_is_blamed_on_it_where_it_takes_the_output_itself():
    first = compared(Net(), wrong_layer()).first_divergence
    assert (first.name, first.module) == ("part.a:grad_output", "part.b")
    assert "its backward" in first.why


def test_a_wrong_backward_after_the_last_layer_is_blamed_on_the_model():
    first = compared(Net(), Net(after=slightly)).first_divergence
    assert (first.name, first.module) == ("head:grad_output", "")
    assert "what (model) does after head" in first.why


class Attention(nn.Module):
    """An attention that returns its weights too, as those of transformers do where they are eager."""

    def __init__(self, mixed):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))
        self.mixed = [mixed]

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = (q @ k.mT).softmax(-1)
        return self.o(self.mixed[0](weights @ v)), weights


class Blocks(nn.Module):
    """Blocks of an attention, with code of their own around it; one attention may serve all of them."""

    def __init__(self, mixed=lambda y: y, shared=False):
        super().__init__()
        torch.manual_seed(0)
        made = [Attention(mixed), Attention(mixed)]
        self.attentions = nn.ModuleList([made[0]] * 2 if shared else made)
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])
        self.mlps = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        for attention, norm, mlp in zip(self.attentions, self.norms, self.mlps, strict=True):
            x = x + attention(x)[0]
            x = x + mlp(norm(x))
        return x


@pytest.mark.parametrize("shared", [False, True])
def test_a_wrong_backward_inside_what_returns_a_second_output_is_not_blamed_on_what_follows(shared):
    first = compared(Blocks(shared=shared), Blocks(slightly, shared)).first_divergence
    number, call = (0, "@1") if shared else (1, "")
    assert first.name == f"attentions.{number}{call}:grad_output.1"
    assert first.module == f"attentions.{number}"
    said = f"the backward of attentions.{number}.o{call}, of what attentions.{number}{call} does before it"
    assert said in first.why


class Skipping(nn.Module):
    """An encoder whose output goes on through code that is no module, and past it to the decoder.

    What is added on the way comes from elsewhere: a constant, positions, the input.
    """

    def __init__(self, skip=lambda x: x, pool=None, scale=None):
        super().__init__()
        torch.manual_seed(0)
        self.down, self.middle, self.up = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)
        self.time, self.places, self.side = nn.Linear(4, 4), nn.Embedding(3, 4), nn.Linear(4, 4)
        self.decoder, self.head = nn.Linear(8, 4), nn.Linear(4, 2)
        self.pool, self.scale = pool, scale  # modules, or done by code
        self.skip = [skip]

    def forward(self, x):
        y = self.down(x)
        side = self.side((self.scale or torch.tanh)(x))
        added = self.time(torch.full((3, 4), 0.3)) + self.places(torch.arange(3)) + side
        z = self.up(self.middle((self.pool or torch.sigmoid)(y)) + added)
        return self.head(self.decoder(torch.cat([z, self.skip[0](y)], 1)))


POOL, SCALE = {"pool": nn.Sigmoid()}, {"scale": nn.Tanh()}


@pytest.mark.parametrize("skip", [torch.detach, slightly], ids=["cut", "scaled"])
@pytest.mark.parametrize(("reference", "candidate"), [(SCALE, SCALE), (SCALE, {}), ({}, SCALE), (POOL, {}), ({}, POOL)])
def test_a_wrong_backward_past_the_next_layer_is_not_said_to_lie_before_it(skip, reference, candidate):
    first = compared(Skipping(**reference), Skipping(skip, **candidate)).first_divergence
    assert (first.name, first.module) == ("down:grad_output", "")
    assert "the gradient at the output of middle.0 agrees" in first.why
    assert "anything later that takes the output of down" in first.why


def test_the_headline_has_the_class_of_what_it_names_and_says_where_to_look():
    result = compared(Net(), wrong_layer())
    assert result.first_divergence.classes == ("Linear", "Linear")
    assert result.first_divergence.module_classes == ("Linear", "Wrong")
    text = report(result)
    assert "▶ first at part.a:grad_output  Linear, max abs" in text
    assert "look in    part.b  Linear → Wrong" in text


def without(change):
    made = Net()
    change(made)
    return made


def no_grad(made):
    plain = made.part.forward
    made.part.forward = torch.no_grad()(plain)


def frozen(made):
    made.stem.requires_grad_(False)


def frozen_weight(made):
    made.part.b.weight.requires_grad_(False)


def all_frozen(made):
    made.requires_grad_(False)


def detached(made):
    made.after = [torch.detach]


# what is done to the candidate, the first gradient it lacks, how many parameters of ten keep one, and what is said
LOST = {
    no_grad: ("part:grad_output", 2, "its output requires no gradient"),
    detached: ("(model):grad_output", 0, "its output requires no gradient"),
    all_frozen: ("(model):grad_output", 0, "nothing in it or before it requires one"),
    frozen: ("stem:grad_output", 8, "nothing in it or before it requires one"),
    frozen_weight: ("part.b.weight:param_grad", 9, "frozen, tied to another parameter, or absent"),
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("change", LOST, ids=lambda change: change.__name__)
def test_gradients_that_one_side_lacks_are_a_difference_and_told(change, flipped):
    name, kept, said = LOST[change]
    models = [Net(), without(change)]
    result = compared(*(models[::-1] if flipped else models))
    assert result.exit_code == 1
    first = result.first_divergence
    assert (first.name, first.reason) == (name, PartingReason.GRADIENT_MISSING)
    assert first.missing_in == ("reference" if flipped else "candidate")
    assert said in first.why
    (finding,) = [each for each in result.findings if each.cause == "gradients-missing"]
    assert f"the {'reference' if flipped else 'candidate'} lacks" in finding.evidence
    assert f"parameters {kept} of 10 parameter gradients match" in report(result)


def test_one_of_several_outputs_that_is_detached_is_where_they_part():
    def pair(form):
        made = nn.Linear(4, 4)
        plain = made.forward
        made.forward = lambda x: form(plain(x))
        return made

    one = pair(lambda y: (y, y * 2))
    other = pair(lambda y: (y, (y * 2).detach()))
    other.load_state_dict(one.state_dict())
    result = compared(one, other)
    assert result.first_divergence.name == "(model):grad_output.1"


def test_no_gradient_on_either_side_is_trouble():
    with pytest.raises(ModelError, match="neither the reference nor the candidate has a gradient"):
        compared(without(detached), without(detached))


def test_a_loss_that_is_scaled_is_told_and_no_layer_blamed(tmp_path):
    one = nndiff.record(Net(), INPUT, path=tmp_path / "one", backward=True, loss=lambda out: out.square().mean())
    other = nndiff.record(Net(), INPUT, path=tmp_path / "other", backward=True, loss=lambda out: out.square().sum())
    result = nndiff.compare(one, other)
    assert result.first_divergence.name == "(model):loss"
    (finding,) = [each for each in result.findings if each.cause == "gradients-scaled"]
    assert "every gradient is 6 times the reference's: the loss is scaled" in finding.evidence


def test_parameters_that_are_scaled_after_the_backward_pass_are_told():
    other = Net()
    for parameter in other.parameters():
        parameter.register_hook(lambda grad: grad / 4)
    result = compared(Net(), other)
    assert "every gradient of a parameter is 1/4 times the reference's" in result.first_divergence.why
    assert result.first_divergence.module == ""
    assert causes(result) == {"gradients-scaled"}


@pytest.mark.usefixtures("without_experiments")
def test_a_factor_that_comes_in_halfway_is_told_beside_the_layer():
    result = compared(Net(), wrong_layer())
    assert result.first_divergence.module == "part.b"
    (finding,) = [each for each in result.findings if each.cause == "gradients-scaled"]
    assert "every gradient that is out of tolerance is 1.1 times the reference's" in finding.evidence


@pytest.mark.usefixtures("without_experiments")
def test_gradients_that_are_out_by_no_one_factor_are_not_called_scaled():
    other = Net()
    other.part.b.weight.register_hook(lambda grad: grad * 2)
    other.head.weight.register_hook(lambda grad: grad * 3)
    assert causes(compared(Net(), other)) == {"gradients-only"}


@pytest.mark.parametrize("hooks", [False, True])
def test_an_old_folder_whose_gradients_are_all_scaled_blames_no_layer(hooks, tmp_path):
    one, other = (
        old_script(nn.Sequential(Net().stem, nn.ReLU(), Net().head), tmp_path / name, "by direction")
        for name in ("one", "other")
    )
    gradients = torch.load(other / "parameter_gradients.pt")
    torch.save({name: grad * 1.5 for name, grad in gradients.items()}, other / "parameter_gradients.pt")
    if hooks:
        held = pickle.loads((other / "hook_data.pkl").read_bytes())
        held["backward"] = {name: grad * 1.5 for name, grad in held["backward"].items()}
        (other / "hook_data.pkl").write_bytes(pickle.dumps(held))
    result = nndiff.compare(one, other)
    assert result.first_divergence.module == ""
    assert "is 1.5 times the reference's" in result.first_divergence.why
    assert causes(result) == {"gradients-scaled"}


class Normed(nn.Module):
    """A bias in front of batch norm, whose gradient is nothing but rounding."""

    def __init__(self, activation, bias=lambda x: x):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv1d(16, 16, 9, padding=4, groups=16), nn.BatchNorm1d(16)
        self.after = nn.Conv1d(16, 16, 1)
        self.parts = [activation, bias]

    def forward(self, x):
        activation, bias = self.parts
        y = activation(self.norm(self.conv(x)))
        return nn.functional.conv1d(y, self.after.weight, bias(self.after.bias))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_rounding_is_forgiven_on_the_scale_of_what_was_summed(size, tmp_path):
    signal = torch.randn(2, 16, 14, generator=torch.Generator().manual_seed(1))
    options = {"backward": True, "mode": "train", "loss": lambda y: size * y.square().sum()}
    reference, rewritten = Normed(nn.functional.silu), Normed(lambda x: x * x.sigmoid())
    assert compare_by_noise(tmp_path, reference, rewritten, signal, tolerance="noise", **options).exit_code == 0
    wrong = compare_by_noise(tmp_path, reference, Normed(nn.functional.silu, slightly), signal, **options)
    assert [each.name for each in wrong.pairs if each.verdict is Verdict.DIFFERENT] == ["after.bias:param_grad"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_kernel_that_sums_worse_than_the_reference_shows_in_gradients_alone(seed, tmp_path):
    """A known limit: channels last, batch norm adds thousands of equal terms one by one, which no draw shows."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).train()
    other = copy.deepcopy(net).to(memory_format=torch.channels_last)
    result = compare_by_noise(tmp_path, net, other, torch.randn(4, 3, 32, 32), backward=True)
    differing = [pair for pair in result.pairs if not pair.verdict.passed]
    assert all(pair.slot is Slot.PARAM_GRAD for pair in differing)
    paths = tmp_path / "reference.nnrec", tmp_path / "candidate.nnrec"
    assert nndiff.compare(*paths, atol=1e-2).exit_code == 0


class Faint(nn.Module):
    """A layer whose gradients are a millionth of the others'."""

    def __init__(self, flip):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.flip = nn.Linear(4, 4), nn.Linear(4, 4), flip

    def forward(self, x):
        hidden = self.a(x)
        return self.b(x + 1e-6 * (with_gradient(hidden, torch.neg) if self.flip else hidden))


def test_a_wrong_gradient_is_found_where_gradients_are_faint():
    result = compared(Faint(False), Faint(True))
    assert result.exit_code == 1
    assert "a.weight:param_grad" in {pair.name for pair in result.worst()}
