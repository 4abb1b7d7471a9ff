"""Replay: every module at fault is found in one run, and only those; nothing of the models is changed."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from test_planted_faults import (
    BACKWARD,
    FORWARD,
    MISSING,
    activation_backward,
    cast,
    decay,
    eps,
    head_scaled,
    layer_norm_eps,
    model,
    no_bias,
    no_mask,
    no_residual,
    norms_swapped,
    statistics,
    transposed,
    wrong_gelu_in_no_module,
)
from torch import nn
from zoo import ZOO

import nndiff
from gradients import slightly
from helpers import nndiff as run_command
from nndiff.errors import NndiffError, UsageError
from nndiff.findings import hypotheses
from nndiff.result import NoteSlug, PartingReason
from nndiff.tensors import Slot


def find_faults(bugs, name, **options):
    broken = model(name)
    for bug in bugs:
        bug(broken)
    return nndiff.compare(model(name), broken, inputs=ZOO[name].inputs(), **options)


def name_modules(result):
    return [error.module for error in result.own_errors]


def list_missing(result):
    return [note.text for note in result.notes if note.slug is NoteSlug.NO_EXPERIMENT]


# exchanged norms are two faults: each is handed what the other should get
ONE = [bug for bug in FORWARD if bug is not norms_swapped]


@pytest.mark.parametrize("bug", ONE, ids=lambda bug: bug.__name__)
def test_one_fault_is_the_one_own_error(bug):
    name, place = FORWARD[bug]
    result = find_faults([bug], name)
    assert (name_modules(result), list_missing(result)) == ([place], [])
    assert (result.first_divergence.module, result.first_divergence.reason) == (place, PartingReason.OWN_ERROR)


@pytest.mark.parametrize("bug", [eps, statistics, no_residual], ids=lambda bug: bug.__name__)
def test_wrong_gradients_of_wrong_code_are_no_further_error(bug):
    name, place = FORWARD[bug]
    result = find_faults([bug], name, backward=True)
    assert name_modules(result) == [place]
    assert any("grad" in site for site in result.own_errors[0].also)


@pytest.mark.parametrize(
    "bugs",
    [
        (eps, no_mask),
        (transposed, head_scaled),
        (eps, no_residual),
        (eps, cast, head_scaled),
        (layer_norm_eps, no_bias, wrong_gelu_in_no_module),
        (decay,),
    ],
    ids=lambda bugs: "+".join(bug.__name__ for bug in bugs),
)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_several_faults_are_all_found(bugs, backward):
    result = find_faults(bugs, FORWARD[bugs[0]][0], backward=backward)
    assert sorted(name_modules(result)) == sorted(FORWARD[bug][1] for bug in bugs)
    orders = [error.order for error in result.own_errors]
    assert orders == sorted(orders)


@pytest.mark.parametrize("bug", [bug for bug in BACKWARD if BACKWARD[bug][2] is not MISSING], ids=lambda b: b.__name__)
def test_a_wrong_backward_is_an_own_error(bug):
    name, place, _, _ = BACKWARD[bug]
    assert name_modules(find_faults([bug], name, backward=True)) == [place]


def test_a_wrong_backward_is_found_beside_a_wrong_forward():
    result = find_faults([eps, activation_backward], "llama", backward=True)
    assert name_modules(result) == [FORWARD[eps][1], BACKWARD[activation_backward][1]]
    assert result.own_errors[1].slot is Slot.GRAD_OUTPUT


# -- models of our own ------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.scale = width**-0.5

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).transpose(1, 2) * self.scale
        return self.out((scores + mask).softmax(-1) @ self.value(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)

    def forward(self, x, mask):
        return x + self.attention(self.norm(x), mask)


class Net(nn.Module):
    shift = 1

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -1e4).triu(self.shift)
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class PortAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.factor = width**-0.5

    def forward(self, hidden, attention_mask):
        scores = torch.einsum("bid,bjd->bij", self.q(hidden), self.k(hidden)) * self.factor
        return self.o((scores + attention_mask).softmax(-1) @ self.v(hidden))


class PortBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln, self.attn, self.gain = nn.LayerNorm(width), PortAttention(width), 1.0

    def forward(self, hidden, attention_mask=None):
        return self.gain * hidden + self.attn(hidden=self.ln(hidden), attention_mask=attention_mask)


class Port(nn.Module):
    def __init__(self, width=8, depth=3):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.blocks = nn.ModuleList(PortBlock(width) for _ in range(depth))
        self.classifier = nn.Linear(width, 3)

    def forward(self, tokens):
        attention_mask = torch.full((tokens.shape[1], tokens.shape[1]), -1e4).triu(1)
        tokens = self.stem(tokens)
        for block in self.blocks:
            tokens = block(tokens, attention_mask=attention_mask)
        return self.classifier(tokens)


NAMES = {"stem": "embed", "blocks": "layers", "classifier": "head", "ln": "norm", "attn": "attention"}
NAMES |= {"q": "query", "k": "key", "v": "value", "o": "out"}


def make_port(net):
    port = Port()
    held = net.state_dict()
    port.load_state_dict(
        {name: held[".".join(NAMES.get(part, part) for part in name.split("."))] for name in port.state_dict()}
    )
    return port


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def batch():
    return torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))


def test_a_good_port_has_no_own_errors(net, batch):
    result = nndiff.compare(net, make_port(net), inputs=batch, backward=True, replay=True)
    assert (result.exit_code, result.own_errors, list_missing(result)) == (0, (), [])
    assert any(pair.own is not None for pair in result.pairs)


def test_three_faults_in_a_port_with_other_names(net, batch):
    port = make_port(net)
    port.blocks[0].ln.eps = 1e-2
    port.blocks[1].attn.factor = 1.0
    port.blocks[2].gain = 1.1
    result = nndiff.compare(net, port, inputs=batch)
    assert name_modules(result) == ["layers.0.norm", "layers.1.attention", "layers.2"]
    assert [error.candidate_module for error in result.own_errors] == ["blocks.0.ln", "blocks.1.attn", "blocks.2"]
    second, third = result.own_errors[1:]
    assert (second.after, second.before) == ("layers.1.attention.value", "layers.1.attention.out")
    assert (third.after, third.before) == ("layers.2.attention", "")
    assert second.classes == ("Attention", "PortAttention")
    assert "layers.1.attention.key:output" in second.given
    causes = {finding.where: finding.cause for finding in result.findings}
    assert all((error.name,) in causes for error in result.own_errors)
    assert "at fault   3 modules" in str(result)


def test_a_mask_handed_to_all_layers_is_one_error(net, batch):
    wrong = copy.deepcopy(net)
    wrong.shift = 2
    result = nndiff.compare(net, wrong, inputs=batch)
    assert name_modules(result) == [""]
    assert (result.own_errors[0].name, len(result.own_errors[0].also)) == ("layers.0:input.1", 2)


def test_several_batches_and_candidates(net, batch):
    one, two = copy.deepcopy(net), copy.deepcopy(net)
    one.layers[1].norm.eps = 1e-2
    two.layers[2].attention.scale = 1.0
    result = nndiff.compare(net, one, two, inputs=[batch, batch + 1])
    found = [(error.candidate, error.module) for error in result.own_errors]
    assert found == [("<Net>", "layers.1.norm"), ("<Net> (2)", "layers.2.attention")]


class Shared(nn.Module):
    """Call one module several times, write in place, and return tuples, dicts and dataclasses."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.linear, self.act, self.norm = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6)
        self.pair, self.head, self.factor = Pair(), nn.Linear(6, 2), factor

    def forward(self, x):
        x = self.act(self.norm(self.linear(x)))
        x = x - 0.1
        self.act(x)  # in place: what it returns is not needed
        parts = self.pair(self.linear(x))
        state = parts["state"].value * self.factor
        return {"logits": self.head(state + parts["both"][0]), "state": state}


@dataclass(frozen=True)
class State:
    value: torch.Tensor


class Pair(nn.Module):
    def forward(self, x):
        return {"both": (x.relu(), [x + 1]), "state": State(x.tanh())}


@pytest.mark.parametrize("backward", [False, True])
def test_in_place_shared_and_nested(backward):
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    sides = []
    for factor in (1.0, 1.5):
        torch.manual_seed(0)
        sides.append(Shared(factor))
    result = nndiff.compare(*sides, inputs=inputs, backward=backward, mode="train", seed=1)
    assert (name_modules(result), list_missing(result)) == ([""], [])
    assert result.own_errors[0].after == "pair"


def test_a_custom_backward_that_is_wrong(net, batch):
    wrong = copy.deepcopy(net)
    act = wrong.layers[1].norm.forward
    wrong.layers[1].norm.forward = lambda x: act(slightly(x))
    assert nndiff.compare(net, wrong, inputs=batch).exit_code == 0
    result = nndiff.compare(net, wrong, inputs=batch, backward=True)
    assert len(result.own_errors) == 1
    assert result.own_errors[0].module in ("layers.1", "layers.1.norm")
    assert result.own_errors[0].slot is Slot.GRAD_OUTPUT


# -- what experiments cost, and what they leave ------------------------------------------------------------------------


def count_calls(module, counts, name):
    module.register_forward_pre_hook(lambda *_: counts.update({name: counts.get(name, 0) + 1}))


def test_at_most_four_passes_more_and_nothing_is_changed(net, batch):
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    for side in (net, wrong):
        side.embed.weight.grad = torch.ones_like(side.embed.weight)
    before = [copy.deepcopy(side.state_dict()) for side in (net, wrong)]
    counts: dict[str, int] = {}
    handles = len(net.embed._forward_hooks)
    count_calls(net, counts, "reference")
    count_calls(wrong, counts, "candidate")
    random_state = torch.get_rng_state()
    result = nndiff.compare(net, wrong, inputs=batch, backward=True)
    assert result.own_errors
    assert torch.equal(torch.get_rng_state(), random_state)
    assert counts["candidate"] == 2
    assert sum(counts.values()) <= 2 + 4
    for side, held in zip((net, wrong), before, strict=True):
        assert all(torch.equal(side.state_dict()[name], tensor) for name, tensor in held.items())
        assert torch.equal(side.embed.weight.grad, torch.ones_like(side.embed.weight))
        assert side.head.weight.grad is None
    assert len(net.embed._forward_hooks) == handles
    counts.clear()
    assert not nndiff.compare(net, wrong, inputs=batch, replay=False, noise=False).own_errors
    assert counts == {"reference": 1, "candidate": 1}
    counts.clear()
    assert nndiff.compare(net, copy.deepcopy(net), inputs=batch).exit_code == 0
    assert counts["reference"] == 1 + 1  # a copy takes the hook along


def test_a_model_that_fails_when_it_runs_again_is_compared_all_the_same(net, batch):
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    runs = iter([None])
    plain = wrong.forward

    def forward(x):
        next(runs)
        return plain(x)

    wrong.forward = forward
    result = nndiff.compare(net, wrong, inputs=batch)
    assert (result.exit_code, result.own_errors) == (1, ())
    assert list_missing(result)[0].startswith("<Net> was not replayed")
    assert result.first_divergence.module == "layers.1.norm"


def test_a_reference_that_does_not_repeat_itself(net, batch):
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    plain, drift = net.forward, iter(range(9))
    net.forward = lambda x: plain(x) + next(drift)
    result = nndiff.compare(net, wrong, inputs=batch)
    assert (result.exit_code, result.own_errors) == (1, ())
    assert "does not repeat itself" in list_missing(result)[0]


def test_a_reference_that_fails_when_it_is_moved(net, batch):
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    plain, weight = net.forward, net.head.weight.detach().clone()

    def forward(x):
        assert torch.equal(net.head.weight, weight)
        return plain(x)

    net.forward = forward
    result = nndiff.compare(net, wrong, inputs=batch)
    assert [(error.module, error.times_noise) for error in result.own_errors] == [("layers.1.norm", None)]
    assert "the noise floor was not measured" in list_missing(result)[0]
    with pytest.raises(NndiffError, match="the model fails: AssertionError"):
        nndiff.compare(net, wrong, inputs=batch, tolerance="noise")


def test_the_tolerance_changes_nothing_of_what_is_compared(net, batch):
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    results = [nndiff.compare(net, wrong, inputs=batch, tolerance=tolerance) for tolerance in (None, "noise")]
    names = [[pair.name for pair in result.pairs] + [item.name for item in result.leftovers] for result in results]
    assert names[0] == names[1]
    assert results[0].own_errors == results[1].own_errors
    with pytest.raises(UsageError, match="--no-noise"):
        nndiff.compare(net, wrong, inputs=batch, tolerance="noise", noise=False)


def test_an_output_of_another_shape_is_an_error_and_what_follows_is_none():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    wider = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, 3))
    result = nndiff.compare(net, wider, inputs=torch.randn(4, 6))
    assert [error.module for error in result.own_errors] == ["0"]


class Tied(nn.Module):
    def __init__(self, is_tied):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        with torch.no_grad():
            self.second.weight.copy_(self.first.weight)
        if is_tied:
            self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_gradient_of_tied_weights_is_made_by_no_one_module(is_tied):
    result = nndiff.compare(Tied(is_tied), Tied(not is_tied), inputs=torch.randn(4, 6), backward=True)
    assert [finding.cause for finding in result.findings if finding.cause == "untied"]
    assert not result.own_errors


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor = nn.Linear(6, 6), factor

    def forward(self, x):
        made = self.layer(x)
        return made if self.factor == 1 else made * self.factor


def test_a_module_whose_partner_is_right_is_not_blamed_for_what_is_done_to_its_output():
    result = nndiff.compare(Scaled(1), Scaled(1.5), inputs=torch.randn(4, 6))
    ((module, candidate_module, after),) = {
        (error.module, error.candidate_module, error.after) for error in result.own_errors
    }
    assert (module, candidate_module, after) == ("", "", "layer")


class Bias(nn.Module):
    """Make a bias of attention, as T5 does, in which closed places hold the smallest number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)
        self.factor = 1.0

    def forward(self, mask):
        places = torch.arange(mask.shape[1])
        distances = (places[:, None] - places).clamp(-4, 3) + 4
        closed = (1 - mask)[:, None, None] * torch.finfo(torch.float32).min
        return self.factor * self.table(distances).permute(2, 0, 1) + closed


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.read = Bias(), nn.Linear(6, 6)

    def forward(self, x, mask):
        return (x @ x.mT + self.bias(mask)).softmax(-1) @ self.read(x)


@pytest.mark.parametrize("tolerance", [None, "noise"])
def test_what_closed_places_hold_hides_no_fault(tolerance):
    torch.manual_seed(0)
    net = Biased()
    wrong = copy.deepcopy(net)
    wrong.bias.factor = 1.01
    mask = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    result = nndiff.compare(net, wrong, inputs=(torch.randn(2, 1, 5, 6), mask), tolerance=tolerance)
    assert [error.module for error in result.own_errors] == ["bias"]
    assert result.first_divergence.module == "bias"


FILE = """
import torch
from torch import nn

def model(eps=1e-5, seeded=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps), nn.Tanh(), nn.Linear(8, 2))
    if not seeded:
        torch.seed()
        nn.init.normal_(net[0].weight)
    return net

def wrong():
    net = model(1e-1)
    with torch.no_grad():
        net[3].bias.add_(1)
    return net

def slightly_wrong():
    return model(1.1e-5)

def unseeded():
    return model(seeded=False)

def inputs():
    return torch.randn(3, 4)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FILE)
    return tmp_path / "net.py"


def run_json(*words):
    run_command(*words, "-q", "--report", "json:x.json")
    with open("x.json") as stream:
        return json.load(stream)


def test_nndiff_run_replays_in_its_own_process(file):
    data = run_json("run", "net.py", "net.py:wrong")
    assert [error["module"] for error in data["own_errors"]] == ["1", "3"]
    assert run_json("run", "net.py", "net.py:wrong", "--no-replay", "--no-noise")["own_errors"] == []
    data = run_json("run", "net.py", "net.py:wrong", "--no-noise")
    assert [(error["module"], error["times_noise"]) for error in data["own_errors"]] == [("1", None), ("3", None)]


def test_nndiff_run_judges_by_the_noise_floor(file):
    data = run_json("run", "net.py", "net.py:wrong", "--tolerance", "noise")
    assert [error["module"] for error in data["own_errors"]] == ["1", "3"]
    data = run_json("run", "net.py", "net.py:slightly_wrong", "--tolerance", "noise", "--noise-factor", "12")
    judged = {pair["name"]: (pair["verdict"], pair["times_noise"] > 12) for pair in data["pairs"]}
    assert judged["1:output"] == ("different", True)
    assert all(is_beyond == (verdict == "different") for verdict, is_beyond in judged.values())
    assert run_json("run", "net.py", "net.py:slightly_wrong")["exit_code"] == 0
    assert run_command("run", "net.py", "net.py", "--tolerance", "noise", "--no-noise").returncode == 2


def test_nndiff_diff_replays_a_model_on_a_recording(file):
    run_command("record", "net.py", "-o", "a.nnrec")
    data = run_json("diff", "a.nnrec", "net.py:wrong")
    assert [error["module"] for error in data["own_errors"]] == ["1", "3"]
    assert run_json("diff", "a.nnrec", "net.py:wrong", "--no-replay")["own_errors"] == []


def test_weights_that_are_drawn_anew_are_not_replayed(file):
    data = run_json("run", "net.py", "net.py:unseeded")
    assert data["exit_code"] == 1
    notes = [note["text"] for note in data["notes"] if note["slug"] == "no-experiment"]
    assert "does not hold the same weights" in notes[0]


class Gated(nn.Module):
    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.factor = nn.Linear(6, 8), nn.Linear(8, 6), factor

    def forward(self, x):
        hidden = self.up(x)
        return self.down(hidden + self.factor * torch.sin(hidden.cumsum(-1)))


@pytest.mark.parametrize("format_name", ["terminal", "md", "html"])
def test_reports_name_the_calls_and_the_tensors_between_which_code_is_wrong(format_name, tmp_path):
    from nndiff.reports import ReportOptions, get_report

    result = nndiff.compare(Gated(0.1), Gated(0.2), inputs=torch.randn(4, 6))
    text = get_report(format_name).render(result, ReportOptions(width=200, color=False))
    text = text.replace("\\", "")
    assert "between up and down" in text
    assert "in (model):input.0, up:output; out down:input.0" in text


def test_own_errors_are_kept_in_a_saved_result(net, batch, tmp_path):
    from nndiff.relations import load_relation
    from nndiff.result_json import load
    from nndiff.tolerance import Tolerance

    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    result = nndiff.compare(net, wrong, inputs=batch)
    result.save(tmp_path / "x.json")
    loaded = load(tmp_path / "x.json", load_relation)
    assert loaded.own_errors == result.own_errors
    assert loaded.judged_at(Tolerance(1e-6, 1e-6)).own_errors == result.own_errors
    assert loaded.judged_at(Tolerance(10, 10)).own_errors == ()


# -- blocks in another order, random numbers, weights known by their digests -------------------------------------------


class Block(nn.Module):
    """Two branches, each behind a norm and followed by dropout, whose order is an option."""

    def __init__(self, order, drops_twice):
        super().__init__()
        self.norms = nn.ModuleDict({name: nn.LayerNorm(8) for name in "pq"})
        self.branches = nn.ModuleDict({name: nn.Linear(8, 8) for name in "pq"})
        self.dropout, self.order = nn.Dropout(0.2), order
        if drops_twice:
            self.again = nn.Dropout(0.2)

    def forward(self, x):
        for name in self.order:
            x = x + self.dropout(self.branches[name](self.norms[name](x)))
        return self.again(x) if hasattr(self, "again") else x


class Stack(nn.Module):
    def __init__(self, order="pq", drops_twice=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(order, drops_twice) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def draw_long_batch():
    return torch.randn(4, 40, 8, generator=torch.Generator().manual_seed(1))


def list_proven(result):
    at_fault = {error.name for error in result.own_errors}
    return [finding.cause for finding in result.findings if at_fault.intersection(finding.where)]


def test_branches_in_another_order_are_no_skipped_layers():
    result = nndiff.compare(Stack().eval(), Stack("qp").eval(), inputs=draw_long_batch())
    assert name_modules(result) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list_proven(result) == ["block-order"] * 3


def test_code_that_draws_after_a_dropout_too_many_is_not_at_fault():
    result = nndiff.compare(Stack(), Stack(drops_twice=True), inputs=draw_long_batch(), mode="train", seed=1)
    assert name_modules(result) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list_proven(result) == ["dropout"] * 3
    # the next block draws from another state, but what draws nothing is tried all the same
    wrong = Stack(drops_twice=True)
    wrong.blocks[2].norms["p"].eps = 0.1
    result = nndiff.compare(Stack(), wrong, inputs=draw_long_batch(), mode="train", seed=1)
    assert name_modules(result) == ["blocks.0", "blocks.1", "blocks.2.norms.p", "blocks.2"]
    assert list_proven(result) == ["dropout", "dropout", "norm-eps", "dropout"]


def test_weights_that_a_recording_knows_by_their_digests_serve_experiments(net, batch, tmp_path):
    reference = nndiff.record(net, batch, path=tmp_path / "a.nnrec", inputs_kept=True)
    wrong = copy.deepcopy(net)
    wrong.layers[1].norm.eps = 1e-2
    result = nndiff.compare(reference, wrong)
    assert (name_modules(result), list_proven(result)) == (["layers.1.norm"], ["norm-eps"])
    with torch.no_grad():
        wrong.layers[2].attention.out.weight[3] += 1
    result = nndiff.compare(reference, wrong)
    assert name_modules(result) == ["layers.1.norm", "layers.2.attention.out"]
    assert list_proven(result) == ["norm-eps", "own-code"], "which weights it had, nobody can tell"
    assert "weights differ (weight)" in result.findings[1].evidence


class Ties(nn.Module):
    """Two equal halves: which is the larger is for rounding to decide, so that the noise floor is infinite."""

    def __init__(self, factor):
        super().__init__()
        self.layer, self.top, self.head = nn.Linear(8, 6), Largest(factor), nn.Linear(6, 3)
        with torch.no_grad():
            self.layer.weight[3:] = self.layer.weight[:3]
            self.layer.bias[3:] = self.layer.bias[:3]

    def forward(self, x):
        return self.head(torch.exp(self.top(self.layer(x))))


class Largest(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return (x * self.factor).masked_fill(x < x.max(-1, keepdim=True).values, -torch.inf)


def test_an_infinite_noise_floor_hides_no_error():
    reference, candidate = Ties(1.0), Ties(1.5)
    candidate.load_state_dict(reference.state_dict())
    result = nndiff.compare(reference, candidate, inputs=torch.randn(20, 8, generator=torch.Generator().manual_seed(1)))
    (pair,) = [pair for pair in result.pairs if pair.name == "top:output"]
    assert pair.noise == torch.inf
    assert name_modules(result) == ["top"]
    assert pair.own_times_noise is None


class Encoder(nn.GRU):
    """A GRU by another name, with something that it learns besides."""

    def __init__(self, extra):
        super().__init__(5, 6, batch_first=True)
        self.extra, self.start = extra, nn.Parameter(torch.zeros(1, 1, 6))

    def forward(self, x):
        made, _ = super().forward(x, self.start.expand(1, len(x), 6).contiguous())
        return made + self.extra * torch.sin(made * x.std())


class Encoding(nn.Module):
    def __init__(self, extra, eps):
        super().__init__()
        self.norm, self.encoder = nn.LayerNorm(5, eps=eps), Encoder(extra)

    def forward(self, x):
        return self.encoder(self.norm(x * 0.01))


def test_a_module_that_no_hypothesis_fits_takes_no_other_cause_away(monkeypatch):
    reference, candidate = Encoding(0.0, 1e-5), Encoding(0.5, 1e-3)
    candidate.load_state_dict(reference.state_dict())
    inputs = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1))
    monkeypatch.setenv("NNDIFF_TRACEBACK", "1")  # what a hypothesis does not expect is raised
    result = nndiff.compare(reference, candidate, inputs=inputs)
    assert name_modules(result) == ["norm", "encoder"]
    assert [finding.cause for finding in result.findings[:2]] == ["norm-eps", "own-code"]

    def fail(trial):
        raise ValueError("shapes do not fit")

    monkeypatch.delenv("NNDIFF_TRACEBACK")
    norms = next(family for family in hypotheses.COMPUTATIONS if family.name == "norm variant")
    monkeypatch.setattr(hypotheses, "COMPUTATIONS", (replace(norms, prove=fail), *hypotheses.COMPUTATIONS))
    assert [finding.cause for finding in nndiff.compare(reference, candidate, inputs=inputs).findings[:1]] == [
        "norm-eps"
    ]


class Feeding(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class FusedFeeding(nn.Module):
    def __init__(self, gated, activation):
        super().__init__()
        self.both, self.out, self.activation = nn.Linear(12, 40), copy.deepcopy(gated.down), activation
        with torch.no_grad():
            self.both.weight.copy_(torch.cat([gated.gate.weight, gated.up.weight]))
            self.both.bias.copy_(torch.cat([gated.gate.bias, gated.up.bias]))

    def forward(self, x):
        gate, up = self.both(x).chunk(2, -1)
        return x + self.out(self.activation(gate) * up)


@pytest.mark.parametrize("flipped", [False, True])
def test_faults_behind_fused_layers_are_found_in_every_block(flipped):
    torch.manual_seed(0)
    plain = nn.Sequential(*(Feeding() for _ in range(3)))
    activations = (F.gelu, F.silu, F.relu)
    port = nn.Sequential(*(FusedFeeding(*both) for both in zip(plain, activations, strict=True)))
    sides = (port, plain) if flipped else (plain, port)
    result = nndiff.compare(*sides, inputs=torch.randn(2, 7, 12))
    assert name_modules(result) == ["0", "2"]
    assert [finding.cause for finding in result.findings[:2]] == ["activation", "activation"]
    with torch.no_grad():
        port[1].both.weight[3] *= 1.5  # a wrong part of a fused layer hides what comes behind it in its block
    result = nndiff.compare(*sides, inputs=torch.randn(2, 7, 12))
    assert not {"0", "2"} - set(name_modules(result))
