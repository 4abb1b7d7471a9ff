"""Blame: against leave-one-out truth made by hand, and on modes of every make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils.fusion import fuse_conv_bn_eval  # noqa: E402

from nndiff.errors import UsageError  # noqa: E402
from nndiff.facts.modes import BlamedLayer  # noqa: E402
from nndiff.modes.blame import blame_layers  # noqa: E402
from quantised_nets import (  # noqa: E402
    Attention,
    ConvNet,
    Mode,
    Transformer,
    compute_mse,
    hook_outputs,
    list_layers,
    make_net,
    make_samples,
    replace_linears,
    round_to_bits,
    round_weights,
    run_net,
    spoil_one,
)

KINDS = ["mlp", "conv", "transformer", "torch encoder", "recurrent", "llama", "gpt2", "bert", "mamba"]
MODES: dict[str, Mode] = {
    "int4": partial(round_weights, bits=4),
    "int8 per channel": partial(round_weights, bits=8, per_channel=True),
    "W6A6": partial(replace_linears, bits=6),
    "activations": partial(hook_outputs, bits=6),
    "one bad layer": partial(spoil_one, position=-3),
}


@pytest.fixture(autouse=True)
def no_fast_path() -> Iterator[None]:
    """Let torch's encoder call its linear layers, so that modes may replace them."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def blame_mode(kind: str, mode: Callable[[nn.Module], nn.Module]) -> dict[str, BlamedLayer]:
    """Return the blame of a mode by layer, in its order."""
    blame = blame_layers(lambda: make_net(kind), lambda: mode(make_net(kind)), make_samples(kind, 2))
    check_ranking(blame)
    return {layer.name: layer for layer in blame}


def check_ranking(blame: list[BlamedLayer]) -> None:
    shares = [layer.share for layer in blame]
    assert shares == sorted(shares, reverse=True)
    assert math.fsum(shares) == pytest.approx(1)
    names = [layer.name for layer in blame]
    assert len(set(names)) == len(names)
    for name in names:
        assert not any(child.startswith(f"{name}.") for child in names), f"{name} and its children"


def compute_leave_one_out(kind: str, mode: Mode, layers: list[str]) -> dict[str, float]:
    """Return by how much the output error falls when the mode leaves one layer alone."""
    samples = make_samples(kind, 2)
    reference = run_net(make_net(kind), samples)

    def measure(quantised: list[str]) -> float:
        return compute_mse(reference, run_net(mode(make_net(kind), quantised), samples))

    whole = measure(layers)
    return {name: whole - measure([layer for layer in layers if layer != name]) for name in layers}


def test_the_top_layer_is_the_one_whose_absence_helps_most():
    # The truth is made without exchanging anything: the mode is applied to all layers but one.
    right = right_by_cumulative = pairs = 0
    for kind in KINDS:
        layers = list_layers(make_net(kind))
        for mode in MODES.values():
            blame = blame_mode(kind, lambda net, mode=mode, layers=layers: mode(net, layers))
            truth = compute_leave_one_out(kind, mode, layers)
            top = max(truth, key=truth.__getitem__)
            pairs += 1
            right += next(iter(blame)) == top
            right_by_cumulative += max(blame.values(), key=lambda layer: layer.cumulative).name == top
            unlisted = set(layers) - set(blame)
            assert set(blame) <= set(layers)
            assert all(truth[name] == 0 for name in unlisted), unlisted  # hooks of modules that are never called
    score = f"right in {right} of {pairs}, by cumulative error in {right_by_cumulative}"
    assert pairs >= 30, score
    assert right >= 0.9 * pairs, score
    assert right_by_cumulative <= 0.5 * pairs, score


@pytest.mark.parametrize("kind", ["mlp", "conv", "transformer", "llama"])
def test_own_and_cumulative_error_are_those_at_the_layer(kind):
    net, quantised, samples = make_net(kind), make_net(kind), make_samples(kind, 2)
    layers = list_layers(net)
    round_weights(quantised, layers, bits=4)
    blame = blame_mode(kind, lambda net: round_weights(net, layers, bits=4))
    for name in layers:
        taken: list[Any] = []
        returned: list[list[Any]] = [[], []]
        net.get_submodule(name).register_forward_hook(lambda module, args, output, taken=taken: taken.append(args))
        for side, model in enumerate((net, quantised)):
            kept = returned[side]
            model.get_submodule(name).register_forward_hook(
                lambda module, args, output, kept=kept: kept.append(output.detach().double().numpy())
            )
        run_net(net, samples)
        cumulative_outputs = returned[1]
        run_net(quantised, samples)
        cumulative = compute_mse(returned[0][: len(samples)], cumulative_outputs[: len(samples)])
        own_outputs = [quantised.get_submodule(name)(*args).detach().double().numpy() for args in taken[: len(samples)]]
        own = compute_mse(returned[0][: len(samples)], own_outputs)
        assert blame[name].own == pytest.approx(own, rel=1e-9)
        assert blame[name].cumulative == pytest.approx(cumulative, rel=1e-9)


def test_shares_are_exact_where_the_net_is_linear():
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.ModuleList([nn.Linear(6, 6, bias=False).double() for _ in range(3)])

    class Sum(nn.Module):
        def __init__(self, spoilt: bool) -> None:
            super().__init__()
            self.layers = make()
            if spoilt:
                for number, layer in enumerate(self.layers):
                    layer.weight.data *= 1 + 0.1 * (number + 1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return sum(layer(inputs) for layer in self.layers)

    sample = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parts = [0.1 * (number + 1) * layer(sample).detach().numpy() for number, layer in enumerate(make())]
    whole = sum(parts)
    projections = {f"layers.{number}": (part * whole).sum() / (whole**2).sum() for number, part in enumerate(parts)}
    blame = blame_layers(lambda: Sum(False), lambda: Sum(True), [sample])
    assert all(share > 0 for share in projections.values())
    assert {layer.name: layer.share for layer in blame} == pytest.approx(projections)


def test_an_error_that_a_norm_cancels_counts_for_nothing():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.big = nn.Linear(16, 16, bias=False)
            self.norm = nn.LayerNorm(16, eps=1e-12)
            self.small = nn.Linear(16, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.small(self.norm(self.big(inputs)))

    def spoil() -> nn.Module:
        net = Scaled()
        net.big.weight.data *= 1.5
        return round_weights(net, ["small"], bits=8)

    blame = blame_layers(Scaled, spoil, [torch.randn(32, 16, generator=torch.Generator().manual_seed(1))])
    assert [layer.name for layer in blame] == ["small", "big"]
    assert blame[1].own > 1000 * blame[0].own  # by its own or its cumulative error it would be the first
    assert blame[0].share > 0.999


class RoundedAttention(Attention):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(hidden).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        weights = round_to_bits((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1), 3)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def round_attention(net: nn.Module) -> nn.Module:
    for block in net.blocks:
        attention = RoundedAttention(32)
        attention.load_state_dict(block.attention.state_dict())
        block.attention = attention
    return net.eval()


def test_a_composite_module_is_blamed_for_its_own_arithmetic():
    assert set(blame_mode("transformer", round_attention)) == {f"blocks.{number}.attention" for number in range(3)}


@pytest.mark.parametrize(
    ("bits", "expected"), [(8, {"attention"}), (2, {"attention.qkv", "attention.proj"})], ids=["coarse", "fine"]
)
def test_a_composite_module_or_its_children_whichever_do_more(bits, expected):
    layers = [name for name in list_layers(make_net("transformer")) if "attention" in name]
    blame = blame_mode("transformer", lambda net: round_attention(round_weights(net, layers, bits)))
    assert {name.partition(".")[2].partition(".")[2] for name in blame} == expected


def test_weights_that_the_holder_uses_are_blamed_under_their_own_name():
    blame = blame_mode("torch encoder", lambda net: round_all_parameters(net, 3))
    for number in range(2):
        assert f"encoder.layers.{number}.self_attn.out_proj" in blame
        assert f"encoder.layers.{number}.self_attn.in_proj_weight" in blame
    blame = blame_mode("mamba", lambda net: round_weights(net, ["backbone.layers.1.mixer.dt_proj"], 2))
    assert list(blame) == ["backbone.layers.1.mixer.dt_proj"]
    own = blame["backbone.layers.1.mixer.dt_proj"].own
    net, spoilt = make_net("mamba"), round_weights(make_net("mamba"), ["backbone.layers.1.mixer.dt_proj"], 2)
    outputs: list[list[Any]] = [[], []]
    for model, kept in zip((net, spoilt), outputs, strict=True):
        mixer = model.get_submodule("backbone.layers.1.mixer")
        mixer.register_forward_hook(lambda module, args, output, kept=kept: kept.append(output.double().numpy()))
        run_net(model, make_samples("mamba", 2))
    assert own == pytest.approx(compute_mse(*outputs), rel=1e-9)  # at the output of the module that uses them


def round_all_parameters(net: nn.Module, bits: int) -> nn.Module:
    for parameter in net.parameters():
        parameter.data = round_to_bits(parameter.data, bits)
    return net


def fold_batch_norms(net: ConvNet, bits: int, leave_identity: bool) -> nn.Module:
    for block in net.blocks:
        for number in "12":
            norm = getattr(block, f"bn{number}")
            setattr(block, f"conv{number}", fuse_conv_bn_eval(getattr(block, f"conv{number}"), norm))
            if leave_identity:
                setattr(block, f"bn{number}", nn.Identity())
            else:
                norm.reset_parameters()
                norm.reset_running_stats()
    return round_weights(net, list_layers(net), bits, per_channel=True)


@pytest.mark.parametrize("leave_identity", [True, False])
def test_a_folded_batch_norm_is_tried_with_its_convolution(leave_identity):
    blame = blame_mode("conv", lambda net: fold_batch_norms(net, 6, leave_identity))
    assert set(blame) == set(list_layers(make_net("conv")))
    for name, layer in blame.items():
        assert layer.together == ((name.replace("conv", "bn"),) if "conv" in name else ())
        assert layer.own < 1e-3  # rounding, and not what the norm does
    # restoring the convolution and its norm, by hand
    samples = make_samples("conv", 2)
    reference = run_net(make_net("conv"), samples)
    whole = compute_mse(reference, run_net(fold_batch_norms(make_net("conv"), 6, leave_identity), samples))
    reductions = {}
    for name in blame:
        net, kept = fold_batch_norms(make_net("conv"), 6, leave_identity), make_net("conv")
        path, _, last = name.rpartition(".")
        for part in {last, last.replace("conv", "bn")}:
            setattr(net.get_submodule(path), part, kept.get_submodule(f"{path}.{part}".lstrip(".")))
        reductions[name] = whole - compute_mse(reference, run_net(net, samples))
    assert next(iter(blame)) == max(reductions, key=reductions.__getitem__)


def test_a_batch_norm_may_be_declared_before_its_convolution():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.BatchNorm2d(4)
            self.convolution = nn.Conv2d(3, 4, 3)
            nn.init.normal_(self.norm.running_mean)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.norm(self.convolution(images))

    def fold() -> nn.Module:
        net = Net().eval()
        net.convolution, net.norm = fuse_conv_bn_eval(net.convolution, net.norm), nn.Identity()
        return round_weights(net, ["convolution"], 4)

    blame = blame_layers(Net, fold, [torch.randn(1, 3, 6, 6)])
    assert [(layer.name, layer.together, layer.share) for layer in blame] == [("convolution", ("norm",), 1.0)]


def test_layers_that_are_not_folded_stay_apart():
    # the stem feeds a convolution directly, and their errors may cancel a little
    layers = list_layers(make_net("conv"))
    for seed in range(5):
        blame = blame_layers(
            lambda seed=seed: make_net("conv", seed),
            lambda seed=seed: round_weights(make_net("conv", seed), layers, 5),
            make_samples("conv"),
        )
        assert all(layer.together == () for layer in blame)


def test_scales_that_moved_from_a_norm_into_its_consumers_are_exchanged_together():
    def smooth(net: Transformer) -> nn.Module:
        for block in net.blocks:
            scale = torch.linspace(0.2, 5, 32)
            block.norm1.weight.data /= scale
            block.norm1.bias.data /= scale
            block.attention.qkv.weight.data *= scale
        return round_weights(net, [name for name in list_layers(net) if name.endswith("qkv")], 6)

    blame = blame_mode("transformer", smooth)
    assert {name: layer.together for name, layer in blame.items()} == {
        f"blocks.{number}.norm1": (f"blocks.{number}.attention.qkv",) for number in range(3)
    }


class HalfInside(nn.Module):
    """A mode that wraps the model: float16 inside, float32 outside."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.half()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images.half()).float()


def cast_with_hooks(net: nn.Module) -> nn.Module:
    net.half().register_forward_pre_hook(lambda module, args: tuple(argument.half() for argument in args))
    net.register_forward_hook(lambda module, args, output: output.float())
    return net


class Autocast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(images).float()


@pytest.mark.parametrize("mode", [HalfInside, cast_with_hooks])
def test_a_cast_model_is_blamed_layer_by_layer(mode):
    blame = blame_mode("conv", mode)
    norms = {name for name, module in make_net("conv").named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert set(blame) == {*list_layers(make_net("conv")), *norms}
    net = make_net("conv")
    images = make_samples("conv", 2)
    stem, rounded = net.stem, make_net("conv").half().stem
    own = compute_mse(
        [stem(*args).detach().double().numpy() for args in images],
        [rounded(args[0].half()).detach().double().numpy() for args in images],
    )
    assert blame["stem"].own == blame["stem"].cumulative == pytest.approx(own, rel=1e-9)


def test_layers_under_autocast_are_listed_though_their_weights_are_the_same():
    assert set(blame_mode("conv", Autocast)) == set(list_layers(make_net("conv")))


def test_the_layer_that_overflows_is_to_blame_for_a_result_that_is_not_finite():
    def overflow(net: nn.Module) -> nn.Module:
        round_weights(net, list_layers(net), 6)
        net.blocks[1].mlp[0].register_forward_hook(lambda module, args, output: output * math.inf)
        return net

    blame = blame_mode("transformer", overflow)
    assert next(iter(blame)) == "blocks.1.mlp.0"
    assert blame["blocks.1.mlp.0"].share == 1


def test_a_module_with_two_names_is_one_layer():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(8, 8)
            self.middle = nn.Linear(8, 8)
            self.again = self.first

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.again(self.middle(self.first(inputs)).tanh())

    blame = blame_layers(Shared, lambda: round_weights(Shared(), ["first"], 3), [torch.ones(2, 8)])
    assert blame == [BlamedLayer("first", blame[0].own, blame[0].cumulative, 1.0)]


def test_models_with_a_memory_and_models_that_write_to_their_inputs():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.linear(inputs.add_(self.calls))

    sample = torch.ones(2, 8)
    blame = blame_layers(Counting, lambda: round_weights(Counting(), ["linear"], 3), [sample, sample])
    with torch.no_grad():
        own = (Counting()(torch.ones(2, 8)) - round_weights(Counting(), ["linear"], 3)(torch.ones(2, 8))).square()
    assert [layer.name for layer in blame] == ["linear"]
    assert blame[0].own == pytest.approx(float(own.mean()), rel=1e-5)
    assert torch.equal(sample, torch.ones(2, 8))


def test_a_batch_norm_that_is_gone_from_a_sequence():
    def make() -> nn.Module:
        torch.manual_seed(0)
        stack = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        nn.init.normal_(stack[1].running_mean)
        return nn.ModuleDict({"stack": stack, "head": nn.Conv2d(8, 2, 1)}).eval()

    class Net(nn.Module):
        def __init__(self, folded: bool) -> None:
            super().__init__()
            self.parts = make()
            if folded:
                convolution = fuse_conv_bn_eval(self.parts["stack"][0], self.parts["stack"][1])
                self.parts["stack"] = round_weights(nn.Sequential(convolution, nn.ReLU()), ["0"], 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.parts["head"](self.parts["stack"](images))

    blame = blame_layers(lambda: Net(False), lambda: Net(True), [torch.randn(2, 3, 8, 8)])
    assert len(blame) == 1
    assert blame[0].name.startswith("parts.stack")
    assert blame[0].share == 1


def test_a_part_that_runs_nowhere_else_gives_way_to_the_module_around_it():
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.up = nn.Linear(4, width)
            self.down = nn.Linear(width, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(inputs).relu())

    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.block = Block(width)
            torch.manual_seed(0)
            self.head = nn.Linear(4, 20)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.block(inputs).tanh())

    # a pruned block: neither of its layers fits into the other one
    blame = blame_layers(lambda: Net(8), lambda: round_weights(Net(6), ["head"], 4), [torch.randn(5, 4)])
    assert [layer.name for layer in blame] == ["block", "head"]


def test_nothing_changed_is_an_empty_list_and_nothing_lost_is_no_share():
    assert blame_layers(lambda: make_net("mlp"), lambda: make_net("mlp"), make_samples("mlp")) == []

    class Unused(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)
            self.unused.weight.data *= factor

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return functional.relu(self.used(inputs))

    blame = blame_layers(lambda: Unused(1), lambda: Unused(2), [torch.ones(1, 4)])
    assert blame == [BlamedLayer("unused", 0.0, 0.0, 0.0)]


def test_no_sample_is_a_usage_error():
    with pytest.raises(UsageError, match="no samples"):
        blame_layers(lambda: make_net("mlp"), lambda: make_net("mlp"), [])


def test_progress_ends_near_the_total():
    steps: list[tuple[int, int | None]] = []
    layers = list_layers(make_net("mlp"))
    blame_layers(
        lambda: make_net("mlp"),
        lambda: round_weights(make_net("mlp"), layers, 4),
        make_samples("mlp"),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert steps[-1] == (18, 18)
    counted = [done for done, total in steps if total]
    assert counted == sorted(counted)
    assert np.all(np.array(counted) <= 18)


def test_a_model_of_many_layers_is_judged_by_its_first_samples():
    totals = set()
    layers = list_layers(make_net("mlp"))
    blame_layers(
        lambda: make_net("mlp"),
        lambda: round_weights(make_net("mlp"), layers, 4),
        [torch.randn(1, 24) for _ in range(100)],
        progress=lambda done, total: totals.add(total),
    )
    assert totals == {None, 6 * 83}  # 2 * 6 * 83 runs are the most below 1000
