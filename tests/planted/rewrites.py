"""Two forms of one network: what they differ by is rounding, so nothing may be called a fault."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from faults import replace_forward, rewrite_llama_attention, rewrite_mamba_mixer, rotate_neighbours
from networks import (
    HEADS,
    WIDTH,
    fresh,
    image,
    padded_both,
    padded_right,
    picture,
    speech,
    token_ids,
    words,
)  # fmt: skip
from ports import PORTS, merge_heads, split_heads
from torch import nn
from torch.utils.checkpoint import checkpoint
from truth import REWRITES, Rewrite, rewrite

__all__ = ["REWRITES", "Rewrite"]

Sides = tuple[nn.Module, nn.Module]
SIZE = WIDTH // HEADS  # of a head


def two(name: str, change: Callable[[Any], None], *, cache: bool = True) -> Sides:
    """Return a network and a copy with something rewritten."""
    reference, candidate = fresh(name), fresh(name)
    if not cache:
        reference.config.use_cache = candidate.config.use_cache = False
    change(candidate)
    return reference, candidate.eval()


def ported(name: str) -> Sides:
    """Return a network and its hand-written port."""
    reference = fresh(name)
    reference.config.use_cache = False  # ports return no cache
    return reference, PORTS[name](reference)


def in_sdpa(name: str) -> Sides:
    """Return a network and a copy with another kernel for attention."""
    return two(name, lambda m: m.set_attn_implementation("sdpa"))


# Kernels


@rewrite(token_ids)
def llama_in_sdpa():
    return in_sdpa("llama")


@rewrite(padded_right)
def bert_in_sdpa():
    return in_sdpa("bert")


@rewrite(speech)
def whisper_in_sdpa():
    return in_sdpa("whisper")


@rewrite(image)
def vit_in_sdpa():
    return in_sdpa("vit")


@rewrite(image)
def channels_last():
    return two("resnet", lambda m: m.to(memory_format=torch.channels_last))


@rewrite(token_ids)
def attention_by_hand():
    def change(m):
        for layer in m.model.layers:
            rewrite_llama_attention(layer.self_attn)

    return two("llama", change)


@rewrite(token_ids)
def scan_by_hand():
    def change(m):
        for layer in m.backbone.layers:
            rewrite_mamba_mixer(layer.mixer)

    return two("mamba", change)


@rewrite(image)
def einsum():
    def forward(self, x, attention_mask=None, **kwargs):
        q, k, v = (layer(x).unflatten(-1, (HEADS, SIZE)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * self.scaling).softmax(-1)
        return self.o_proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)), weights

    def change(m):
        for layer in m.layers:
            replace_forward(layer.attention, forward)

    return two("vit", change)


@rewrite(image)
def queries_scaled_before_the_product():
    def forward(self, x, attention_mask=None, **kwargs):
        q, k, v = (split_heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        weights = ((q * self.scaling) @ k.mT).softmax(-1)
        return self.o_proj(merge_heads(weights @ v)), weights

    def change(m):
        for layer in m.layers:
            replace_forward(layer.attention, forward)

    return two("vit", change)


@rewrite(padded_both)
def boolean_mask():
    def forward(self, hidden_states, attention_mask=None, **kwargs):
        q, k, v = (split_heads(layer(hidden_states)) for layer in (self.query, self.key, self.value))
        scores = (q @ k.mT * self.scaling).masked_fill(attention_mask < 0, float("-inf"))
        weights = scores.softmax(-1)
        return merge_heads(weights @ v), weights

    def change(m):
        for layer in m.encoder.layer:
            replace_forward(layer.attention.self, forward)

    return two("bert", change)


@rewrite(padded_both)
def mask_of_another_size():
    def change(m):
        for layer in m.encoder.layer:
            attention = layer.attention.self
            plain = attention.forward

            def forward(hidden_states, attention_mask=None, plain=plain, **kwargs):
                return plain(hidden_states, attention_mask.clamp(min=-1e4), **kwargs)

            attention.forward = forward

    return two("bert", change)


@rewrite(token_ids)
def rope_in_complex_numbers():
    def rotate(x, cos, sin):
        first, second = x.chunk(2, -1)
        angles = torch.complex(*(part.chunk(2, -1)[0].contiguous() for part in (cos, sin)))
        turned = torch.complex(first.contiguous(), second.contiguous()) * angles
        return torch.cat([turned.real, turned.imag], -1)

    def change(m):
        for layer in m.model.layers:
            rewrite_llama_attention(layer.self_attn, rotate=rotate)

    return two("llama", change)


# Layers fused, split, or stored otherwise


@rewrite(token_ids)
def port_of_llama():
    return ported("llama")


@rewrite(token_ids)
def port_of_gpt2():
    return ported("gpt2")


@rewrite(padded_both)
def port_of_bert():
    return ported("bert")


class FusedFeedForward(nn.Module):
    """Gate and up in one layer."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * mlp.gate_proj.out_features, bias=False)
        self.gate_up.weight.data.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        self.down_proj = mlp.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


@rewrite(token_ids)
def fused_gate_and_up():
    def change(m):
        for layer in m.model.layers:
            layer.mlp = FusedFeedForward(layer.mlp)

    return two("llama", change)


class FusedAttention(nn.Module):
    """Queries, keys and values of a ViT in one layer."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv, self.o_proj = nn.Linear(WIDTH, 3 * WIDTH), attention.o_proj
        self.qkv.weight.data.copy_(torch.cat([layer.weight for layer in layers]))
        self.qkv.bias.data.copy_(torch.cat([layer.bias for layer in layers]))

    def forward(self, x: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        q, k, v = (split_heads(part) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT * SIZE**-0.5).softmax(-1)
        return self.o_proj(merge_heads(weights @ v)), weights


@rewrite(image)
def fused_qkv():
    def change(m):
        for layer in m.layers:
            layer.attention = FusedAttention(layer.attention)

    return two("vit", change)


@rewrite(token_ids)
def conv1d_stored_as_linear():
    def turn(layer):
        linear = nn.Linear(*layer.weight.shape)
        linear.weight.data.copy_(layer.weight.t())
        linear.bias.data.copy_(layer.bias)
        return linear

    def change(m):
        for block in m.transformer.h:
            block.attn.c_attn, block.attn.c_proj = turn(block.attn.c_attn), turn(block.attn.c_proj)
            block.mlp.c_fc, block.mlp.c_proj = turn(block.mlp.c_fc), turn(block.mlp.c_proj)

    return two("gpt2", change)


@rewrite(token_ids)
def rope_layout_permuted_with_its_weights():
    order = torch.arange(SIZE).view(2, SIZE // 2).t().flatten()  # halves become neighbours

    def change(m):
        for layer in m.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.data.copy_(projection.weight.view(-1, SIZE, WIDTH)[:, order].reshape(-1, WIDTH))
            rewrite_llama_attention(layer.self_attn, rotate=rotate_neighbours)

    return two("llama", change, cache=False)


@rewrite(token_ids, backward=False)
def key_value_heads_expanded():
    def change(m):
        for layer in m.model.layers:
            attention = layer.self_attn
            for name in ("k_proj", "v_proj"):
                expanded = nn.Linear(WIDTH, WIDTH, bias=False)
                weight = getattr(attention, name).weight.view(2, SIZE, WIDTH)
                expanded.weight.data.copy_(weight.repeat_interleave(2, 0).reshape(WIDTH, WIDTH))
                setattr(attention, name, expanded)
            attention.num_key_value_groups = 1

    return two("llama", change, cache=False)


@rewrite(image, backward=False)
def batch_norm_folded():
    def change(m):
        for module in list(m.modules()):
            if hasattr(module, "normalization"):
                module.convolution = torch.nn.utils.fuse_conv_bn_eval(module.convolution, module.normalization)
                module.normalization = nn.Identity()

    return two("resnet", change)


@rewrite(picture, backward=False)
def weight_norm_removed():
    reference, candidate = fresh("convnet"), fresh("convnet")
    nn.utils.parametrizations.weight_norm(reference.mid)
    nn.utils.parametrizations.weight_norm(reference.join)
    return reference, candidate


@rewrite(token_ids, backward=False)
def head_holds_a_copy():
    def change(m):
        m.lm_head.weight = nn.Parameter(m.lm_head.weight.detach().clone())

    return two("gpt2", change)


@rewrite(token_ids)
def tied_weights_under_two_names():
    def change(m):
        m.transformer.shared = m.transformer.wte

    return two("gpt2", change)


# Modules written as functions, by hand, or wrapped


@rewrite(token_ids)
def functional_activation():
    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def change(m):
        for layer in m.model.layers:
            replace_forward(layer.mlp, forward)

    return two("llama", change)


@rewrite(token_ids)
def norm_in_float64():
    def forward(self, x):
        wide = x.double()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.double() * wide).to(x.dtype)

    def change(m):
        for module in m.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                replace_forward(module, forward)

    return two("llama", change)


@rewrite(token_ids)
def layer_norm_by_hand():
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias

    def change(m):
        for module in m.modules():
            if isinstance(module, nn.LayerNorm):
                replace_forward(module, forward)

    return two("gpt2", change)


@rewrite(image)
def sums_in_another_order():
    def forward(self, x):
        half = self.in_features // 2
        return F.linear(x[..., half:], self.weight[:, half:], self.bias) + F.linear(
            x[..., :half], self.weight[:, :half]
        )

    def change(m):
        for module in m.modules():
            if isinstance(module, nn.Linear):
                replace_forward(module, forward)

    return two("vit", change)


@rewrite(words)
def embedding_as_a_product():
    def forward(self, ids):
        return F.one_hot(ids, self.num_embeddings).to(self.weight.dtype) @ self.weight

    return two("tagger", lambda m: replace_forward(m.embedding, forward))


@rewrite(words)
def recurrence_by_hand():
    def run(self, x, suffix):
        weights = [getattr(self, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        h = c = x.new_zeros(len(x), self.hidden_size)
        steps = []
        for position in range(x.shape[1]):
            i, f, g, o = (x[:, position] @ weights[0].t() + weights[2] + h @ weights[1].t() + weights[3]).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            steps.append(h)
        return torch.stack(steps, 1), h, c

    def forward(self, x):
        forth, h, c = run(self, x, "")
        back, h_back, c_back = run(self, x.flip(1), "_reverse")
        states = torch.stack([h, h_back]), torch.stack([c, c_back])
        return torch.cat([forth, back.flip(1)], -1), states

    return two("tagger", lambda m: replace_forward(m.lstm, forward))


@rewrite(picture)
def convolution_as_a_product():
    def forward(self, x):
        columns = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)
        made = self.weight.flatten(1) @ columns + self.bias[:, None]
        return made.unflatten(-1, (x.shape[2] // self.stride[0], x.shape[3] // self.stride[1]))

    def change(m):
        for module in m.modules():
            if isinstance(module, nn.Conv2d):
                replace_forward(module, forward)

    return two("convnet", change)


class Normed(nn.Module):
    """Convolutions with a bias in front of a batch norm in train mode: the gradient of that bias is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.conv(x))))


@rewrite(picture)
def bias_in_front_of_a_batch_norm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = Normed().train()
    candidate = copy.deepcopy(reference)

    def forward(self, x):
        columns = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)
        return (self.weight.flatten(1) @ columns + self.bias[:, None]).unflatten(-1, x.shape[2:])

    replace_forward(candidate.conv, forward)
    return reference, candidate


@rewrite(image)
def gradient_checkpointing():
    def change(m):
        for layer in m.layers:
            plain = layer.forward
            layer.forward = lambda x, mask=None, plain=plain, **kwargs: checkpoint(
                plain, x, mask, use_reentrant=False, **kwargs
            )

    return two("vit", change)


@rewrite(image)
def activations_in_place():
    def change(m):
        for module in m.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = True

    return two("resnet", change)


@rewrite(token_ids)
def residual_added_in_place():
    def forward(self, hidden_states, **kwargs):
        kwargs.pop("use_cache", None)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        attended += hidden_states
        made = self.mlp(self.post_attention_layernorm(attended))
        made += attended
        return made

    def change(m):
        for layer in m.model.layers:
            replace_forward(layer, forward)

    return two("llama", change)


class Wrapper(nn.Module):
    """As DataParallel and its kind."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@rewrite(token_ids)
def wrapped_whole():
    return fresh("llama"), Wrapper(fresh("llama")).eval()


@rewrite(token_ids)
def layers_wrapped():
    def change(m):
        for layer in m.encoder.layer:
            layer.intermediate = Wrapper(layer.intermediate)

    return two("bert", change)


class Plain(nn.Module):
    """Layers that go by names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act, self.second = nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.norm(self.first(x))))


def rows() -> torch.Tensor:
    """Return two samples of five rows."""
    return torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))


def make_plain() -> Plain:
    """Return the plain net, the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Plain().eval()


@rewrite(rows)
def layers_as_sequential():
    model, twin = make_plain(), make_plain()
    return model, nn.Sequential(twin.first, twin.norm, twin.act, twin.second)


@rewrite(rows)
def identities_and_dropout():
    model, twin = make_plain(), make_plain()
    twin.first = nn.Sequential(nn.Identity(), twin.first, nn.Dropout(0.1))
    return model, twin.eval()


class LogSoftmax(nn.Module):
    """Log-probabilities, by the function or by its definition."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.body, self.by_hand = make_plain(), by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.body(x)
        if self.by_hand:
            shifted = logits - logits.amax(-1, keepdim=True)
            return shifted - shifted.exp().sum(-1, keepdim=True).log()
        return logits.log_softmax(-1)


@rewrite(rows)
def log_softmax_by_hand():
    return LogSoftmax(False).eval(), LogSoftmax(True).eval()


@rewrite(token_ids)
def contiguous_copies():
    def change(m):
        for module in m.modules():
            if isinstance(module, nn.Linear):
                replace_forward(
                    module, lambda self, x: F.linear(x.clone().contiguous(), self.weight, self.bias).contiguous()
                )

    return two("bert", change)


@rewrite(token_ids)
def feed_forward_in_chunks():
    def change(m):
        for layer in m.encoder.layer:
            layer.chunk_size_feed_forward = 4

    return two("bert", change)


@rewrite(picture)
def functional_pooling():
    def forward(self, x):
        x = self.unit(self.stem(x))
        low = F.avg_pool2d(F.relu(self.down(x)), 3, 1, 1)
        high = F.interpolate(self.mid(low), scale_factor=2, mode="bilinear")
        x = F.max_pool2d(F.relu(self.join(torch.cat([x, high], 1))), 3, 2)
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))

    def change(m):
        m.forward = types.MethodType(forward, m)
        del m.pool, m.up, m.peak, m.shrink

    return two("convnet", change)
