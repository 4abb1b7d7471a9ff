"""What follows paired calls and modules: gradients, inputs, parameters and buffers, under whatever names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aligned import align_models, methods, partners

INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Affine(nn.Module):
    """Hold its own parameters, under any names."""

    def __init__(self, names, noise=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name in names:
            values = (torch.rand(4, generator=generator) + 0.5) * (1 + noise)
            self.register_parameter(name, nn.Parameter(values))
        self.names = names

    def forward(self, x):
        scale, shift = (self.get_parameter(name) for name in self.names)
        return nn.functional.layer_norm(x, (4,)) * scale + shift


class Net(nn.Module):
    def __init__(self, names=("weight", "bias"), root="pos", modules=("fc", "norm"), noise=0.0):
        super().__init__()
        torch.manual_seed(0)
        fc, norm = modules
        self.add_module(fc, nn.Linear(4, 4))
        self.add_module(norm, Affine(names, noise))
        self.register_parameter(root, nn.Parameter(torch.randn(1, 4)))
        self.parts = [fc, norm, root]

    def forward(self, x):
        fc, norm, root = (getattr(self, name) for name in self.parts)
        return norm(fc(x + root))


WHAT = {"gradients": {"backward": True}, "parameters": {"params": True}, "both": {"backward": True, "params": True}}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("weights_known", [False, True])
@pytest.mark.parametrize("names", [("scale", "shift"), ("gamma", "beta"), ("b", "a")])
def test_parameters_of_other_names_are_paired_inside_their_module(tmp_path, names, what, weights_known):
    models = Net(), Net(names, root="positions")
    found = align_models(tmp_path, models, INPUT, weights_known=weights_known, **WHAT[what])
    assert not found.only_reference
    assert not found.only_candidate
    for slot in ("param_grad", "param"):
        for reference, candidate in (("norm.weight", f"norm.{names[0]}"), ("norm.bias", f"norm.{names[1]}")):
            if f"{reference}:{slot}" in partners(found):
                method = "weights" if weights_known else "content"
                assert methods(found)[f"{reference}:{slot}"] == (f"{candidate}:{slot}", method, True)


@pytest.mark.parametrize("modules", [("fc", "norm"), ("up", "ln")])
def test_those_that_differ_by_rounding_are_told_apart_by_their_statistics(tmp_path, modules):
    models = Net(), Net(("b", "a"), modules=modules, noise=1e-6)
    found = methods(align_models(tmp_path, models, INPUT, params=True))
    for reference, candidate in (("weight", "b"), ("bias", "a")):
        partner, method, certain = found[f"norm.{reference}:param"]
        assert partner == f"{modules[1]}.{candidate}:param"
        assert (method, certain) == ("statistics", False)
    assert found["fc.weight:param"][1:] == (("name" if modules[0] == "fc" else "weights"), True)


def test_equal_gradients_tell_the_names_of_parameters_that_differ(tmp_path):
    found = methods(align_models(tmp_path, (Net(), Net(("b", "a"), noise=1e-6)), INPUT, params=True, backward=True))
    assert found["norm.weight:param_grad"] == ("norm.b:param_grad", "content", True)
    assert found["norm.weight:param"] == ("norm.b:param", "module", True)


class Wrapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("weights_known", [False, True])
def test_parameters_of_a_wrapped_layer_find_their_partners(tmp_path, weights_known):
    reference, candidate = Net(), Net()
    candidate.fc = Wrapped(candidate.fc)
    found = align_models(tmp_path, (reference, candidate), INPUT, backward=True, weights_known=weights_known)
    partner, method, certain = methods(found)["fc.weight:param_grad"]
    assert partner == "fc.layer.weight:param_grad"
    assert (method, certain) == (("weights", True) if weights_known else ("call", False))


def test_a_parameter_that_is_computed_at_each_call_is_paired_with_what_it_becomes(tmp_path):
    reference, candidate = Net(), Net()
    nn.utils.parametrizations.weight_norm(candidate.fc)
    found = methods(align_models(tmp_path, (reference, candidate), INPUT, backward=True))
    assert found["fc.weight:param_grad"] == ("fc.parametrizations.weight:grad_output", "module", True)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_factors_of_a_weight_are_not_the_weight(tmp_path):
    reference, candidate = Net(), Net()
    torch.nn.utils.weight_norm(candidate.fc)
    found = partners(align_models(tmp_path, (reference, candidate), INPUT, backward=True))
    assert "fc.weight:param_grad" not in found


class OtherLinear(nn.Linear):
    pass


@pytest.mark.parametrize("is_certain", [True, False])
def test_followers_of_a_guess_are_guesses(tmp_path, is_certain):
    """A layer of the same class between paired ones is paired with certainty, one of another class is a guess."""
    models = Net(), Net(modules=("up", "ln"))
    if not is_certain:
        models[1].up = OtherLinear(4, 4)
    with torch.no_grad():
        models[1].up.weight.mul_(1.5)
    found = methods(align_models(tmp_path, models, INPUT, backward=True, inputs_kept=True))
    assert found["fc:output"] == ("up:output", *(("structure", True) if is_certain else ("call", False)))
    for follower in ("fc:grad_output", "fc.weight:param_grad", "fc:input.0"):
        assert found[follower] == (follower.replace("fc", "up"), "module", is_certain)
    assert found["norm.weight:param_grad"] == ("ln.weight:param_grad", "weights", True)


class Counted(nn.Module):
    def __init__(self, name, steps):
        super().__init__()
        torch.manual_seed(0)
        self.name = name
        self.add_module(name, nn.BatchNorm1d(4))
        getattr(self, name).weight.data = torch.rand(4)
        getattr(self, name).num_batches_tracked.fill_(steps)

    def forward(self, x):
        return getattr(self, self.name)(x)


def test_buffers_follow_their_module(tmp_path):
    found = methods(align_models(tmp_path, (Counted("bn", 3), Counted("norm", 3)), INPUT, params=True))
    assert found["bn.running_var:buffer"][::2] == ("norm.running_var:buffer", True)
    assert found["bn.num_batches_tracked:buffer"][::2] == ("norm.num_batches_tracked:buffer", True)
