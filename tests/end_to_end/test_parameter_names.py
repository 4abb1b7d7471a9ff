"""Parameters that a module holds itself under another name: paired inside their module, and every pair says how."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff
from nndiff.recording.record import record

INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
PLAIN = ("weight", "bias")


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


class Gain(Affine):
    pass


class Net(nn.Module):
    def __init__(self, names=PLAIN, root="pos", kind=Affine, modules=("fc", "norm"), noise=0.0):
        super().__init__()
        torch.manual_seed(0)
        fc, norm = modules
        self.add_module(fc, nn.Linear(4, 4))
        self.add_module(norm, kind(names, noise))
        self.register_parameter(root, nn.Parameter(torch.randn(1, 4)))
        self.parts = [fc, norm, root]

    def forward(self, x):
        fc, norm, root = (getattr(self, name) for name in self.parts)
        return norm(fc(x + root))


def compared(tmp_path, other, **options):
    sides = [
        record(model, INPUT, path=tmp_path / name, **options) for name, model in (("one", Net()), ("other", other))
    ]
    return nndiff.compare(*sides)


def scaled(model, name):
    model.get_parameter(name).register_hook(lambda grad: grad * 1.5)
    return model


# the candidate, and the gradient of it that is wrong
WRONG = {
    "of another name": lambda: scaled(Net(("scale", "shift")), "norm.scale"),
    "of the model itself": lambda: scaled(Net(root="positions"), "positions"),
    "of another name, class and module": lambda: scaled(
        Net(("scale", "shift"), kind=Gain, modules=("up", "ln")), "ln.scale"
    ),
    "of another module, not bit for bit": lambda: scaled(Net(kind=Gain, modules=("up", "ln"), noise=1e-7), "ln.weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_gradient_under_another_name_is_found(case, tmp_path):
    result = compared(tmp_path, WRONG[case](), backward=True)
    assert result.exit_code == 1
    wanted = "pos:param_grad" if "itself" in case else "norm.weight:param_grad"
    assert result.first_divergence.name == wanted
