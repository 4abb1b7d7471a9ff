"""Pairs of checkpoints whose relation is known, made from small models of real architectures; and pairs without any."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Weights = dict[str, NDArray]
Sides = tuple[Weights, Weights]


@dataclass(frozen=True)
class KnownPair:
    """Hold two checkpoints and what is to be said of them."""

    make: Callable[[], Sides]
    causes: frozenset[str]  # every one of them must be found, and no other that is not harmless
    accept: str = ""  # with which they are the same; "" where nothing makes them the same
    related: int | None = None  # pairs that have a relation


KNOWN: dict[str, KnownPair] = {}


def known(*causes: str, accept: str = "", related: int | None = None) -> Callable[[Callable[[], Sides]], None]:
    """Keep a pair under the name of the function that makes it."""

    def keep(make: Callable[[], Sides]) -> None:
        KNOWN[make.__name__] = KnownPair(make, frozenset(causes), accept, related)

    return keep


# -- models -----------------------------------------------------------------------------------------------------------


def weights_of(model: torch.nn.Module) -> Weights:
    """Return the state of a model with every constant tensor made random, as training would leave it."""
    generator = np.random.default_rng(7)
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        array = tensor.detach().clone().numpy()
        if array.dtype.kind == "f" and array.size > 1 and array.min() == array.max():
            array = (array + generator.normal(0, 0.1, array.shape)).astype(array.dtype)
            array = np.abs(array) if name.endswith("running_var") else array
        weights[name] = array
    return weights


def llama(layers: int = 3) -> Weights:
    """Return a Llama with 4 heads of 8, 2 of them for keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    return weights_of(LlamaForCausalLM(config))


def gpt2() -> Weights:
    """Return a GPT-2, its output layer tied to its embedding and stored once."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    weights = weights_of(GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=24)))
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    return weights


def bert() -> Weights:
    """Return a BERT with 4 heads of 8."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=24,
    )  # fmt: skip
    return weights_of(BertModel(config))


def mamba() -> Weights:
    """Return a Mamba."""
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    return weights_of(MambaModel(MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=3, state_size=8)))


def resnet() -> Weights:
    """Return a ResNet."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    return weights_of(ResNetModel(config))


def lstm() -> Weights:
    """Return an LSTM of two layers."""
    torch.manual_seed(0)
    return weights_of(torch.nn.LSTM(12, 16, num_layers=2))


# -- names ------------------------------------------------------------------------------------------------------------


def rename(weights: Weights, *rules: tuple[str, str]) -> Weights:
    """Return the weights under other names."""
    renamed: Weights = {}
    for name, array in weights.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = array
    return renamed


def change(weights: Weights, pattern: str, operation: Callable[[NDArray], NDArray]) -> Weights:
    """Return the weights with an operation applied to those whose names match."""
    changed = {}
    count = 0
    for name, array in weights.items():
        matches = re.search(pattern, name) is not None
        count += matches
        changed[name] = np.ascontiguousarray(operation(array)) if matches else array
    assert count, pattern
    return changed


TO_NANOGPT = ((r"^transformer\.h\.", "blocks."), (r"\.c_attn\.", ".qkv."), (r"\.ln_", ".norm"), ("wte", "tokens"))
TO_META = (
    (r"^model\.", ""),
    (r"self_attn\.(.)_proj", r"attention.w\1"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("embed_tokens", "tok_embeddings"),
    ("lm_head", "output"),
)


@known("renamed")
def renamed_llama() -> Sides:
    return llama(), rename(llama(), *TO_META)


@known("renamed")
def renamed_mamba() -> Sides:
    return mamba(), rename(mamba(), (r"layers\.", "blocks."), ("mixer", "ssm"), ("in_proj", "expand"), ("norm", "n"))


@known("renamed")
def renamed_with_one_tensor_changed() -> Sides:
    weights = rename(llama(), *TO_META)
    generator = np.random.default_rng(3)
    name = "layers.1.feed_forward.w2.weight"
    weights[name] = (weights[name] + generator.normal(0, 0.02, weights[name].shape)).astype(np.float32)
    return llama(), weights


@known("layer-order")
def layers_in_string_order() -> Sides:
    weights = llama(12)
    order = sorted(range(12), key=str)
    place = {str(layer): str(index) for index, layer in enumerate(order)}
    moved = {}
    for name, array in weights.items():
        moved[re.sub(r"layers\.(\d+)\.", lambda match: f"layers.{place[match[1]]}.", name)] = array
    return weights, moved


@known("renamed", "layer-order")
def layers_in_string_order_and_renamed() -> Sides:
    weights, moved = KNOWN["layers_in_string_order"].make()
    return weights, rename(moved, *TO_META)


@known("layers-shifted")
def layers_shifted() -> Sides:
    weights = llama(5)
    shifted = {}
    for name, array in weights.items():
        match = re.search(r"layers\.(\d+)\.", name)
        if match is None or match[1] != "0":
            shifted[re.sub(r"layers\.(\d+)\.", lambda number: f"layers.{int(number[1]) - 1}.", name)] = array
    return weights, shifted


@known("weights-swapped")
def tensors_swapped_between_names() -> Sides:
    weights = bert()
    swapped = dict(weights)
    for layer in range(3):
        query, key = (f"encoder.layer.{layer}.attention.self.{part}.weight" for part in ("query", "key"))
        swapped[query], swapped[key] = weights[key], weights[query]
    return weights, swapped


# -- layout -----------------------------------------------------------------------------------------------------------


@known("transposed", accept="layout", related=12)
def conv1d_to_linear() -> Sides:
    return gpt2(), change(gpt2(), r"(c_attn|c_proj|c_fc)\.weight", np.transpose)


@known("renamed", "transposed", accept="layout", related=12)
def gpt2_to_nanogpt() -> Sides:
    return gpt2(), rename(change(gpt2(), r"(c_attn|c_proj|c_fc)\.weight", np.transpose), *TO_NANOGPT)


@known("axes-permuted", accept="layout")
def oihw_to_hwio() -> Sides:
    return resnet(), change(resnet(), r"convolution\.weight", lambda kernel: kernel.transpose(2, 3, 1, 0))


def to_interleaved(weight: NDArray, head_dim: int = 8) -> NDArray:
    """Return rows of heads from halves to interleaved."""
    return weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@known("rope-layout", accept="layout", related=6)
def rope_interleaved() -> Sides:
    return llama(), change(llama(), r"(q|k)_proj\.weight", to_interleaved)


@known("renamed", "rope-layout", accept="layout", related=6)
def rope_interleaved_and_renamed() -> Sides:
    return llama(), rename(change(llama(), r"(q|k)_proj\.weight", to_interleaved), *TO_META)


@known("head-order", accept="layout", related=18)
def heads_in_another_order() -> Sides:
    order = [2, 0, 3, 1]

    def permute(array: NDArray) -> NDArray:
        return array.reshape(4, 8, *array.shape[1:])[order].reshape(array.shape)

    return bert(), change(bert(), r"self\.(query|key|value)\.(weight|bias)", permute)


@known("channel-order", accept="layout", related=1)
def bgr() -> Sides:
    return resnet(), change(resnet(), r"^embedder\.embedder\.convolution\.weight", lambda kernel: kernel[:, ::-1])


@known("flatten-order", accept="layout", related=1)
def flatten_channels_last() -> Sides:
    generator = np.random.default_rng(0)
    weights = {
        "conv.weight": generator.normal(size=(6, 3, 3, 3)).astype(np.float32),
        "fc.weight": generator.normal(size=(10, 6 * 5 * 4)).astype(np.float32),
        "fc.bias": generator.normal(size=10).astype(np.float32),
    }

    def to_channels_last(matrix: NDArray) -> NDArray:
        return matrix.reshape(10, 6, 5, 4).transpose(0, 2, 3, 1).reshape(10, -1)

    return weights, change(weights, r"fc\.weight", to_channels_last)


@known("gate-order", accept="layout", related=8)
def lstm_gates() -> Sides:
    def to_ifog(array: NDArray) -> NDArray:
        return array.reshape(4, 16, *array.shape[1:])[[0, 1, 3, 2]].reshape(array.shape)

    return lstm(), change(lstm(), "(weight|bias)_", to_ifog)


@known("folded", accept="fold", related=2)
def lstm_biases_added() -> Sides:
    weights = lstm()
    added = {name: array for name, array in weights.items() if "bias" not in name}
    for layer in range(2):
        added[f"bias_l{layer}"] = weights[f"bias_ih_l{layer}"] + weights[f"bias_hh_l{layer}"]
    return weights, added


def fuse_qkv(weights: Weights, join: Callable[[NDArray, NDArray, NDArray], NDArray]) -> Weights:
    fused = {}
    for name, array in weights.items():
        if "q_proj" in name:
            key, value = (weights[name.replace("q_proj", part)] for part in ("k_proj", "v_proj"))
            fused[name.replace("q_proj", "qkv_proj")] = np.ascontiguousarray(join(array, key, value))
        elif "k_proj" not in name and "v_proj" not in name:
            fused[name] = array
    return fused


@known("fused", accept="layout", related=3)
def qkv_concatenated() -> Sides:
    return llama(), fuse_qkv(llama(), lambda *parts: np.concatenate(parts))


@known("fused", accept="layout", related=3)
def qkv_per_group() -> Sides:
    def join(query: NDArray, key: NDArray, value: NDArray) -> NDArray:
        groups = [query.reshape(2, 2, 8, 32), key.reshape(2, 1, 8, 32), value.reshape(2, 1, 8, 32)]
        return np.concatenate(groups, axis=1).reshape(-1, 32)

    return llama(), fuse_qkv(llama(), join)


@known("fused", accept="layout", related=6)
def qkv_per_head() -> Sides:
    weights = rename(bert(), (r"self\.(query|key|value)", r"self.\1_proj"))
    weights = rename(weights, ("query_proj", "q_proj"), ("key_proj", "k_proj"), ("value_proj", "v_proj"))

    def join(*parts: NDArray) -> NDArray:
        heads = [part.reshape(4, 1, 8, *part.shape[1:]) for part in parts]
        return np.concatenate(heads, axis=1).reshape(-1, *parts[0].shape[1:])

    return weights, fuse_qkv(weights, join)


@known("fused", accept="layout", related=3)
def qkv_split() -> Sides:
    return fuse_qkv(llama(), lambda *parts: np.concatenate(parts)), llama()


@known("fused", accept="layout", related=3)
def gate_and_up_fused() -> Sides:
    weights = llama()
    fused = {}
    for name, array in weights.items():
        if "up_proj" in name:
            fused[name.replace("up_proj", "gate_up_proj")] = np.concatenate(
                [weights[name.replace("up_proj", "gate_proj")], array]
            )
        elif "gate_proj" not in name:
            fused[name] = array
    return weights, fused


@known("halves-swapped", accept="layout", related=3)
def gate_and_up_swapped() -> Sides:
    reference = gate_and_up_fused_weights()
    return reference, change(reference, "gate_up_proj", lambda array: np.roll(array, len(array) // 2, axis=0))


def gate_and_up_fused_weights() -> Weights:
    weights = llama()
    fused = {}
    for name, array in weights.items():
        fused[name.replace("up_proj", "gate_up_proj")] = (
            np.concatenate([weights[name.replace("up_proj", "gate_proj")], array]) if "up_proj" in name else array
        )
    return {name: array for name, array in fused.items() if ".gate_proj" not in name}


@known("fused", accept="layout", related=2)
def experts_stacked() -> Sides:
    generator = np.random.default_rng(0)
    weights: Weights = {"embed.weight": generator.normal(size=(20, 8)).astype(np.float32)}
    stacked: Weights = dict(weights)
    for layer in range(2):
        experts = [generator.normal(size=(12, 8)).astype(np.float32) for _ in range(4)]
        for number, expert in enumerate(experts):
            weights[f"layers.{layer}.experts.{number}.w1.weight"] = expert
        stacked[f"layers.{layer}.experts.w1"] = np.stack(experts)
    return weights, stacked


# -- values -----------------------------------------------------------------------------------------------------------


def round_to(dtype: torch.dtype, stored: bool = False) -> Callable[[NDArray], NDArray]:
    """Return a function that rounds an array of floats, and gives it back as float32."""

    def rounded(array: NDArray) -> NDArray:
        if array.dtype.kind != "f":
            return array
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype).float().numpy()

    return rounded


@known("cast", accept="cast")
def cast_to_bfloat16_and_stored_as_float32() -> Sides:
    return llama(), change(llama(), "", round_to(torch.bfloat16))


@known("cast", accept="cast")
def cast_to_float16() -> Sides:
    return bert(), change(bert(), "", lambda array: array.astype(np.float16) if array.dtype.kind == "f" else array)


@known("cast", accept="cast")
def cast_to_float8_and_stored_as_float32() -> Sides:
    return mamba(), change(mamba(), "", round_to(torch.float8_e4m3fn))


@known("renamed", "cast", accept="cast")
def cast_and_renamed() -> Sides:
    return llama(), rename(change(llama(), "", round_to(torch.bfloat16)), *TO_META)


@known("renamed", "cast", "rope-layout", accept="layout,cast", related=30)
def cast_and_renamed_with_rope_interleaved() -> Sides:
    weights = change(llama(), r"(q|k)_proj\.weight", to_interleaved)
    return llama(), rename(change(weights, "", round_to(torch.bfloat16)), *TO_META)


@known("cast", "fused", accept="layout,cast", related=24)
def cast_and_fused() -> Sides:
    weights = fuse_qkv(llama(), lambda *parts: np.concatenate(parts))
    return llama(), change(weights, "", round_to(torch.bfloat16))


@known("cast", "transposed", accept="layout,cast", related=41)
def cast_and_transposed() -> Sides:
    weights = change(gpt2(), r"(c_attn|c_proj|c_fc)\.weight", np.transpose)
    return change(weights, "", round_to(torch.bfloat16)), gpt2()


@known("cast", "vocab", accept="vocab,cast", related=30)
def cast_and_vocabulary_padded() -> Sides:
    weights, padded = KNOWN["vocabulary_padded"].make()
    return weights, change(padded, "", round_to(torch.bfloat16))


@known("scaled", accept="scale", related=3)
def query_scaled() -> Sides:
    return llama(), change(llama(), "q_proj", lambda array: array / np.float32(np.sqrt(8.0)))


@known("scaled", accept="scale", related=3)
def scaled_per_channel() -> Sides:
    factors = np.random.default_rng(0).uniform(0.5, 2.0, 32).astype(np.float32)
    return llama(), change(llama(), "o_proj", lambda array: array * factors)


@known("shifted", related=7)
def norms_around_zero() -> Sides:
    return llama(), change(llama(), "norm", lambda array: array - np.float32(1))


@known("vocab", accept="vocab", related=2)
def vocabulary_padded() -> Sides:
    def pad(array: NDArray) -> NDArray:
        return np.concatenate([array, np.zeros((32, array.shape[1]), array.dtype)])

    return llama(), change(llama(), "embed_tokens|lm_head", pad)


@known("vocab", accept="vocab", related=2)
def vocabulary_cut() -> Sides:
    return llama(), change(llama(), "embed_tokens|lm_head", lambda array: array[:80])


@known()
def tied_on_one_side() -> Sides:
    weights = gpt2()
    return weights, {name: array for name, array in weights.items() if name != "lm_head.weight"}


def split_weight_norm(weight: NDArray) -> tuple[NDArray, NDArray]:
    linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(weight.shape[1], weight.shape[0]))
    with torch.no_grad():
        linear.weight = torch.from_numpy(weight.copy())
    state = linear.state_dict()
    return state["parametrizations.weight.original0"].numpy(), state["parametrizations.weight.original1"].numpy()


@known("weight-norm", accept="fold", related=3)
def weight_norm_parametrised() -> Sides:
    weights, normed = llama(), {}
    for name, array in weights.items():
        if "o_proj" in name:
            size, direction = split_weight_norm(array)
            stem = name.removesuffix("weight")
            normed[f"{stem}parametrizations.weight.original0"] = size
            normed[f"{stem}parametrizations.weight.original1"] = direction * np.float32(1.5)
        else:
            normed[name] = array
    return weights, normed


@known("weight-norm", accept="fold", related=3)
def weight_norm_old_names() -> Sides:
    reference, normed = weight_norm_sides()
    return reference, rename(
        normed,
        (r"parametrizations\.weight\.original0", "weight_g"),
        (r"parametrizations\.weight\.original1", "weight_v"),
    )


@known("weight-norm", accept="fold", related=3)
def weight_norm_of_a_trained_weight() -> Sides:
    """As torch makes it: the direction is the weight itself."""
    weights, normed = weight_norm_sides()
    for name in normed:
        if name.endswith("original1"):
            normed[name] = weights[name.replace("parametrizations.weight.original1", "weight")]
    return weights, normed


@known("renamed")
def weight_norm_in_both_forms() -> Sides:
    return KNOWN["weight_norm_parametrised"].make()[1], KNOWN["weight_norm_old_names"].make()[1]


def weight_norm_sides() -> Sides:
    return KNOWN["weight_norm_parametrised"].make()


@known("batch-norm-folded", accept="fold")
def batch_norm_folded() -> Sides:
    weights, folded = resnet(), {}
    for name, array in weights.items():
        if name.endswith("convolution.weight"):
            norm = name.replace("convolution.weight", "normalization.")
            scale = weights[norm + "weight"] / np.sqrt(weights[norm + "running_var"] + 1e-5)
            folded[name] = (array * scale[:, None, None, None]).astype(np.float32)
            shift = weights[norm + "bias"] - weights[norm + "running_mean"] * scale
            folded[name.replace("weight", "bias")] = shift.astype(np.float32)
        elif "normalization" not in name:
            folded[name] = array
    return weights, folded


@known("folded", accept="fold", related=15)
def norm_folded() -> Sides:
    """As rotations of Llama want it: every norm in the layers after it, and ones left."""
    weights = llama()
    folded = dict(weights)
    for layer in range(3):
        block = f"model.layers.{layer}."
        for norm, projections in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            gamma = weights[f"{block}{norm}.weight"]
            folded[f"{block}{norm}.weight"] = np.ones_like(gamma)
            for projection in projections:
                folded[f"{block}{projection}.weight"] = weights[f"{block}{projection}.weight"] * gamma
    return weights, folded


def add_lora(weights: Weights) -> tuple[Weights, Weights]:
    """Return the factors of a LoRA of rank 2 on all query weights, and the weights with it merged."""
    generator = np.random.default_rng(0)
    factors, merged = {}, dict(weights)
    for name, array in weights.items():
        if "q_proj" in name:
            stem = name.removesuffix("weight")
            down = generator.normal(0, 0.1, (2, array.shape[1])).astype(np.float32)
            up = generator.normal(0, 0.1, (array.shape[0], 2)).astype(np.float32)
            factors[f"{stem}lora_A.weight"], factors[f"{stem}lora_B.weight"] = down, up
            merged[name] = (array + 2.0 * (up @ down)).astype(np.float32)
    return factors, merged


@known("lora")
def lora_merged() -> Sides:
    return llama(), add_lora(llama())[1]


@known("lora", accept="fold", related=3)
def lora_beside() -> Sides:
    factors, merged = add_lora(llama())
    return merged, {**llama(), **factors}


def quantise(array: NDArray, bits: int, group: int) -> tuple[NDArray, NDArray]:
    """Return whole numbers and the scale of each group along the columns."""
    groups = array.reshape(array.shape[0], -1, group)
    scales = (np.abs(groups).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)).astype(np.float32)
    return np.round(groups / scales).astype(np.int8).reshape(array.shape), scales[..., 0]


def dequantise(numbers: NDArray, scales: NDArray) -> NDArray:
    group = numbers.shape[1] // scales.shape[1]
    return (numbers * np.repeat(scales, group, axis=1)).astype(np.float32)


@known("quantised")
def quantised_and_dequantised() -> Sides:
    return llama(), change(llama(), r"_proj\.weight", lambda array: dequantise(*quantise(array, 4, 16)))


@known("quantised", accept="quantised", related=21)
def quantised_and_packed() -> Sides:
    weights, packed = llama(), {}
    for name, array in weights.items():
        if "_proj.weight" in name:
            numbers, scales = quantise(array, 8, array.shape[1])
            packed[name], packed[name.replace("weight", "weight_scale")] = numbers, scales
        else:
            packed[name] = array
    return weights, packed


@known()
def derived_buffers_on_one_side() -> Sides:
    weights = bert()
    buffers = {
        "embeddings.position_ids": np.arange(24)[None],
        "rotary.inv_freq": (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32),
        "attention.bias": np.tril(np.ones((1, 1, 24, 24), np.uint8)),
    }
    return {name: array for name, array in weights.items() if name not in buffers}, {**weights, **buffers}


@known("rope-theta")
def another_theta() -> Sides:
    weights = llama()

    def buffer(theta: float) -> Weights:
        return {"model.rotary_emb.inv_freq": (1 / theta ** (np.arange(0, 8, 2) / 8)).astype(np.float32)}

    return {**weights, **buffer(1e4)}, {**weights, **buffer(5e5)}


# -- several at once --------------------------------------------------------------------------------------------------


@known("cast", accept="cast")
def cast_to_bfloat16_and_stored_as_float16() -> Sides:
    """Values that only float16 must round again are below its least normal number."""
    rounded = change(llama(), "", round_to(torch.bfloat16))
    return llama(), {name: array.astype(np.float16) for name, array in rounded.items()}


@known("renamed", "cast", accept="cast")
def tied_and_renamed_and_cast() -> Sides:
    weights = gpt2()
    rounded = rename(change(gpt2(), "", round_to(torch.bfloat16)), *TO_NANOGPT)
    del rounded["lm_head.weight"]
    return weights, rounded


@known("layer-order", "cast")
def layers_in_string_order_and_cast() -> Sides:
    weights, moved = KNOWN["layers_in_string_order"].make()
    return weights, change(moved, "", round_to(torch.bfloat16))


@known("broadcast", accept="layout", related=6)
def keys_and_values_repeated() -> Sides:
    def repeat(array: NDArray) -> NDArray:
        return np.repeat(array.reshape(2, 1, 8, 32), 2, axis=1).reshape(32, 32)

    return llama(), change(llama(), "(k|v)_proj", repeat)


@known("weight-norm", "cast", accept="fold,cast", related=30)
def weight_norm_and_cast() -> Sides:
    weights, normed = KNOWN["weight_norm_parametrised"].make()
    return normed, {name: array.astype(np.float16) for name, array in weights.items()}


@known("batch-norm-folded", accept="fold")
def batch_norm_folded_and_cast() -> Sides:
    weights, folded = KNOWN["batch_norm_folded"].make()
    return weights, {name: array.astype(np.float16) for name, array in folded.items()}


@known("fused", accept="layout", related=3)
def gate_and_up_of_experts_interleaved() -> Sides:
    """As in gpt-oss: rows of gate and up take turns, and the stack is transposed."""
    generator = np.random.default_rng(0)
    weights: Weights = {"embed.weight": generator.normal(size=(20, 8)).astype(np.float32)}
    stacked: Weights = dict(weights)
    for layer in range(3):
        experts = generator.normal(size=(4, 2, 12, 8)).astype(np.float32)
        for number, (gate, up) in enumerate(experts):
            weights[f"layers.{layer}.experts.{number}.gate.weight"] = gate
            weights[f"layers.{layer}.experts.{number}.up.weight"] = up
        stacked[f"layers.{layer}.experts.gate_up"] = experts.swapaxes(1, 2).reshape(4, 24, 8).swapaxes(1, 2)
    return weights, stacked


def qwen() -> Weights:
    """Return a Llama with biases of queries, keys and values."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    return weights_of(Qwen2ForCausalLM(config))


def interleave_rows(array: NDArray) -> NDArray:
    """Return rows of heads of 8, or their single numbers, from halves to interleaved."""
    return array.reshape(-1, 2, 4, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


@known("rope-layout", accept="layout", related=12)
def rope_of_weights_and_biases() -> Sides:
    return qwen(), change(qwen(), r"(q|k)_proj", interleave_rows)


@known("fused", accept="layout", related=6)
def weights_and_biases_per_group_with_rope() -> Sides:
    """As Megatron has them: 3 queries, their key and value, in each of 2 groups."""

    def join(query: NDArray, key: NDArray, value: NDArray) -> NDArray:
        parts = [part.reshape(2, -1, *part.shape[1:]) for part in (query, key, value)]
        return np.concatenate(parts, axis=1).reshape(-1, *query.shape[1:])

    return qwen(), fuse_qkv(change(qwen(), r"(q|k)_proj", interleave_rows), join)


@known("rope-layout", accept="layout", related=6)
def rope_of_a_part_of_each_head() -> Sides:
    def interleave(array: NDArray) -> NDArray:
        heads = array.reshape(-1, 16, array.shape[1]).copy()
        heads[:, :12] = heads[:, :12].reshape(-1, 2, 6, array.shape[1]).swapaxes(1, 2).reshape(-1, 12, array.shape[1])
        return heads.reshape(array.shape)

    return llama(), change(llama(), r"(q|k)_proj\.weight", interleave)


@known("vocab", "cast", "transposed", accept="vocab,cast,layout")
def tied_with_rows_added() -> Sides:
    def pad(array: NDArray) -> NDArray:
        return np.concatenate([array, np.zeros((4, array.shape[1]), array.dtype)])

    weights = change(change(gpt2(), "wte", pad), r"(c_attn|c_proj|c_fc)\.weight", np.transpose)
    del weights["lm_head.weight"]
    return gpt2(), change(weights, "", round_to(torch.bfloat16))


@known("rope-layout", "exception", accept="layout", related=5)
def rope_interleaved_but_for_one_key() -> Sides:
    weights = change(llama(), r"(q|k)_proj\.weight", to_interleaved)
    name = "model.layers.1.self_attn.k_proj.weight"
    return llama(), {**weights, name: llama()[name]}


@known("transposed", "exception", accept="layout", related=11)
def conv1d_to_linear_but_for_one_square() -> Sides:
    weights = change(gpt2(), r"(c_attn|c_proj|c_fc)\.weight", np.transpose)
    name = "transformer.h.2.attn.c_proj.weight"
    return gpt2(), {**weights, name: gpt2()[name]}


# -- what no operation repairs ----------------------------------------------------------------------------------------


@known("not-loaded")
def one_layer_not_loaded() -> Sides:
    """A trained layer of some size against a fresh one."""
    generator = np.random.default_rng(0)
    basis = generator.normal(size=(64, 4)) @ generator.normal(size=(4, 128)) + generator.normal(size=(64, 128)) * 0.3
    trained = {f"layers.{number}.weight": (basis * (number + 1) * 0.1).astype(np.float32) for number in range(3)}
    torch.manual_seed(0)
    fresh = torch.nn.Linear(128, 64).weight.detach().numpy()
    return trained, {**trained, "layers.1.weight": fresh}


@known("optimizer-step")
def one_adam_step_apart() -> Sides:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 8))
    before = {name: tensor.detach().clone().numpy() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    return before, {name: tensor.detach().clone().numpy() for name, tensor in model.state_dict().items()}


@known("collapsed")
def all_zero() -> Sides:
    return bert(), change(bert(), r"layer\.1\.intermediate\.dense\.weight", np.zeros_like)


@known("not-finite")
def some_not_a_number() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        spoilt = array.copy()
        spoilt[3] = np.nan
        return spoilt

    return bert(), change(bert(), r"layer\.1\.output\.dense\.weight", spoil)


@known("overflow")
def overflow_in_float16() -> Sides:
    weights = change(bert(), r"layer\.1\.output\.dense\.weight", lambda array: array * np.float32(3e6))
    with np.errstate(over="ignore"):
        cast = change(weights, r"layer\.1\.output\.dense\.weight", lambda array: array.astype(np.float16))
    return weights, cast


@known("statistics-reset")
def running_statistics_reset() -> Sides:
    weights = change(resnet(), "running_mean", np.zeros_like)
    return resnet(), change(weights, "running_var", np.ones_like)


# -- pairs that must get no explanation -------------------------------------------------------------------------------

UNRELATED: dict[str, Callable[[], Sides]] = {}


def unrelated(make: Callable[[], Sides]) -> None:
    """Keep a pair under the name of the function that makes it."""
    UNRELATED[make.__name__] = make


def _noise(scale: float, seed: int = 5) -> Callable[[NDArray], NDArray]:
    generator = np.random.default_rng(seed)
    return lambda array: (array + generator.normal(0, scale, array.shape)).astype(array.dtype)


@unrelated
def noise_everywhere() -> Sides:
    return llama(), change(llama(), "weight", _noise(0.003))


@unrelated
def transposed_but_for_one_element() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        turned = array.T.copy()
        turned[3, 5] += 0.5
        return turned

    return llama(), change(llama(), r"layers\.0\.mlp\.down_proj", spoil)


@unrelated
def square_transposed_but_for_one_element() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        turned = array.T.copy()
        turned[3, 5] += 0.5
        return turned

    return llama(), change(llama(), r"layers\.0\.self_attn\.o_proj", spoil)


@unrelated
def cast_and_rope_but_for_one_element() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        turned = round_to(torch.bfloat16)(to_interleaved(array)).copy()
        turned[3, 5] += 0.25
        return turned

    return llama(), change(llama(), r"layers\.0\.self_attn\.q_proj", spoil)


@unrelated
def trained_from_one_start() -> Sides:
    """Norms of ones on one side are a start, and no sign of a failure."""
    start = change(llama(), "norm", np.ones_like)
    return start, change(start, "", _noise(0.01))


@unrelated
def rope_but_for_one_row() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        turned = to_interleaved(array).copy()
        turned[7] *= -1
        return turned

    return llama(), change(llama(), r"layers\.0\.self_attn\.q_proj", spoil)


@unrelated
def rows_mixed() -> Sides:
    def mix(array: NDArray) -> NDArray:
        mixed = array.copy()
        mixed[0], mixed[1] = (array[0] + array[1]) / 2, array[0] - array[1]
        return mixed

    return bert(), change(bert(), r"layer\.0\.attention\.self\.query\.weight", mix)


@unrelated
def cast_but_for_one_element() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        rounded = round_to(torch.bfloat16)(array).copy()
        rounded.flat[11] += 0.25
        return rounded

    return llama(), change(llama(), r"layers\.0\.mlp\.up_proj", spoil)


@unrelated
def one_row_scaled_otherwise_and_noise() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        return _noise(0.01)(array * np.float32(2))

    return llama(), change(llama(), r"layers\.1\.self_attn\.o_proj", spoil)


@unrelated
def another_vocabulary() -> Sides:
    def spoil(array: NDArray) -> NDArray:
        return np.concatenate([_noise(0.01)(array), np.zeros((4, array.shape[1]), array.dtype)])

    return llama(), change(llama(), "lm_head", spoil)


@unrelated
def fused_with_a_wrong_key() -> Sides:
    weights = llama()
    spoilt = change(weights, r"self_attn\.k_proj", _noise(0.01))
    return weights, fuse_qkv(spoilt, lambda *parts: np.concatenate(parts))


@unrelated
def folded_with_noise() -> Sides:
    weights, folded = KNOWN["batch_norm_folded"].make()
    return weights, change(folded, r"convolution.weight", _noise(0.01))


@unrelated
def matrices_of_low_rank() -> Sides:
    """Rows that are all alike differ by rows that are all alike: that is no adapter."""
    return mamba(), change(mamba(), "A_log", lambda array: -np.exp(array))


@unrelated
def one_of_many_moved_by_one_number() -> Sides:
    """No step of an optimiser: all others stayed where they are."""
    step = np.float32(1e-3) * np.random.default_rng(0).choice([-1, 1], (48, 32)).astype(np.float32)
    return llama(), change(llama(), r"layers\.1\.mlp\.up_proj", lambda array: array + step)


@unrelated
def full_rank_update() -> Sides:
    return llama(), change(llama(), "q_proj", _noise(0.01))


def describe(weights: Mapping[str, NDArray]) -> str:
    """Return how much a checkpoint holds, for messages of failing tests."""
    return f"{len(weights)} tensors, {sum(array.size for array in weights.values())} elements"
