"""Dropout switched off wherever it hides, everything else left alone, and all of it undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, overrides
from torch.nn import functional
from torch.nn.functional import dropout as imported_by_name
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from end_to_end.zoo import ZOO
from nndiff.recording.environment.dropout import active_dropout, dropout_off
from nndiff.recording.record import record
from recording.runs import check_recording

X = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(5))


class Calls(nn.Module):
    """Call a function on a linear layer's output, as a forward would."""

    def __init__(self, function: Callable[[torch.Tensor, bool], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.fc(x), self.training)


def _attention(x: torch.Tensor, training: bool) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.4 if training else 0.0)


def _weights(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) / 4 for shape in shapes]


def _heads(x: torch.Tensor, training: bool) -> torch.Tensor:
    into, into_bias, out, out_bias = _weights((24, 8), (24,), (8, 8), (8,))
    found: torch.Tensor = functional.multi_head_attention_forward(
        x, x, x, 8, 2, into, into_bias, None, None, False, 0.4, out, out_bias, training=training
    )[0]
    return found


def _lstm(x: torch.Tensor, training: bool) -> torch.Tensor:
    held = _weights((32, 8), (32, 8), (32,), (32,), (32, 8), (32, 8), (32,), (32,))
    start = torch.zeros(2, 4, 8)
    return torch.lstm(x, (start, start), held, True, 2, 0.4, training, False, False)[0]


def _packed_gru(x: torch.Tensor, training: bool) -> torch.Tensor:
    held = _weights((24, 8), (24, 8), (24,), (24,), (24, 8), (24, 8), (24,), (24,))
    packed = pack_sequence(list(x))
    start = torch.zeros(2, 3, 8)
    return torch.gru(packed.data, packed.batch_sizes, start, held, True, 2, 0.4, training, False)[0]


FUNCTIONS: dict[str, Callable[[torch.Tensor, bool], Any]] = {
    "by name": lambda x, training: imported_by_name(x, 0.4, training),
    "by keyword": lambda x, training: functional.dropout(x, p=0.4, training=training),
    "in place": lambda x, training: functional.dropout(x.clone(), 0.4, training, True),
    "1d": lambda x, training: functional.dropout1d(x, 0.4, training),
    "2d": lambda x, training: functional.dropout2d(x[:, :, :, None], 0.4, training),
    "3d": lambda x, training: functional.dropout3d(x[:, :, :, None, None], 0.4, training),
    "alpha": lambda x, training: functional.alpha_dropout(x, 0.4, training),
    "feature alpha": lambda x, training: functional.feature_alpha_dropout(x, 0.4, training),
    "torch.dropout": lambda x, training: torch.dropout(x, 0.4, training),
    "torch.dropout by keyword": lambda x, training: torch.dropout(x, p=0.4, train=training),
    "torch.dropout_": lambda x, training: torch.dropout_(x.clone(), 0.4, training),
    "operator": lambda x, training: torch.ops.aten.dropout(x, 0.4, training),
    "overload": lambda x, training: torch.ops.aten.dropout.default(x, 0.4, training),
    "native": lambda x, training: torch.native_dropout(x, 0.4, training)[0],
    "attention": _attention,
    "attention by position": lambda x, training: functional.scaled_dot_product_attention(
        x, x, x, None, 0.4 if training else 0.0
    ),
    "heads": _heads,
    "lstm": _lstm,
    "packed gru": _packed_gru,
}


def digests(model: nn.Module, inputs: Any, path: Path, **options: Any) -> dict[str, str]:
    """Return the digest of every tensor of a recording."""
    options = {"backward": True, "loss": _loss, **options}
    return {event.site.name: event.digest for event in record(model, inputs, path=path, **options).tensors}


def _loss(output: Any) -> torch.Tensor:
    held = output if isinstance(output, torch.Tensor) else output[0]
    return held.float().pow(2).mean()


def drawn_and_still(model: nn.Module, inputs: Any, path: Path) -> tuple[bool, bool]:
    """Tell whether two seeds give the same recording, with dropout as it is and with dropout off."""
    same = []
    for dropout in (None, "off"):
        one, two = (digests(model, inputs, path / f"{dropout}{seed}", seed=seed, dropout=dropout) for seed in (1, 2))
        same.append(one == two)
    return same[0], same[1]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functional_dropout_is_off(kind: str, tmp_path: Path) -> None:
    model = Calls(FUNCTIONS[kind]).train()
    assert drawn_and_still(model, X, tmp_path) == (False, True)
    still = record(model, X, path=tmp_path / "still", dropout="off")
    calm = record(model, X, path=tmp_path / "calm", mode="eval")
    assert [event.digest for event in still.tensors] == [event.digest for event in calm.tensors]
    assert still.warnings == ()


def test_dropout_that_forgets_the_mode_is_off_as_well(tmp_path: Path) -> None:
    assert drawn_and_still(Calls(lambda x, _: functional.dropout(x, 0.4)).eval(), X, tmp_path) == (False, True)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(8, 8, 3, dropout=0.4, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lstm(x)[0]
        return found


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x, x, x)[0]
        return found


class StochasticDepth(nn.Module):
    """Drop by a draw of its own, as torchvision's module of that name does."""

    def __init__(self) -> None:
        super().__init__()
        self.p = 0.4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        return x * torch.empty(x.shape[0], 1, 1).bernoulli_(1 - self.p) / (1 - self.p)


@pytest.mark.parametrize("make", [Lstm, Attends, StochasticDepth])
def test_modules_that_drop_by_themselves_are_still(make: type[nn.Module], tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), make()).train()
    assert drawn_and_still(model, X, tmp_path) == (False, True)
    assert active_dropout(model) == ["1.lstm" if make is Lstm else "1.attention" if make is Attends else "1"]


@pytest.mark.filterwarnings("ignore:dropout option adds dropout")
def test_a_recurrent_network_drops_between_its_layers_only() -> None:
    assert active_dropout(nn.GRU(4, 4, num_layers=1, dropout=0.5)) == []
    assert active_dropout(nn.GRU(4, 4, num_layers=2, dropout=0.5)) == [""]


def transformer(name: str) -> nn.Module:
    """Return a model of the zoo that drops wherever its config can say so."""
    torch.manual_seed(0)
    kind = type(ZOO[name].make())
    config = ZOO[name].make(attention="sdpa").config
    rates = [key for key in vars(config) if "dropout" in key and "classifier" not in key]
    assert rates
    for key in rates:
        setattr(config, key, 0.3)
    return kind(config).train()


@pytest.mark.parametrize("name", ["bert", "llama", "whisper"])
def test_transformers_in_train_mode(name: str, tmp_path: Path) -> None:
    model = transformer(name)
    assert drawn_and_still(model, ZOO[name].inputs(), tmp_path) == (False, True)


class Checkpointed(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 8)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.again:
            return self.block(x)
        found: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
        return found

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.fc(x).tanh(), 0.4, self.training).pow(2)


@pytest.mark.parametrize("way", ["backward", "grad"])
def test_what_is_computed_again_in_the_backward_pass_is_still_too(way: str) -> None:
    found = []
    for again in (True, False):
        model = Checkpointed(again).train()
        with dropout_off(model):
            loss = model(X).sum()
            if way == "grad":
                found.append(torch.autograd.grad(loss, model.fc.weight)[0])
            else:
                loss.backward()
                found.append(model.fc.weight.grad)
    assert torch.equal(*found)


class Fused(nn.Module):
    """Layers with a fused path, which they leave where they believe torch functions to be overridden."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask[0, 3:] = True
        x = self.encoder(x, src_key_padding_mask=mask)
        y: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return x + y


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nothing_else_changes_not_even_which_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[str] = []
    for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"):
        original = getattr(torch, name)

        def counted(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            fused.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(torch, name, counted)
    model = Fused().eval()
    record(model, X, path=tmp_path / "plain")
    alone = list(fused)
    fused.clear()
    check_recording(model, X, tmp_path / "a.nnrec", backward=False, dropout="off")
    assert len(alone) == 3
    assert fused == alone * 3, "the bare runs before and after take the same path as the recording"


class Stops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert overrides._get_current_function_mode() is not None
        raise KeyboardInterrupt


def test_everything_is_undone_whatever_happens(tmp_path: Path) -> None:
    asked = [overrides.has_torch_function, torch.autograd.has_torch_function]
    model = nn.Sequential(Lstm(), nn.Dropout(0.4), Stops()).train()
    with pytest.raises(KeyboardInterrupt):
        record(model, X, path=tmp_path / "a", dropout="off")
    assert overrides._get_current_function_mode() is None
    assert [overrides.has_torch_function, torch.autograd.has_torch_function] == asked
    assert active_dropout(model) == ["0.lstm", "1"]


@dataclass(frozen=True)
class Config:
    dropout: float = 0.4


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if not self.training else x * (torch.rand_like(x) >= self.config.dropout)


def test_a_config_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path) -> None:
    model = Frozen().train()
    with dropout_off(model):
        assert torch.equal(model(X), X)
    assert model.config.dropout == 0.4


def test_what_is_still_random_is_told(tmp_path: Path) -> None:
    model = Calls(lambda x, training: functional.dropout(x, 0.4, training) + torch.randn(8)).train()
    plain = record(model, X, path=tmp_path / "a")
    still = record(model, X, path=tmp_path / "b", dropout="off")
    assert "draws random numbers though no dropout module is active" in plain.warnings[0]
    assert "draws random numbers though dropout is off" in still.warnings[0]


@pytest.mark.parametrize("draw", ["random.random()", "np.random.rand()"])
def test_numbers_drawn_elsewhere_are_told_too(draw: str, tmp_path: Path) -> None:
    import random

    import numpy as np

    source = compile(draw, "draw", "eval")
    model = Calls(lambda x, _: x * eval(source, {"random": random, "np": np}))
    assert "draws random numbers" in record(model, X, path=tmp_path / "a").warnings[0]
