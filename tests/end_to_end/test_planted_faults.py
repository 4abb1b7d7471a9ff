"""Bugs that people make, planted in real architectures: each is found at its very place, forward and backward."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn
from zoo import ZOO, built

import nndiff
from gradients import slightly
from nndiff.recording.record import record
from nndiff.relations import load_relation
from nndiff.result import PartingReason
from nndiff.result_json import load


def model(name, **options):
    """Return a model whose norms and biases are not all alike, as those of a fresh one are."""
    made = built(name, **options)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for path, parameter in made.named_parameters():
            if "norm" in path.lower() or path.endswith("bias"):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return made


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the recording of a model as it should be; made once."""
    folder = tmp_path_factory.mktemp("right")
    made = {}

    def get(name, backward):
        if (name, backward) not in made:
            path = folder / f"{name}-{backward}.nnrec"
            made[name, backward] = record(model(name), ZOO[name].inputs(), path=path, backward=backward).path
        return made[name, backward]

    return get


@pytest.mark.parametrize("name", ZOO)
def test_a_copy_is_identical(name, reference, tmp_path):
    copy = record(model(name), ZOO[name].inputs(), path=tmp_path / "copy.nnrec", backward=True)
    result = nndiff.compare(reference(name, True), copy)
    assert (result.verdict, result.first_divergence) == ("identical", None)
    assert result.totals.pairs > 50


@pytest.mark.parametrize("name", ["llama", "bert", "whisper"])
def test_another_attention_kernel_is_close(name, reference, tmp_path):
    other = record(model(name, attention="sdpa"), ZOO[name].inputs(), path=tmp_path / "sdpa.nnrec", backward=True)
    result = nndiff.compare(reference(name, True), other)
    assert result.verdict in ("close", "identical"), [str(pair) for pair in result.worst(3)]


def around(module, before=lambda *args: args, after=lambda output: output):
    """Do something to what a module is given or returns."""
    plain = module.forward
    module.forward = lambda *args, **kwargs: after(plain(*before(*args), **kwargs))


def eps(m):
    m.model.layers[1].input_layernorm.variance_epsilon = 1e-2


def layer_norm_eps(m):
    m.encoder.layer[1].output.LayerNorm.eps = 1e-3


def wrong_gelu(m):
    m.encoder.layer[1].intermediate.intermediate_act_fn = nn.GELU(approximate="tanh").eval()


def wrong_gelu_in_no_module(m):
    dense = m.encoder.layer[1].intermediate.dense
    m.encoder.layer[1].intermediate.forward = lambda x: F.gelu(dense(x), approximate="tanh")


def no_scale(m):
    m.model.layers[1].self_attn.scaling = 1.0


def transposed(m):
    with torch.no_grad():
        weight = m.model.layers[1].self_attn.q_proj.weight
        weight.copy_(weight.t().clone())


def no_mask(m):
    attn = m.model.layers[1].self_attn
    plain = attn.forward
    attn.forward = lambda *args, **kwargs: plain(*args, **{**kwargs, "attention_mask": None})


def rotary_off_by_one(m):
    plain = m.model.rotary_emb.forward
    m.model.rotary_emb.forward = lambda x, position_ids: plain(x, position_ids + 1)


def positions_off_by_one(m):
    m.embeddings.position_ids = (m.embeddings.position_ids + 1)[:, :63]


def heads_swapped(m):
    with torch.no_grad():
        weight = m.model.layers[1].self_attn.q_proj.weight
        weight.copy_(weight.view(4, 8, 32)[[1, 0, 2, 3]].reshape(32, 32))


def heads_merged_in_another_order(m):
    def swap(x):
        return (x.unflatten(-1, (4, 8))[:, :, [1, 0, 2, 3]].flatten(2),)

    m.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda module, args: swap(*args))


def no_residual(m):
    def forward(self, hidden_states, **kwargs):
        kwargs.pop("use_cache", None)
        hidden, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    m.model.layers[1].forward = types.MethodType(forward, m.model.layers[1])


def dropout_left_on(m):
    m.encoder.layer[1].output.dropout.train()


def cast(m):
    layer = m.model.layers[1].mlp.up_proj
    layer.forward = lambda x: F.linear(x.bfloat16(), layer.weight.bfloat16()).float()


def no_bias(m):
    m.encoder.layer[1].attention.self.query.bias = None


def norms_swapped(m):
    layer = m.encoder.layer[1]
    one, other = layer.attention.output, layer.output
    one.LayerNorm, other.LayerNorm = other.LayerNorm, one.LayerNorm


def cross_attention_of_something_else(m):
    attn = m.decoder.layers[1].encoder_attn
    plain = attn.forward
    attn.forward = lambda *args, **kwargs: plain(
        *args, **{**kwargs, "key_value_states": kwargs["key_value_states"] * 1.01}
    )


def statistics(m):
    m.encoder.stages[1].layers[0].layer[1].normalization.running_mean.add_(0.1)


def decay(m):
    with torch.no_grad():
        m.backbone.layers[1].mixer.A_log.add_(0.1)


def head_scaled(m):
    around(m.lm_head, after=lambda output: output * 1.001)


# bug: the model it is planted in, and the module it is in
FORWARD = {
    eps: ("llama", "model.layers.1.input_layernorm"),
    layer_norm_eps: ("bert", "encoder.layer.1.output.LayerNorm"),
    wrong_gelu: ("bert", "encoder.layer.1.intermediate.intermediate_act_fn"),
    wrong_gelu_in_no_module: ("bert", "encoder.layer.1.intermediate"),
    no_scale: ("llama", "model.layers.1.self_attn"),
    transposed: ("llama", "model.layers.1.self_attn.q_proj"),
    no_mask: ("llama", "model.layers.1.self_attn"),
    rotary_off_by_one: ("llama", "model.rotary_emb"),
    positions_off_by_one: ("bert", "embeddings"),
    heads_swapped: ("llama", "model.layers.1.self_attn.q_proj"),
    heads_merged_in_another_order: ("llama", "model.layers.1.self_attn"),
    no_residual: ("llama", "model.layers.1"),
    dropout_left_on: ("bert", "encoder.layer.1.output.dropout"),
    cast: ("llama", "model.layers.1.mlp.up_proj"),
    no_bias: ("bert", "encoder.layer.1.attention.self.query"),
    norms_swapped: ("bert", "encoder.layer.1.attention.output"),  # the norms themselves are paired by their weights
    cross_attention_of_something_else: ("whisper", "decoder.layers.1.encoder_attn"),
    statistics: ("resnet", "encoder.stages.1.layers.0.layer.1.normalization"),
    decay: ("mamba", "backbone.layers.1.mixer"),
    head_scaled: ("llama", "lm_head"),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("bug", FORWARD, ids=lambda bug: bug.__name__)
def test_a_bug_is_found_at_its_very_place(bug, backward, reference, tmp_path):
    name, place = FORWARD[bug]
    broken = model(name)
    bug(broken)
    record(broken, ZOO[name].inputs(), path=tmp_path / "wrong.nnrec", backward=backward)
    result = nndiff.compare(reference(name, backward), tmp_path / "wrong.nnrec")
    assert result.exit_code == 1
    assert result.first_divergence.module == place
    wrong = {"gradients-only", "rounding", "more-than-rounding"}
    assert not wrong & {finding.cause for finding in result.findings}


def activation_backward(m):
    around(m.model.layers[1].mlp.act_fn, before=lambda x: (slightly(x),))


def norm_backward(m):
    around(m.encoder.layer[1].output.LayerNorm, before=lambda x: (slightly(x),))


def layer_backward(m):
    m.model.layers[1].register_forward_hook(lambda module, args, output: slightly(output))


def weight_backward(m):
    dense = m.encoder.layer[1].intermediate.dense
    dense.forward = lambda x: F.linear(x, slightly(dense.weight), dense.bias)


def key_input_detached(m):
    around(m.model.layers[1].self_attn.k_proj, before=lambda x: (x.detach(),))


def value_detached(m):
    around(m.encoder.layer[1].attention.self.value, after=lambda output: output.detach())


def layer(m, attention=lambda x: x, residual=lambda x: x):
    """Write the forward pass of a layer anew, with something done to what attention returns or to its residual."""

    def forward(self, hidden_states, **kwargs):
        kwargs.pop("use_cache", None)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden = residual(hidden_states) + attention(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    m.model.layers[1].forward = types.MethodType(forward, m.model.layers[1])


def cross_attention_detached(m):
    attention = m.decoder.layers[1].encoder_attn
    plain = attention.forward

    def forward(*args, key_value_states, **kwargs):
        return plain(*args, key_value_states=key_value_states.detach(), **kwargs)

    attention.forward = forward


def residual_detached(m):
    layer(m, residual=torch.detach)


def residual_scaled(m):
    layer(m, residual=slightly)


def attention_detached(m):
    layer(m, attention=torch.detach)


def norm_returned_otherwise(m):
    plain = m.model.forward

    def forward(*args, **kwargs):
        found = plain(*args, **kwargs)
        found.last_hidden_state = slightly(found.last_hidden_state)
        return found

    m.model.forward = forward


def layer_detached(m):
    around(m.model.layers[1], after=torch.detach)


def residual_of_output_detached(m):
    output = m.encoder.layer[1].output
    output.forward = lambda x, given: output.LayerNorm(output.dropout(output.dense(x)) + given.detach())


def gradient_turned(m):
    m.model.layers[1].self_attn.q_proj.weight.register_hook(lambda grad: grad.t())


def frozen(m):
    m.encoder.layer[1].intermediate.dense.weight.requires_grad_(False)


G, MISSING = PartingReason.GRADIENT, PartingReason.GRADIENT_MISSING
# bug: the model, the module to look in, why it is taken, and a word of what is said of it
BACKWARD = {
    activation_backward: ("llama", "model.layers.1.mlp.act_fn", G, "its backward"),
    norm_backward: ("bert", "encoder.layer.1.output", G, "encoder.layer.1.output.LayerNorm"),
    layer_backward: ("llama", "model.layers.1", G, "the backward of what model.layers.1 does"),
    weight_backward: ("bert", "encoder.layer.1.intermediate.dense", G, "parameter"),
    key_input_detached: ("llama", "model.layers.1.self_attn", G, "q_proj, model.layers.1.self_attn.k_proj"),
    cross_attention_detached: ("whisper", "decoder.layers.1.encoder_attn", G, "between encoder.layer_norm and"),
    residual_detached: ("llama", "model.layers.1", G, "cut off"),
    residual_scaled: ("llama", "model.layers.1", G, "multiplied by 1.1"),
    attention_detached: ("llama", "model.layers.1.self_attn", MISSING, "candidate"),
    norm_returned_otherwise: ("llama", "model", G, "after model.norm"),
    layer_detached: ("llama", "model.layers.1", MISSING, "detached"),
    residual_of_output_detached: ("bert", "encoder.layer.1.output", G, "cut off"),
    gradient_turned: ("llama", "model.layers.1.self_attn.q_proj", G, "parameter"),
    value_detached: ("bert", "encoder.layer.1.attention.self.value", MISSING, "detached"),
    frozen: ("bert", "encoder.layer.1.intermediate.dense", MISSING, "frozen"),
}


@pytest.mark.parametrize("bug", BACKWARD, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_backward_pass_is_found_at_its_place(bug, reference, tmp_path):
    name, place, reason, said = BACKWARD[bug]
    broken = model(name)
    bug(broken)
    record(broken, ZOO[name].inputs(), path=tmp_path / "forward.nnrec")
    assert nndiff.compare(reference(name, False), tmp_path / "forward.nnrec").verdict == "identical"
    record(broken, ZOO[name].inputs(), path=tmp_path / "wrong.nnrec", backward=True)
    result = nndiff.compare(reference(name, True), tmp_path / "wrong.nnrec")
    assert result.exit_code == 1
    assert (result.first_divergence.module, result.first_divergence.reason) == (place, reason)
    assert said in result.first_divergence.why


@pytest.mark.parametrize("params", [False, True])
def test_a_gradient_lies_as_its_parameter_does(params, tmp_path):
    """Transposed with its parameter it is the same; transposed alone it is wrong."""

    def net(layer):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        if layer is not None:
            made[0] = layer(made[0])
        return made

    class Turned(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight, self.bias = nn.Parameter(linear.weight.detach().t().clone()), linear.bias

        def forward(self, x):
            return x @ self.weight + self.bias

    def wrong(linear):
        linear.weight.register_hook(lambda grad: grad.t())
        return linear

    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    sides = {}
    for name, layer in (("plain", None), ("turned", Turned), ("wrong", wrong)):
        sides[name] = record(net(layer), inputs, path=tmp_path / name, backward=True, params=params).path
    assert nndiff.compare(sides["plain"], sides["turned"]).exit_code == 0
    result = nndiff.compare(sides["plain"], sides["wrong"])
    assert (result.exit_code, result.first_divergence.name) == (1, "0.weight:param_grad")


def test_a_gradient_that_one_side_lacks_is_kept_in_a_saved_result(reference, tmp_path):
    from nndiff.reports import ReportOptions, get_report
    from nndiff.tolerance import Tolerance

    broken = model("bert")
    frozen(broken)
    record(broken, ZOO["bert"].inputs(), path=tmp_path / "wrong.nnrec", backward=True)
    nndiff.compare(reference("bert", True), tmp_path / "wrong.nnrec").save(tmp_path / "x.json")
    loaded = load(tmp_path / "x.json", load_relation)
    again = loaded.judged_at(Tolerance(1e-4, 1e-4))
    assert again.first_divergence.name == "encoder.layer.1.intermediate.dense.weight:param_grad"
    text = get_report("terminal").render(again, ReportOptions(width=120, color=False))
    assert "▶ first at encoder.layer.1.intermediate.dense.weight:param_grad  Linear, missing in the candidate" in text


@pytest.mark.parametrize("options", [{"keep": "sketch"}, {"inputs_kept": True}], ids=str)
def test_a_residual_that_is_cut_off_is_found_in_what_is_kept(options, tmp_path):
    broken = model("llama")
    residual_detached(broken)
    sides = [
        record(made, ZOO["llama"].inputs(), path=tmp_path / name, backward=True, **options)
        for name, made in (("right", model("llama")), ("wrong", broken))
    ]
    first = nndiff.compare(*sides).first_divergence
    assert first.module == "model.layers.1"
    assert "cut off" in first.why


def test_a_composite_with_one_wrong_gradient_of_several_was_not_handed_a_good_one(tmp_path):
    broken = model("llama")
    activation_backward(broken)
    sides = [
        record(made, ZOO["llama"].inputs(), path=tmp_path / name, backward=True, depth=3)  # its caches are returned too
        for name, made in (("right", model("llama")), ("wrong", broken))
    ]
    assert nndiff.compare(*sides).first_divergence.module == "model"
