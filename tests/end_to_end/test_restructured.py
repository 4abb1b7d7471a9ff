"""Parameters in another form: the same where that is proven, and a wrong gradient among them is found."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  (torch is optional)
from torch.nn import functional as F  # noqa: E402, N812  (as everybody writes it)

import nndiff  # noqa: E402
from gradients import with_gradient  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")

INPUT = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))


def scaled(tensor, factor):
    """Hand on what comes in; the gradient comes out times a factor."""
    return with_gradient(tensor, lambda grad: grad * factor, copied=False)


class Hurt(nn.Linear):
    factor = 1.0

    def forward(self, x):
        return F.linear(x, scaled(self.weight, self.factor), self.bias)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))


def hurt(factor):
    made = net()
    made[0].__class__, made[0].factor = Hurt, factor
    return made


WAYS = {
    "as it was": torch.nn.utils.weight_norm,
    "as it was, columns": lambda layer: torch.nn.utils.weight_norm(layer, dim=1),
    "as it was, whole": lambda layer: torch.nn.utils.weight_norm(layer, dim=None),
    "parametrised": torch.nn.utils.parametrizations.weight_norm,
}


def normed(way):
    made = net()
    WAYS[way](made[0])
    with torch.no_grad():  # as after some training: the direction has another length than the weight
        for name, parameter in made[0].named_parameters():
            if name.endswith(("_v", "original1")):
                parameter.mul_(3.0)
    return made


def causes(result):
    return [(finding.cause, finding.harmless) for finding in result.findings]


def alone(result):
    return {leftover.name for leftover in result.leftovers if leftover.counts}


@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("way", WAYS)
def test_a_weight_norm_removed_is_the_same(way, flipped):
    both = normed(way), net()
    result = nndiff.compare(*(both[::-1] if flipped else both), inputs=INPUT, backward=True)
    assert result.exit_code == 0
    assert causes(result) == [("weight-norm", True)]
    assert not alone(result)


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1.01])
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_gradient_of_a_weight_without_its_norm_is_found(way, factor):
    result = nndiff.compare(normed(way), hurt(factor), inputs=INPUT, backward=True)
    assert result.exit_code == 1
    if way == "parametrised":  # the weight is an output there, whose gradient is that of the weight
        names = {f"0.parametrizations.weight.original{number}:param_grad" for number in (0, 1)}
        first = result.first_divergence
        assert (first.name, first.candidate_name) == ("0.parametrizations.weight:grad_output", "0.weight:param_grad")
    else:
        names = {"0.weight_g:param_grad", "0.weight_v:param_grad", "0.weight:param_grad"}
    assert alone(result) == names
    assert names in [{*finding.where} for finding in result.findings if finding.cause == "gradients-only"]


@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0])
def test_a_weight_norm_in_a_short_type_is_the_same(factor):
    one, other = net().bfloat16(), hurt(factor).bfloat16()
    torch.nn.utils.weight_norm(one[0])
    result = nndiff.compare(one, other, inputs=INPUT.bfloat16(), backward=True, atol=0.02, rtol=0.02)
    assert result.exit_code == (factor != 1)


class Normed(nn.Module):
    """Write a weight norm by hand, with a bug in its gradient."""

    def __init__(self, layer, bug):
        super().__init__()
        weight = layer.weight.data
        self.weight_g = nn.Parameter(weight.norm(dim=1, keepdim=True))
        self.weight_v, self.bias, self._bug = nn.Parameter(weight.clone()), copy.deepcopy(layer.bias), bug

    def forward(self, x):
        g, v, size = self.weight_g, self.weight_v, self.weight_v.norm(dim=1, keepdim=True)
        if self._bug == "norm detached":
            size = size.detach()
        if self._bug == "size detached":
            g = g.detach()
        g = scaled(g, -1.0) if self._bug == "size negated" else g
        v = scaled(v, 2.0) if self._bug == "direction doubled" else v
        return F.linear(x, g * v / size, self.bias)


@pytest.mark.parametrize("bug", ["", "norm detached", "size detached", "size negated", "direction doubled"])
def test_a_wrong_weight_norm_is_found(bug):
    other = net()
    other[0] = Normed(other[0], bug)
    result = nndiff.compare(net(), other, inputs=INPUT, backward=True)
    assert result.exit_code == bool(bug)
    assert (causes(result)[0] == ("weight-norm", True)) is not bool(bug)
    assert all(finding.harmless for finding in result.findings) is not bool(bug)
    if bug == "norm detached":  # then the direction has the gradient of the weight, and the size one that is not there
        assert alone(result) == {"0.weight_g:param_grad"}
    elif bug:
        assert {"0.weight:param_grad", "0.weight_v:param_grad"} <= alone(result)


@pytest.mark.parametrize("keep", ["stats", "digest"])
def test_a_weight_norm_of_which_too_little_was_kept_is_no_pass(keep, tmp_path):
    for name, model in (("one", normed("as it was")), ("other", net())):
        nndiff.record(model, INPUT, path=tmp_path / name, backward=True, keep=("full", f"{keep}:0.weight*"))
    result = nndiff.compare(tmp_path / "one", tmp_path / "other")
    assert result.exit_code == 1
    (finding,) = result.findings
    assert (finding.cause, {*finding.where}) == ("gradients-only", alone(result))
    assert "too little was kept" in finding.evidence
    assert "keep these in full" in finding.repair


def test_a_weight_frozen_where_the_other_side_has_a_norm_is_told():
    other = net()
    other[0].weight.requires_grad_(False)
    result = nndiff.compare(normed("parametrised"), other, inputs=INPUT, backward=True)
    assert result.exit_code == 1
    assert any("original0:param_grad" in name for finding in result.findings for name in finding.where)


class Attention(nn.Module):
    """Hold one weight for all, or one each, by any name."""

    def __init__(self, names, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        parts = (torch.randn(48, 16) * 0.2).split(48 // len(names))
        for name, part in zip(names, parts, strict=True):
            setattr(self, name, nn.Parameter(part.clone()))
        self.out, self._names, self._factor = nn.Linear(16, 16), names, factor

    def forward(self, x):
        *rest, last = (getattr(self, name) for name in self._names)
        q, k, v = F.linear(x, torch.cat([*rest, scaled(last, self._factor)])).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("names", [("wq", "wk", "wv"), ("w_q", "w_k", "w_v"), ("w_g", "w_v")], ids=str)
def test_names_like_those_of_a_weight_norm_are_names(names, factor, flipped):
    both = nn.Sequential(Attention(("w",))), nn.Sequential(Attention(names, factor))
    result = nndiff.compare(*(both[::-1] if flipped else both), inputs=INPUT, backward=True)
    assert result.exit_code == (factor != 1)
    assert causes(result) == [("fused", True) if factor == 1 else ("gradients-only", False)]


class Deep(nn.Module):
    """Hold the weights of some layers transposed, at the model itself."""

    def __init__(self, layers, factor):
        super().__init__()
        self.weights, self._factor = nn.ParameterList([each.weight.data.T.clone() for each in layers]), factor

    def forward(self, x):
        for number, weight in enumerate(self.weights):
            x = torch.sigmoid(x @ (weight if number else scaled(weight, self._factor)))
        return x


@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("factor", [1.0, 0.0, 5.0])
def test_large_gradients_do_not_hide_a_small_one(factor, size):
    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (nn.Linear(16, 16, bias=False), nn.Sigmoid())]
    options = {"inputs": INPUT[0], "backward": True, "loss": lambda y: size * y.square().sum()}
    result = nndiff.compare(nn.Sequential(*layers), Deep(layers[::2], factor), **options)
    assert result.exit_code == (factor != 1)
    assert causes(result) == [("permuted", True), *([("gradients-only", False)] if factor != 1 else [])]
    if factor != 1:
        assert result.findings[-1].where == ("0.weight:param_grad", "weights.0:param_grad")
        assert result.judged_at(result.tolerance).exit_code == 1


@pytest.mark.parametrize(("keep", "passes"), [("full", True), ("stats", False), ("digest", False)])
def test_what_nobody_kept_is_not_shown(keep, passes, tmp_path):
    for name, names in (("one", ("w",)), ("other", ("a", "b", "c"))):
        nndiff.record(nn.Sequential(Attention(names)), INPUT, path=tmp_path / name, backward=True, keep=keep)
    result = nndiff.compare(tmp_path / "one", tmp_path / "other")
    assert result.exit_code == (not passes)
    assert causes(result) == [("fused", True) if passes else ("gradients-only", False)]
