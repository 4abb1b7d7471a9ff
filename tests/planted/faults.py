"""Faults that people make when they port, convert and load models; what each one is, and where, is stated here."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from networks import HEADS, WIDTH, padded_both, padded_left, padded_right
from torch import nn
from truth import FAULTS, Fault, at, code_of, code_of_port, either, fault

__all__ = ["FAULTS", "Fault"]

SIZE = WIDTH // HEADS  # of a head
LLAMA, GPT2, BERT, VIT, GEMMA = "model.layers.1", "transformer.h.1", "encoder.layer.1", "layers.1", "model.layers.0"
RESNET = "encoder.stages.1.layers.1"


# How faults are planted


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module another forward; it is called with the module."""
    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def change_output(module: nn.Module, change: Callable[[Any], Any]) -> None:
    """Do something to what a module returns, inside its forward."""
    plain = module.forward
    module.forward = lambda *args, **kwargs: change(plain(*args, **kwargs))  # type: ignore[method-assign]


def change_argument(module: nn.Module, name: str, change: Callable[[Any], Any]) -> None:
    """Do something to a keyword argument of a module, inside its forward."""
    plain = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **{**kwargs, name: change(kwargs.get(name))})

    module.forward = forward  # type: ignore[method-assign]


def draw(*shape: int, seed: int = 5) -> torch.Tensor:
    """Return numbers of a normal distribution, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange the values of two tensors."""
    kept = one.detach().clone()
    one.data.copy_(other)
    other.data.copy_(kept)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn positions as Llama does: the second half of a head belongs to the first."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def rotate_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn positions as GPT-J does: each element belongs to its neighbour."""
    cos, sin = (part.chunk(2, -1)[0].repeat_interleave(2, -1) for part in (cos, sin))
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def rewrite_llama_attention(
    attention: Any,
    rotate: Callable[..., torch.Tensor] = rotate_halves,
    rotate_query: Callable[..., torch.Tensor] | None = None,
    repeat: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.repeat_interleave(2, 1),
    swapped: bool = False,
    softmax: Callable[[torch.Tensor], torch.Tensor] = lambda scores: scores.softmax(-1),
) -> None:
    """Write the attention of a Llama anew, with one thing done otherwise."""

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        q, k, v = (
            layer(hidden_states).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = (part[:, None] for part in position_embeddings)
        q, k = (rotate_query or rotate)(q, cos, sin), rotate(k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        k, v = repeat(k), repeat(v)
        if swapped:
            q, k = k, q
        weights = softmax(q @ k.mT * self.scaling + attention_mask)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights

    replace_forward(attention, forward)


def rewrite_llama_layer(layer: Any, combine: Callable[[Any, torch.Tensor, dict[str, Any]], torch.Tensor]) -> None:
    """Write the forward of a decoder layer anew; `combine` joins its parts."""

    def forward(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("use_cache", None)
        return combine(self, hidden_states, kwargs)

    replace_forward(layer, forward)


def rewrite_mamba_mixer(
    mixer: Any, read: Callable[[torch.Tensor], Any] = lambda joined: joined.chunk(2, -1), softplus: bool = True
) -> None:
    """Write the mixer of a Mamba anew, with one thing done otherwise."""

    def forward(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        stream, gate = read(self.in_proj(hidden_states))
        length = stream.shape[1]
        stream = F.conv1d(
            stream.mT, self.conv1d.weight, self.conv1d.bias, padding=self.conv_kernel_size - 1, groups=stream.shape[-1]
        )
        stream = F.silu(stream[..., :length].mT)
        sizes = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
        step, entry, leave = self.x_proj(stream).split(sizes, -1)
        step = F.linear(step, self.dt_proj.weight, self.dt_proj.bias)
        step = F.softplus(step) if softplus else step.exp()
        decay = torch.exp(step[..., None] * -self.A_log.exp())
        added = (step * stream)[..., None] * entry[:, :, None]
        state, states = torch.zeros_like(added[:, 0]), []
        for position in range(length):
            state = decay[:, position] * state + added[:, position]
            states.append((state * leave[:, position, None]).sum(-1))
        return self.out_proj((torch.stack(states, 1) + stream * self.D) * F.silu(gate))

    replace_forward(mixer, forward)


# Norms: eps, where it is added, weight + 1, kind


@fault("llama", at(f"{LLAMA}.input_layernorm"), "norm-eps", "norm eps", backward=True)
def rms_eps(m):
    m.model.layers[1].input_layernorm.variance_epsilon = 1e-2


def shrink_stream(m):
    m.model.embed_tokens.weight.data.mul_(0.02)


@fault("llama", at("model.layers.0.input_layernorm"), "norm-eps", "norm eps", prepare=shrink_stream)
def rms_eps_in_a_small_stream(m):
    m.model.layers[0].input_layernorm.variance_epsilon = 1e-5


@fault("bert", at(f"{BERT}.output.LayerNorm"), "norm-eps", "norm eps", backward=True)
def layer_norm_eps(m):
    m.encoder.layer[1].output.LayerNorm.eps = 1e-3


@fault("resnet", at(f"{RESNET}.layer.0.normalization"), "norm-eps", "norm eps")
def batch_norm_eps(m):
    m.encoder.stages[1].layers[1].layer[0].normalization.eps = 1e-2


@fault("gpt2", at("transformer.ln_f"), "norm-eps", "norm eps", is_ported=True)
def port_final_norm_eps(m):
    m.final.eps = 1e-2


@fault("llama", at(f"{LLAMA}.post_attention_layernorm"), "norm-eps", "norm eps", is_ported=True, backward=True)
def port_rms_eps(m):
    m.blocks[1].mid.eps = 1e-2


def large_eps(m):
    m.model.layers[1].input_layernorm.variance_epsilon = 1e-2


@fault("llama", at(f"{LLAMA}.input_layernorm"), "norm-eps-placement", "eps placement", prepare=large_eps)
def eps_outside_the_root(m):
    def forward(self, x):
        return self.weight * (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon))

    replace_forward(m.model.layers[1].input_layernorm, forward)


def large_layer_norm_eps(m):
    m.encoder.layer[1].output.LayerNorm.eps = 1e-2


@fault(
    "bert", at(f"{BERT}.output.LayerNorm"), "norm-eps-placement", "eps placement", prepare=large_layer_norm_eps,
    is_reversed=True,
)  # fmt: skip
def eps_added_to_the_deviation(m):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.pow(2).mean(-1, keepdim=True).sqrt() + self.eps) + self.bias

    replace_forward(m.encoder.layer[1].output.LayerNorm, forward)


@fault("gemma", at(f"{GEMMA}.pre_feedforward_layernorm"), "norm-offset", "weight + 1", backward=True)
def norm_without_one_added(m):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    replace_forward(m.model.layers[0].pre_feedforward_layernorm, forward)


@fault("llama", at("model.norm"), "norm-offset", "weight + 1")
def norm_with_one_added(m):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)

    replace_forward(m.model.norm, forward)


@fault("gpt2", at(f"{GPT2}.ln_2"), "norm-kind", "norm kind")
def norm_without_the_mean(m):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias

    replace_forward(m.transformer.h[1].ln_2, forward)


@fault("llama", at(f"{LLAMA}.input_layernorm"), "norm-kind", "norm kind", backward=True)
def norm_with_the_mean(m):
    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.weight, None, self.variance_epsilon)

    replace_forward(m.model.layers[1].input_layernorm, forward)


@fault("convnet", at("unit.norm"), "norm-kind", "norm groups")
def fewer_groups(m):
    m.unit.norm.num_groups = 2


@fault("llama", at("blocks.1.pre"), "norm-eps", "norm eps", is_ported_back=True)
def back_rms_eps(m):
    m.model.layers[1].input_layernorm.variance_epsilon = 1e-2


@fault("bert", at("stack.1.two"), "norm-eps", "norm eps", is_ported_back=True, backward=True)
def back_layer_norm_eps(m):
    m.encoder.layer[1].output.LayerNorm.eps = 1e-3


# Activations


@fault("bert", at(f"{BERT}.intermediate.intermediate_act_fn"), "activation", "gelu tanh", backward=True)
def gelu_tanh(m):
    m.encoder.layer[1].intermediate.intermediate_act_fn = nn.GELU(approximate="tanh").eval()


@fault("gpt2", at(f"{GPT2}.mlp.act"), "activation", "gelu erf")
def gelu_erf(m):
    m.transformer.h[1].mlp.act = nn.GELU().eval()


@fault("bert", at(f"{BERT}.intermediate"), "activation", "gelu tanh")
def gelu_tanh_in_no_module(m):
    dense = m.encoder.layer[1].intermediate.dense
    m.encoder.layer[1].intermediate.forward = lambda x: F.gelu(dense(x), approximate="tanh")


@fault("whisper", at("encoder.layers.1.activation_fn"), "activation", "quick gelu")
def quick_gelu(m):
    replace_forward(m.encoder.layers[1].activation_fn, lambda self, x: x * torch.sigmoid(1.702 * x))


@fault("llama", at(f"{LLAMA}.mlp.act_fn"), "activation", "gelu for silu", backward=True)
def gelu_for_silu(m):
    m.model.layers[1].mlp.act_fn = nn.GELU().eval()


@fault("resnet", at(f"{RESNET}.layer.0.activation"), "activation", "leaky relu", is_reversed=True)
def leaky_relu(m):
    m.encoder.stages[1].layers[1].layer[0].activation = nn.LeakyReLU(0.01).eval()


@fault("vit", at("pooler.activation"), "activation another-class layer-skipped", "activation missing")
def pooler_without_tanh(m):
    m.pooler.activation = nn.Identity()


@fault("gpt2", code_of_port(GPT2, f"{GPT2}.mlp", f"{GPT2}.mlp.act", f"{GPT2}.mlp.c_proj"), "activation", "gelu erf",
       is_ported=True, backward=True)  # fmt: skip
def port_gelu_erf(m):
    m.stack[1].approximate = "none"


@fault("bert", code_of_port(BERT, f"{BERT}.intermediate", f"{BERT}.intermediate.intermediate_act_fn",
                            f"{BERT}.output.dense"), "activation", "gelu tanh", is_ported=True)  # fmt: skip
def port_gelu_tanh(m):
    m.stack[1].approximate = "tanh"


@fault("gpt2", code_of("stack.1", "stack.1.shrink"), "activation", "gelu erf", is_ported_back=True)
def back_gelu_erf(m):
    m.transformer.h[1].mlp.act = nn.GELU().eval()


# Attention: scale, softcap, masks


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "attention-scale", "attention scale",
       backward=True)  # fmt: skip
def scores_not_scaled(m):
    m.model.layers[1].self_attn.scaling = 1.0


@fault("vit", code_of(f"{VIT}.attention", f"{VIT}.attention.o_proj"), "attention-scale", "attention scale")
def scores_divided_by_size(m):
    m.layers[1].attention.scaling = 1 / SIZE


@fault("gemma", code_of(f"{GEMMA}.self_attn", f"{GEMMA}.self_attn.o_proj"), "attention-scale", "attention scale")
def query_scalar_lost(m):
    m.model.layers[0].self_attn.scaling = SIZE**-0.5  # not query_pre_attn_scalar ** -0.5


@fault("whisper", code_of("decoder.layers.1.encoder_attn", "decoder.layers.1.encoder_attn.out_proj"),
       "attention-scale", "attention scale")  # fmt: skip
def queries_scaled_twice(m):
    m.decoder.layers[1].encoder_attn.scaling = 1 / SIZE


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "attention-scale", "attention scale",
       is_ported=True)  # fmt: skip
def port_scores_not_scaled(m):
    m.blocks[1].mix.scale = 1.0


@fault("gemma", code_of(f"{GEMMA}.self_attn", f"{GEMMA}.self_attn.o_proj"), "softcap", "softcap of scores",
       backward=True)  # fmt: skip
def scores_not_capped(m):
    m.model.layers[0].self_attn.attn_logit_softcapping = None


@fault("gemma", code_of("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj"), "softcap", "softcap of scores")
def scores_capped_elsewhere(m):
    m.model.layers[1].self_attn.attn_logit_softcapping = 2.0


@fault("gemma", at(""), "softcap", "softcap of logits")
def logits_not_capped(m):
    m.config.final_logit_softcapping = None


@fault("llama", at("lm_head"), "softcap", "softcap of logits")
def logits_capped(m):
    change_output(m.lm_head, lambda logits: 3.0 * torch.tanh(logits / 3.0))


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "causal-mask", "causal mask missing",
       backward=True)  # fmt: skip
def causal_mask_missing(m):
    change_argument(m.model.layers[1].self_attn, "attention_mask", lambda mask: None)


def additive(hidden: torch.Tensor) -> torch.Tensor:
    """Return the mask that hides where `hidden` is True."""
    return torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)


@fault("gpt2", code_of(f"{GPT2}.attn", f"{GPT2}.attn.c_proj"), "causal-mask", "causal mask shifted")
def causal_mask_shifted(m):
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(2)
    change_argument(m.transformer.h[1].attn, "attention_mask", lambda mask: additive(hidden)[None, None])


@fault("vit", code_of(f"{VIT}.attention", f"{VIT}.attention.o_proj"), "causal-mask", "causal mask added")
def causal_mask_added(m):
    attention = m.layers[1].attention
    plain = attention.forward
    hidden = torch.ones(17, 17, dtype=torch.bool).triu(1)
    attention.forward = lambda x, mask=None, **kwargs: plain(x, additive(hidden)[None, None], **kwargs)


@fault("bert", code_of(f"{BERT}.attention.self", f"{BERT}.attention.output"), "padding-mask", "padding mask ignored",
       inputs=padded_right)  # fmt: skip
def padding_ignored(m):
    change_argument(m.encoder.layer[1].attention.self, "attention_mask", lambda mask: None)


@fault("bert", code_of(f"{BERT}.attention.self", f"{BERT}.attention.output"), "padding-mask", "padding mask inverted",
       inputs=padded_both)  # fmt: skip
def padding_inverted(m):
    hidden = padded_both()["attention_mask"].bool()[:, None, None].expand(2, 1, 12, 12)
    change_argument(m.encoder.layer[1].attention.self, "attention_mask", lambda mask: additive(hidden))


@fault("llama", code_of("model", "model.layers.0"), "padding-mask", "padding mask ignored", inputs=padded_left)
def padding_never_passed_on(m):
    change_argument(m.model, "attention_mask", lambda mask: None)


@fault("bert", code_of_port(BERT, f"{BERT}.attention.self", f"{BERT}.attention.output.dense"), "padding-mask",
       "padding mask ignored", inputs=padded_right, is_ported=True)  # fmt: skip
def port_padding_ignored(m):
    plain = m.stack[1].forward
    m.stack[1].forward = lambda x, seen: plain(x, torch.ones_like(seen))


@fault("gemma", code_of(f"{GEMMA}.self_attn", f"{GEMMA}.self_attn.o_proj"), "sliding-window", "sliding window missing")
def window_missing(m):
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
    change_argument(m.model.layers[0].self_attn, "attention_mask", lambda mask: additive(hidden)[None, None])


@fault("gemma", code_of("model", GEMMA), "sliding-window", "sliding window of another size")
def window_of_another_size(m):
    m.model.config.sliding_window = 6


# Positions


@fault("llama", at("model.rotary_emb"), "rope-theta", "rope theta", backward=True)
def rope_theta(m):
    m.model.rotary_emb.inv_freq.copy_(1 / 500000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))


@fault("llama", at("model.rotary_emb"), "cast low-precision", "frequencies rounded")
def frequencies_rounded_to_bfloat16(m):
    m.model.rotary_emb.inv_freq.copy_(m.model.rotary_emb.inv_freq.bfloat16())


@fault("gemma", at("model.rotary_emb"), "scaled", "rope scaling lost", is_reversed=True)
def positions_interpolated(m):
    m.model.rotary_emb.inv_freq.div_(2)


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "rope-theta", "rope theta", is_ported=True)
def port_rope_theta(m):
    m.blocks[1].mix.theta = 500000.0


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "rope-layout", "rope layout",
       backward=True)  # fmt: skip
def rope_of_neighbours(m):
    rewrite_llama_attention(m.model.layers[1].self_attn, rotate=rotate_neighbours)


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "position-offset", "position offset")
def queries_one_position_late(m):
    turn = m.model.rotary_emb.forward

    def rotate_later(x, cos, sin):
        later = torch.arange(1, x.shape[-2] + 1)[None]
        return rotate_halves(x, *(part[:, None] for part in turn(x, later)))

    rewrite_llama_attention(m.model.layers[1].self_attn, rotate_query=rotate_later)


@fault("bert", code_of("embeddings", "embeddings.position_embeddings"), "position-offset", "position offset",
       backward=True)  # fmt: skip
def positions_from_one(m):
    m.embeddings.position_ids = (m.embeddings.position_ids + 1)[:, :63]


@fault("gpt2", code_of("transformer", "transformer.wpe"), "position-offset", "position offset", is_reversed=True)
def positions_from_two(m):
    change_argument(m.transformer, "position_ids", lambda given: torch.arange(2, 14)[None])


@fault("gpt2", code_of("transformer", "transformer.wpe"), "position-offset", "positions of left padding",
       inputs=padded_left, is_reversed=True)  # fmt: skip
def positions_from_the_mask(m):
    plain = m.transformer.forward

    def forward(*args, attention_mask=None, position_ids=None, **kwargs):
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return plain(*args, attention_mask=attention_mask, position_ids=positions, **kwargs)

    m.transformer.forward = forward


@fault("gpt2", code_of_port("", "transformer", "transformer.wpe"), "position-offset", "position offset",
       is_ported=True)  # fmt: skip
def port_positions_from_one(m):
    m.first = 1


@fault("whisper", at("encoder.embed_positions"), "position-layout", "position layout")
def sines_and_cosines_interleaved(m):
    weight = m.encoder.embed_positions.weight
    weight.data.copy_(torch.stack(weight.chunk(2, -1), -1).flatten(-2))


# Heads and roles


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "key-value-groups", "key-value groups")
def groups_tiled(m):
    rewrite_llama_attention(m.model.layers[1].self_attn, repeat=lambda x: x.repeat(1, 2, 1, 1))


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "key-value-groups", "key-value groups",
       is_ported=True, backward=True)  # fmt: skip
def port_groups_tiled(m):
    m.blocks[1].mix.tiled = True


@fault("llama", at(f"{LLAMA}.self_attn.q_proj"), "head-order", "head order in weights", backward=True)
def heads_loaded_in_another_order(m):
    weight = m.model.layers[1].self_attn.q_proj.weight
    weight.data.copy_(weight.view(HEADS, SIZE, WIDTH)[[1, 0, 3, 2]].reshape(WIDTH, WIDTH))


@fault("bert", code_of(f"{BERT}.attention.self", f"{BERT}.attention.output"), "head-order", "head order in code")
def heads_merged_in_another_order(m):
    def turn(output):
        return output[0].unflatten(-1, (HEADS, SIZE))[:, :, [2, 0, 1, 3]].flatten(2), *output[1:]

    change_output(m.encoder.layer[1].attention.self, turn)


@fault(
    "vit", code_of(f"{VIT}.attention", f"{VIT}.attention.o_proj"), "head-order permuted", "heads not transposed back"
)
def heads_not_transposed_back(m):
    def forward(self, x, attention_mask=None, **kwargs):
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (q @ k.mT * self.scaling).softmax(-1)
        return self.o_proj((weights @ v).reshape(x.shape)), weights

    replace_forward(m.layers[1].attention, forward)


@fault("bert", (frozenset([f"{BERT}.attention.self.query", f"{BERT}.attention.self.key"]),
                frozenset([f"{BERT}.attention.self"])),
       "roles-swapped weights-swapped", "query and key swapped")  # fmt: skip
def query_and_key_loaded_swapped(m):
    attention = m.encoder.layer[1].attention.self
    swap_tensors(attention.query.weight, attention.key.weight)
    swap_tensors(attention.query.bias, attention.key.bias)


@fault("gpt2", at(f"{GPT2}.attn.c_attn"), "roles-swapped head-order", "query and key swapped", backward=True)
def query_and_key_swapped_in_fused_weights(m):
    layer = m.transformer.h[1].attn.c_attn
    order = torch.arange(3 * WIDTH).view(3, WIDTH)[[1, 0, 2]].flatten()
    layer.weight.data.copy_(layer.weight[:, order])
    layer.bias.data.copy_(layer.bias[order])


@fault("vit", code_of(f"{VIT}.attention", f"{VIT}.attention.o_proj"), "roles-swapped", "query and key swapped")
def scores_transposed(m):
    def forward(self, x, attention_mask=None, **kwargs):
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (k @ q.mT * self.scaling).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights

    replace_forward(m.layers[1].attention, forward)


@fault("llama", (frozenset([f"{LLAMA}.mlp.gate_proj", f"{LLAMA}.mlp.up_proj"]), frozenset([f"{LLAMA}.mlp"])),
       "roles-swapped weights-swapped", "gate and up swapped")  # fmt: skip
def gate_and_up_loaded_swapped(m):
    mlp = m.model.layers[1].mlp
    swap_tensors(mlp.gate_proj.weight, mlp.up_proj.weight)


@fault("llama", code_of(f"{LLAMA}.mlp", f"{LLAMA}.mlp.down_proj"), "roles-swapped halves-swapped",
       "gate and up swapped", is_ported=True)  # fmt: skip
def port_gate_and_up_swapped(m):
    def forward(self, x):
        up, gate = self.wide(x).chunk(2, -1)
        return self.narrow(F.silu(gate) * up)

    replace_forward(m.blocks[1].feed, forward)


# Weights loaded wrongly


@fault("llama", at(f"{LLAMA}.self_attn.q_proj"), "transposed permuted", "transposed", backward=True)
def linear_transposed(m):
    weight = m.model.layers[1].self_attn.q_proj.weight
    weight.data.copy_(weight.t().clone())


@fault("gpt2", at(f"{GPT2}.attn.c_proj"), "transposed permuted", "transposed")
def conv1d_loaded_as_linear(m):
    weight = m.transformer.h[1].attn.c_proj.weight
    weight.data.copy_(weight.t().clone())


@fault("llama", at("blocks.1.mix.out"), "transposed permuted", "transposed", is_ported_back=True, backward=True)
def back_linear_transposed(m):
    weight = m.model.layers[1].self_attn.o_proj.weight
    weight.data.copy_(weight.t().clone())


@fault("bert", at(f"{BERT}.intermediate.dense"), "another-layer", "weights of another layer", backward=True)
def dense_of_another_layer(m):
    m.encoder.layer[1].intermediate.dense.load_state_dict(m.encoder.layer[2].intermediate.dense.state_dict())


@fault("llama", at(f"{LLAMA}.mlp.gate_proj", f"{LLAMA}.mlp.up_proj", f"{LLAMA}.mlp.down_proj"), "another-layer",
       "weights of another layer")  # fmt: skip
def mlp_of_the_next_layer(m):
    m.model.layers[1].mlp.load_state_dict(m.model.layers[2].mlp.state_dict())


@fault("llama", at(f"{LLAMA}.mlp.up_proj"), "not-loaded", "not loaded", backward=True)
def linear_not_loaded(m):
    m.model.layers[1].mlp.up_proj.weight.data.copy_(0.02 * draw(64, WIDTH))


@fault("vit", at(f"{VIT}.layernorm_after"), "not-loaded collapsed", "norm not loaded")
def norm_not_loaded(m):
    m.layers[1].layernorm_after.reset_parameters()


@fault("vit", at(f"{VIT}.attention.q_proj"), "bias-missing collapsed not-loaded", "bias of zeros")
def bias_of_zeros(m):
    m.layers[1].attention.q_proj.bias.data.zero_()


@fault("bert", at(f"{BERT}.attention.self.query"), "bias-missing", "bias missing")
def linear_without_bias(m):
    m.encoder.layer[1].attention.self.query.bias = None


@fault("convnet", at("mid"), "bias-missing", "bias missing", is_reversed=True)
def convolution_without_bias(m):
    m.mid.bias = None


@fault("gpt2", either(f"{GPT2}.attn", f"{GPT2}.attn.c_attn"), "bias-missing", "bias missing", is_ported=True)
def port_values_without_bias(m):
    m.stack[1].v.bias = None


@fault("bert", either("stack.1", "stack.1.qkv"), "bias-missing", "bias missing", is_ported_back=True)
def back_values_without_bias(m):
    m.encoder.layer[1].attention.self.value.bias = None


@fault("vit", at(f"{VIT}.attention.v_proj"), "lora", "low rank", backward=True)
def adapter_merged(m):
    m.layers[1].attention.v_proj.weight.data.add_(0.1 * draw(WIDTH, 2) @ draw(2, WIDTH, seed=6))


@fault("llama", at(f"{LLAMA}.mlp.down_proj"), "cast low-precision", "weights rounded")
def weight_rounded_to_bfloat16(m):
    weight = m.model.layers[1].mlp.down_proj.weight
    weight.data.copy_(weight.bfloat16())


@fault("llama", at(f"{LLAMA}.mlp.gate_proj"), "quantised", "weights quantised")
def weight_in_four_bits(m):
    weight = m.model.layers[1].mlp.gate_proj.weight
    step = weight.abs().amax(-1, keepdim=True) / 7
    weight.data.copy_((weight / step).round() * step)


@fault("gpt2", at("lm_head"), "untied not-loaded", "untied")
def head_not_tied(m):
    m.lm_head.weight = nn.Parameter(0.02 * draw(100, WIDTH))


@fault("llama", at("model.embed_tokens"), "rows-permuted", "vocabulary shifted")
def vocabulary_shifted(m):
    m.model.embed_tokens.weight.data.copy_(m.model.embed_tokens.weight.roll(1, 0))


@fault("resnet", at("embedder.embedder.convolution"), "channel-order", "channel order of weights")
def first_convolution_of_bgr(m):
    weight = m.embedder.embedder.convolution.weight
    weight.data.copy_(weight.flip(1))


@fault("tagger", at("lstm"), "gate-order", "gate order")
def gates_in_another_order(m):
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        parameter = getattr(m.lstm, name)
        parameter.data.copy_(torch.cat([parameter.chunk(4)[gate] for gate in (0, 1, 3, 2)]))


@fault("tagger", at("lstm"), "bias-missing collapsed not-loaded", "bias of zeros", backward=True)
def recurrent_bias_not_loaded(m):
    m.lstm.bias_hh_l0.data.zero_()
    m.lstm.bias_hh_l0_reverse.data.zero_()


@fault("convnet", at("head"), "flatten-order", "flatten order of weights")
def columns_of_channels_last(m):
    weight = m.head.weight
    weight.data.copy_(weight.view(10, 12, 4, 4).permute(0, 2, 3, 1).reshape(10, -1))


@fault("convnet", code_of("", "head"), "flatten-order permuted", "flatten order in code")
def flattened_channels_last(m):
    def forward(self, x):
        x = self.unit(self.stem(x))
        high = self.up(self.mid(self.pool(F.relu(self.down(x)))))
        x = self.shrink(self.peak(F.relu(self.join(torch.cat([x, high], 1)))))
        return self.head(x.permute(0, 2, 3, 1).flatten(1))

    replace_forward(m, forward)


@fault("resnet", at(f"{RESNET}.layer.1.normalization"), "statistics-reset", "statistics reset")
def statistics_not_loaded(m):
    m.encoder.stages[1].layers[1].layer[1].normalization.reset_running_stats()


@fault("resnet", at(f"{RESNET}.layer.1.normalization"), "not-finite", "NaN channel")
def channel_of_nan(m):
    m.encoder.stages[1].layers[1].layer[1].normalization.running_mean[3] = float("nan")


@fault("mamba", at("backbone.layers.1.mixer.out_proj"), "scaled", "weights scaled")
def weight_scaled(m):
    m.backbone.layers[1].mixer.out_proj.weight.data.mul_(math.sqrt(WIDTH))


@fault("mamba", either("backbone.layers.1.mixer", "backbone.layers.1.mixer.dt_proj"), "collapsed not-loaded",
       "weights collapsed", backward=True)  # fmt: skip
def time_steps_of_zeros(m):
    m.backbone.layers[1].mixer.dt_proj.weight.data.zero_()


@fault("mamba", at("backbone.layers.1.mixer"), "shifted", "weights shifted")
def decay_shifted(m):
    m.backbone.layers[1].mixer.A_log.data.add_(0.1)


# Inputs and embeddings


@fault("resnet", code_of("", "embedder"), "preprocessing", "preprocessing: affine")
def pixels_normalised_twice(m):
    change_argument(m, "pixel_values", lambda pixels: (pixels - 0.45) / 0.225)


@fault("vit", code_of("", "embeddings"), "preprocessing channel-order", "preprocessing: channel order")
def pixels_of_bgr(m):
    change_argument(m, "pixel_values", lambda pixels: pixels.flip(1))


@fault("whisper", code_of("", "encoder"), "preprocessing", "preprocessing: pre-emphasis")
def features_filtered(m):
    def emphasise(features):
        return torch.cat([features[..., :1], features[..., 1:] - 0.97 * features[..., :-1]], -1)

    change_argument(m, "input_features", emphasise)


@fault("gemma", at("model.embed_tokens"), "scaled", "embedding scale", backward=True)
def embeddings_not_scaled(m):
    m.model.embed_tokens.embed_scale.fill_(1.0)


# Structure


@fault("llama", code_of(LLAMA, f"{LLAMA}.post_attention_layernorm"), "residual", "residual missing", backward=True)
def residual_missing(m):
    def combine(layer, x, kwargs):
        x, _ = layer.self_attn(hidden_states=layer.input_layernorm(x), **kwargs)
        return x + layer.mlp(layer.post_attention_layernorm(x))

    rewrite_llama_layer(m.model.layers[1], combine)


@fault("resnet", code_of(RESNET, f"{RESNET}.activation"), "residual", "residual missing")
def shortcut_not_added(m):
    layer = m.encoder.stages[1].layers[1]
    replace_forward(layer, lambda self, x: self.activation(self.layer(x)))


@fault("gpt2", code_of(GPT2, f"{GPT2}.ln_2"), "residual", "residual from elsewhere")
def residual_after_the_norm(m):
    def forward(self, hidden_states, past_key_values=None, attention_mask=None, *args, **kwargs):
        normed = self.ln_1(hidden_states)
        attended, _ = self.attn(normed, past_key_values=past_key_values, attention_mask=attention_mask)
        hidden = attended + normed
        return hidden + self.mlp(self.ln_2(hidden))

    replace_forward(m.transformer.h[1], forward)


@fault("bert", code_of_port(BERT, f"{BERT}.output", f"{BERT}.output.LayerNorm"), "residual", "residual missing",
       is_ported=True)  # fmt: skip
def port_residual_missing(m):
    def forward(self, x, seen):
        q, k, v = (part.unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = (q / SIZE**0.5 @ k.mT).softmax(-1)
        x = self.one(x + self.o((weights @ v).transpose(1, 2).flatten(2)))
        return self.two(self.narrow(F.gelu(self.wide(x))))

    replace_forward(m.stack[1], forward)


@fault("vit", code_of(VIT, f"{VIT}.attention"), "norm-placement", "norm placement")
def norms_after_the_sums(m):
    def forward(self, x, attention_mask=None, **kwargs):
        x = self.layernorm_before(x + self.dropout(self.attention(x, attention_mask, **kwargs)[0]))
        return self.layernorm_after(x + self.dropout(self.mlp(x)))

    replace_forward(m.layers[1], forward)


class Reordered(nn.ModuleList):
    """Layers that run in another order than they stand in."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            layers = list(self._modules.values())
            return [layers[0], layers[2], layers[1]]
        return super().__getitem__(index)


@fault("llama", at("model"), "block-order", "block order")
def layers_exchanged(m):
    m.model.layers = Reordered(list(m.model.layers))


class Shortened(nn.ModuleList):
    """Layers of which one is passed over."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            layers = list(self._modules.values())
            return [layers[0], layers[2]]
        return super().__getitem__(index)


@fault("llama", either("model", LLAMA, "model.layers.2"), "layer-skipped", "layer skipped")
def layer_passed_over(m):
    m.model.layers = Shortened(list(m.model.layers))


@fault("gpt2", either("transformer", "transformer.ln_f"), "layer-skipped norm-kind another-class",
       "final norm missing")  # fmt: skip
def final_norm_missing(m):
    m.transformer.ln_f = nn.Identity()


@fault("bert", code_of_port("", "embeddings", "embeddings.token_type_embeddings", "embeddings.LayerNorm"),
       "layer-skipped", "layer skipped", is_ported=True)  # fmt: skip
def port_token_types_missing(m):
    def embed(self, input_ids):
        return self.norm(self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])))

    m.embed = types.MethodType(embed, m)


@fault("tagger", code_of("", "head"), "concatenation", "concatenation order", is_reversed=True)
def directions_joined_in_another_order(m):
    def forward(self, sentence):
        hidden, _ = self.lstm(self.embedding(sentence))
        forth, back = hidden.chunk(2, -1)
        return self.head(torch.cat([back, forth], -1))

    replace_forward(m, forward)


@fault("convnet", code_of("", "join"), "concatenation", "concatenation order", backward=True)
def skip_joined_in_another_order(m):
    def forward(self, x):
        x = self.unit(self.stem(x))
        high = self.up(self.mid(self.pool(F.relu(self.down(x)))))
        x = self.shrink(self.peak(F.relu(self.join(torch.cat([high, x], 1)))))
        return self.head(x.flatten(1))

    replace_forward(m, forward)


@fault("mamba", code_of("backbone.layers.1.mixer", "backbone.layers.1.mixer.x_proj"),
       "concatenation roles-swapped halves-swapped", "gate and stream swapped")  # fmt: skip
def gate_and_stream_swapped(m):
    rewrite_mamba_mixer(m.backbone.layers[1].mixer, read=lambda joined: joined.chunk(2, -1)[::-1])


@fault("mamba", code_of("backbone.layers.1.mixer", "backbone.layers.1.mixer.out_proj"), "activation own-code",
       "activation of time steps", backward=True)  # fmt: skip
def time_steps_by_exp(m):
    rewrite_mamba_mixer(m.backbone.layers[1].mixer, softplus=False)


# Modes, precision, randomness


@fault("bert", at(f"{BERT}.output.dropout"), "train-mode", "dropout left on")
def dropout_left_on(m):
    m.encoder.layer[1].output.dropout.train()


@fault("resnet", at(f"{RESNET}.layer.0.normalization"), "train-mode batch-norm-mode", "batch norm in train mode")
def batch_norm_in_train_mode(m):
    m.encoder.stages[1].layers[1].layer[0].normalization.train()


@fault("whisper", either("encoder.layers.1", "encoder.layers.1.fc2"), "dropout unstable train-mode",
       "functional dropout")  # fmt: skip
def functional_dropout(m):
    def forward(self, x, attention_mask=None, **kwargs):
        x = x + self.self_attn(self.self_attn_layer_norm(x), attention_mask=attention_mask)[0]
        hidden = self.activation_fn(self.fc1(self.final_layer_norm(x)))
        return x + self.fc2(F.dropout(hidden, 0.1))  # training is True by default

    replace_forward(m.encoder.layers[1], forward)


@fault("llama", at(f"{LLAMA}.mlp.up_proj"), "low-precision cast", "lower precision", backward=True)
def linear_in_bfloat16(m):
    layer = m.model.layers[1].mlp.up_proj
    layer.forward = lambda x: F.linear(x.bfloat16(), layer.weight.bfloat16()).float()


@fault("llama", code_of(f"{LLAMA}.self_attn", f"{LLAMA}.self_attn.o_proj"), "low-precision", "lower precision")
def softmax_in_bfloat16(m):
    rewrite_llama_attention(
        m.model.layers[1].self_attn, softmax=lambda scores: scores.bfloat16().softmax(-1).to(scores.dtype)
    )


def large_bias(m):
    m.transformer.h[1].mlp.c_fc.bias.data[3] = 7e4
    m.transformer.h[1].mlp.c_proj.weight.data[3] *= 1e-5  # else nothing else is left of the stream


@fault("gpt2", at(f"{GPT2}.mlp.c_fc"), "overflow not-finite", "overflow", prepare=large_bias)
def overflow_in_float16(m):
    change_output(m.transformer.h[1].mlp.c_fc, lambda x: x.half().float())


@fault("llama", at("lm_head"), "shifted", "constant shift")
def logits_shifted(m):
    change_output(m.lm_head, lambda logits: logits + 0.1)


@fault("mamba", at("lm_head"), "shifted", "constant shift")
def logits_normalised(m):
    change_output(m.lm_head, lambda logits: logits.log_softmax(-1))


@fault("llama", at("lm_head"), "scaled", "output scaled", backward=True)
def logits_scaled(m):
    change_output(m.lm_head, lambda logits: logits / math.sqrt(WIDTH))


def activate_first(m):
    replace_forward(m.unit, lambda self, x: x + self.conv(self.norm(F.relu(x))))


@fault("convnet", at("unit"), "in-place", "in-place", prepare=activate_first, shows_at="stem")
def activation_overwrites_its_input(m):
    def forward(self, x):
        y = self.conv(self.norm(F.relu_(x)))
        return x + y  # no longer what was given

    replace_forward(m.unit, forward)


# Images


@fault("convnet", at("mid"), "padding", "padding mode")
def padding_reflected(m):
    m.mid.padding_mode = "reflect"
    m.mid._reversed_padding_repeated_twice = [1, 1, 1, 1]


@fault("convnet", at("down"), "padding stride", "padding on one side")
def padding_on_one_side(m):
    down = m.down
    down.forward = lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), down.weight, down.bias, 2)


@fault("resnet", at("encoder.stages.1.layers.0.shortcut.convolution"), "stride", "stride starts elsewhere")
def stride_starts_elsewhere(m):
    convolution = m.encoder.stages[1].layers[0].shortcut.convolution
    convolution.forward = lambda x: F.conv2d(x[..., 1::2, 1::2], convolution.weight)


@fault("convnet", at("mid"), "dilation", "dilation", backward=True)
def dilation_of_two(m):
    m.mid.dilation, m.mid.padding = (2, 2), (2, 2)


@fault("convnet", at("pool"), "pooling", "maximum for mean")
def maximum_for_mean(m):
    m.pool = nn.MaxPool2d(3, stride=1, padding=1)


@fault("convnet", at("pool"), "pooling", "padding counted")
def padding_not_counted(m):
    m.pool.count_include_pad = False


@fault("convnet", at("peak"), "pooling", "ceil mode")
def pooling_with_ceil_mode(m):
    m.peak.ceil_mode = True


@fault("convnet", at("up"), "interpolation", "align corners")
def corners_aligned(m):
    m.up.forward = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


@fault("convnet", at("up"), "interpolation", "interpolation mode", is_reversed=True)
def nearest_for_bilinear(m):
    m.up.forward = lambda x: F.interpolate(x, scale_factor=2, mode="nearest")


# Gradients alone


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 1.1 * grad


@fault("llama", at(f"{LLAMA}.mlp.act_fn"), "gradients-scaled", "gradient scaled", backward=True, gradients_only=True)
def activation_with_a_scaled_gradient(m):
    act = m.model.layers[1].mlp.act_fn
    plain = act.forward
    act.forward = lambda x: plain(_Scaled.apply(x))


@fault("bert", at(f"{BERT}.attention.self.value"), "gradients-missing", "gradient cut off",
       backward=True, gradients_only=True)  # fmt: skip
def values_detached(m):
    change_output(m.encoder.layer[1].attention.self.value, torch.Tensor.detach)
