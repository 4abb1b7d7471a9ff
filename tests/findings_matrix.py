"""Cases for findings: pairs of models, and the causes that apply to each."""

from __future__ import annotations

import copy

import torch
from torch import nn

from gradients import slightly

CAUSES = (
    *("inputs-differ", "early-layers", "train-mode", "shapes-differ", "norms-only", "gradients-only"),
    *("losses-differ", "permuted", "reshaped", "broadcast", "attribute", "inner-only", "fused", "weight-norm"),
    *("gradients-missing", "gradients-scaled", "untied", "rounding", "more-than-rounding", "outputs-missing"),
    *("called-otherwise", "in-place", "weights-differ", "weights-swapped", "another-class", "loss-not-finite"),
)


class Scale(nn.Module):
    """Preprocessing: a module without weights."""

    def __init__(self, mean=0.5):
        super().__init__()
        self.mean = mean

    def forward(self, x):
        return (x - self.mean) * 2


class Layer(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.norm, self.fc, self.act, self.drop = norm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.act(self.fc(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=8, norm=nn.LayerNorm):
        super().__init__()
        self.scale, self.stem = Scale(), nn.Linear(6, width)
        self.layers = nn.ModuleList(Layer(width, norm) for _ in range(3))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(self.scale(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def net(**options):
    torch.manual_seed(0)
    made = Net(**options).eval()
    with torch.no_grad():
        for each in made.parameters():
            each.add_(0.1 * torch.randn_like(each))  # norms of a fresh model are all alike
    return made


INPUT = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(3))


class Fused(nn.Module):
    """Two layers in one, then what the two would have made."""

    def __init__(self, first, second):
        super().__init__()
        self.both = nn.Linear(8, 16)
        with torch.no_grad():
            self.both.weight.copy_(torch.cat([first.weight, second.weight]))
            self.both.bias.copy_(torch.cat([first.bias, second.bias]))

    def forward(self, x):
        first, second = self.both(x).chunk(2, -1)
        return first * torch.sigmoid(second)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.first(x) * torch.sigmoid(self.second(x))


def changed(change):
    """Return a net, and its copy with something done to it."""
    one = net()
    other = copy.deepcopy(one)
    change(other)
    return one, other


def post(form):
    """Return a net, and one whose output is in another form."""

    def change(other):
        plain = other.forward
        other.forward = lambda x: form(plain(x))

    return changed(change)


def raw(other):
    """Leave preprocessing to whoever calls the model."""
    other.scale = nn.Identity().eval()


def wrong_before_the_stem(other):
    stem = other.stem.forward
    other.stem.register_forward_pre_hook(lambda module, args: (args[0] * 1.01,))
    other.stem.forward = stem


def heavier(other):
    with torch.no_grad():
        other.layers[1].fc.weight.mul_(1.05)


def other_eps(other):
    other.layers[1].norm.eps = 1e-2


def other_norm_weight(other):
    with torch.no_grad():
        other.layers[1].norm.weight.add_(0.1)


def bad_backward(other):
    plain = other.layers[1].act.forward
    other.layers[1].act.forward = lambda x: plain(slightly(x))


def halved(other):
    for parameter in other.parameters():
        parameter.register_hook(lambda grad: grad / 2)


def tied():
    """Return two layers with one weight, and with two that are equal."""
    one = net()
    one.layers[2].fc.weight = one.layers[1].fc.weight
    other = copy.deepcopy(one)
    other.layers[2].fc.weight = nn.Parameter(one.layers[1].fc.weight.detach().clone())
    return one, other


def gated():
    one = net()
    torch.manual_seed(1)
    one.layers[1].fc = Gated().eval()
    other = copy.deepcopy(one)
    other.layers[1].fc = Fused(one.layers[1].fc.first, one.layers[1].fc.second).eval()
    return one, other


def other_width():
    return net(), net(width=12)


def weight_norm():
    one, other = net(), net()
    for each in (one, other):
        torch.nn.utils.weight_norm(each.layers[1].fc)
    torch.nn.utils.remove_weight_norm(other.layers[1].fc)
    return one, other


class Transposing(nn.Module):
    """The same layer on data that lies the other way."""

    def __init__(self, fc):
        super().__init__()
        self.weight, self.bias = fc.weight, fc.bias

    def forward(self, x):
        return (self.weight @ x.transpose(1, 2)) + self.bias[:, None]


def transposed_inside():
    one = net()
    other = copy.deepcopy(one)
    layer = other.layers[1]
    layer.fc = Transposing(layer.fc)
    layer.act.forward = lambda x: nn.functional.gelu(x.transpose(1, 2))
    return one, other


def folded():
    """A scale moved from one layer into the next."""

    def change(other):
        with torch.no_grad():
            other.stem.weight.mul_(2.0)
            other.stem.bias.mul_(2.0)
        other.layers[0].register_forward_pre_hook(lambda module, args: (args[0] / 2.0,))

    return changed(change)


class Quantised(nn.Module):
    """A frozen projection, as those of quantisers are, in front of what is trained."""

    def __init__(self):
        super().__init__()
        self.proj, self.rest = nn.Linear(6, 6), net()
        self.proj.requires_grad_(False)

    def forward(self, x):
        return self.rest(self.proj(x))


def frozen_first():
    torch.manual_seed(0)
    one = Quantised().eval()
    other = copy.deepcopy(one)
    with torch.no_grad():
        other.proj.weight.mul_(1.05)
    return one, other


class Codebook(nn.Module):
    """A module with weights of its own, which it uses before it calls another that has none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.codes, self.act, self.rest = nn.Parameter(torch.randn(6, 6)), nn.Tanh(), nn.Linear(6, 4)

    def forward(self, x):
        return self.rest(self.act(x @ self.codes))


def wrong_codes():
    one = nn.Sequential(Codebook()).eval()
    other = copy.deepcopy(one)
    with torch.no_grad():
        other[0].codes.mul_(1.05)
    return one, other


class Silu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


def other_activation(model):
    model.layers[1].act = Silu()  # in train mode, as it was made: that is not why it differs


def without_bias(model):
    model.layers[1].fc.bias = None


def crosswise(model):
    """Run the second layer before the first."""
    first, second, third = model.layers
    model.forward = lambda x: model.head(third(first(second(model.stem(model.scale(x))))))


def endless(output):
    return output.sum() * float("nan")


# case: models, options of the comparison, exit status, and the findings that apply
CASES = {
    "a copy": (lambda: (net(), net()), {}, 0, set()),
    "other weights": (lambda: changed(heavier), {}, 1, {"weights-differ"}),
    "other weights, backward": (lambda: changed(heavier), {"backward": True}, 1, {"weights-differ"}),
    "preprocessing left out": (lambda: changed(raw), {}, 1, {"early-layers", "another-class"}),
    "preprocessing left out, backward": (
        lambda: changed(raw),
        {"backward": True},
        1,
        {"early-layers", "another-class"},
    ),
    "another mean": (lambda: changed(lambda m: setattr(m.scale, "mean", 0.4)), {}, 1, {"early-layers", "attribute"}),
    "preprocessing in no module": (lambda: changed(wrong_before_the_stem), {}, 1, {"early-layers"}),
    "a frozen layer in front": (frozen_first, {}, 1, {"weights-differ"}),
    "a frozen layer in front, backward": (frozen_first, {"backward": True}, 1, {"weights-differ"}),
    "weights of a module around": (wrong_codes, {}, 1, {"weights-differ"}),
    "train mode": (lambda: changed(lambda m: m.train()), {}, 1, {"train-mode"}),
    "train mode, backward": (lambda: changed(lambda m: m.train()), {"backward": True}, 1, {"train-mode"}),
    "both in train mode, other weights": (lambda: changed(heavier), {"mode": "train"}, 1, {"weights-differ"}),
    "another width": (other_width, {}, 1, {"shapes-differ", "attribute"}),
    "eps": (lambda: changed(other_eps), {}, 1, {"norms-only", "attribute"}),
    "eps, backward": (lambda: changed(other_eps), {"backward": True}, 1, {"norms-only", "attribute"}),
    "a norm's weight": (lambda: changed(other_norm_weight), {}, 1, {"norms-only", "weights-differ"}),
    "a wrong backward, not run": (lambda: changed(bad_backward), {}, 0, set()),
    "a wrong backward": (lambda: changed(bad_backward), {"backward": True}, 1, {"gradients-only"}),
    "all gradients halved": (lambda: changed(halved), {"backward": True}, 1, {"gradients-scaled"}),
    "frozen": (
        lambda: changed(lambda m: m.layers[1].fc.weight.requires_grad_(False)),
        {"backward": True},
        1,
        {"gradients-missing"},
    ),
    "untied": (tied, {"backward": True}, 1, {"untied", "gradients-only"}),
    "tied": (lambda: tied()[::-1], {"backward": True}, 1, {"untied", "gradients-only"}),
    "an activation": (lambda: changed(lambda m: setattr(m.layers[1], "act", nn.ReLU())), {}, 1, {"another-class"}),
    "an activation of somebody's": (lambda: changed(other_activation), {}, 1, {"another-class"}),
    "no bias": (lambda: changed(without_bias), {"backward": True}, 1, {"weights-differ"}),
    "layers in another order": (
        lambda: changed(lambda m: m.layers.insert(0, m.layers.pop(1))),
        {},
        1,
        {"weights-swapped", "called-otherwise"},
    ),
    "run in another order": (lambda: changed(crosswise), {}, 1, {"called-otherwise"}),
    "no finite loss": (lambda: changed(bad_backward), {"backward": True, "loss": endless}, 1, {"loss-not-finite"}),
    "no finite loss, a setting": (
        lambda: changed(lambda m: setattr(m.layers[1], "odd", 2.0)),
        {"backward": True, "loss": endless},
        1,
        {"loss-not-finite"},
    ),
    "no finite loss, a copy": (lambda: (net(), net()), {"backward": True, "loss": endless}, 0, set()),
    "a scale moved": (folded, {}, 1, {"inner-only", "weights-differ"}),
    "time first": (lambda: post(lambda y: y.transpose(0, 1)), {}, 1, {"permuted"}),
    "channels first": (lambda: post(lambda y: y.permute(0, 2, 1)), {}, 1, {"permuted"}),
    "flat": (lambda: post(lambda y: y.reshape(15, 4)), {}, 1, {"reshaped"}),
    "repeated": (lambda: post(lambda y: y[None].expand(2, -1, -1, -1)), {}, 1, {"broadcast"}),
    "transposed inside": (transposed_inside, {}, 0, {"permuted"}),
    "transposed inside, backward": (transposed_inside, {"backward": True}, 0, {"permuted"}),
    "fused": (gated, {}, 0, {"fused"}),
    "fused, backward": (gated, {"backward": True}, 0, {"fused"}),
    "no weight norm": (weight_norm, {}, 0, set()),
    "no weight norm, backward": (weight_norm, {"backward": True}, 0, {"weight-norm"}),
}
