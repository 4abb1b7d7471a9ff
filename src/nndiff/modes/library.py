"""Ready modes for any model: each takes a fresh model, changes it in place and returns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

from nndiff.errors import MissingExtraError, UsageError
from nndiff.recording.capture.inputs import Inputs, as_inputs

Mode = Callable[..., torch.nn.Module]  # of a model, or of a model and the samples
Granularity = Literal["tensor", "channel", "group"]

_LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
_LOOKUPS = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_OUTPUTS_SECOND = (torch.nn.modules.conv._ConvTransposeNd,)  # their weights have the output channels on axis 1
DEFAULT_GROUP = 128  # as most 4-bit formats have it
_MOST_CALIBRATION_VALUES = 1 << 16  # of one input of one layer: enough for a percentile of 99.99


def fp16(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model in float16; its float inputs are cast."""
    return _cast_model(model, torch.float16)


def bf16(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model in bfloat16; its float inputs are cast."""
    return _cast_model(model, torch.bfloat16)


def fp8(kind: Literal["e4m3", "e5m2"] = "e4m3") -> Mode:
    """Return the mode that rounds weights and inputs of linear layers and convolutions to float8, scaled per tensor."""
    if kind not in ("e4m3", "e5m2"):
        raise UsageError(f"fp8 is of kind 'e4m3' or 'e5m2', not {kind!r}")
    dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
    largest = torch.finfo(dtype).max

    def round_float8(values: torch.Tensor) -> torch.Tensor:
        scale = _nonzero(values.detach().abs().amax()) / largest
        return ((values / scale).to(dtype).to(values.dtype)) * scale

    def apply_fp8(model: torch.nn.Module) -> torch.nn.Module:
        for _, weight, _ in list_weights(model):
            weight.data = round_float8(weight.data)
        for layer in _list_layers(model):
            layer.register_forward_pre_hook(_change_input(round_float8))
        return model

    return apply_fp8


def weight_only(bits: int = 8, granularity: Granularity = "channel", group: int = DEFAULT_GROUP) -> Mode:
    """Return the mode that rounds weights to symmetric integers: one scale per tensor, output channel or group."""
    if granularity not in ("tensor", "channel", "group"):
        raise UsageError(f"the granularity is 'tensor', 'channel' or 'group', not {granularity!r}")
    if not 2 <= bits <= 16 or group < 1:
        raise UsageError(f"weights have 2 to 16 bits and groups of 1 or more, not {bits} bits and groups of {group}")

    def apply_weight_only(model: torch.nn.Module) -> torch.nn.Module:
        for _, weight, channel_axis in list_weights(model):
            weight.data = round_weight(weight.data, channel_axis, bits, granularity, group)
        return model

    return apply_weight_only


def w8a8_dynamic(percentile: float = 100.0) -> Mode:
    """Return the mode with int8 weights per channel and int8 inputs, scaled per token while the model runs.

    A percentile below 100 clips the largest values of each token.
    """
    _check_percentile(percentile)

    def round_tokens(values: torch.Tensor) -> torch.Tensor:
        limit = _find_limit(values, percentile, per_token=values.ndim != 4)  # an image has one scale
        return round_integers(values, limit / 127, 8)

    def apply_w8a8_dynamic(model: torch.nn.Module) -> torch.nn.Module:
        for layer in _list_layers(weight_only(8, "channel")(model)):
            layer.register_forward_pre_hook(_change_input(round_tokens))
        return model

    return apply_w8a8_dynamic


def w8a8_static(percentile: float = 99.99) -> Mode:
    """Return the mode with int8 weights per channel and int8 inputs, scaled per tensor as calibrated on the samples.

    The scale of a layer's input is the largest of its samples' percentiles; what lies beyond it is clipped.
    """
    _check_percentile(percentile)

    def apply_w8a8_static(model: torch.nn.Module, samples: Sequence[Any]) -> torch.nn.Module:
        limits = _calibrate(model, samples, percentile)
        weight_only(8, "channel")(model)
        for layer in _list_layers(model):
            limit = limits.get(layer)
            if limit is not None:
                layer.register_forward_pre_hook(_change_input(_make_rounder(limit)))
        return model

    return apply_w8a8_static


def torchao(config: str = "Int8WeightOnlyConfig", **settings: Any) -> Mode:
    """Return a mode of torchao by the name of its config, for example Int8DynamicActivationInt8WeightConfig."""
    if find_spec("torchao") is None:
        raise MissingExtraError("torchao", f"for {config}", "torchao")
    quantization = import_module("torchao.quantization")
    make_config = getattr(quantization, config, None)
    if make_config is None:
        raise UsageError(f"this version of torchao has no {config}")

    def apply_torchao(model: torch.nn.Module) -> torch.nn.Module:
        quantization.quantize_(model, make_config(**settings))
        return model

    return apply_torchao


# The ready modes by name.
READY_MODES: dict[str, Callable[[], Mode]] = {
    "fp16": lambda: fp16,
    "bf16": lambda: bf16,
    "fp8-e4m3": lambda: fp8("e4m3"),
    "fp8-e5m2": lambda: fp8("e5m2"),
    "int8-tensor": lambda: weight_only(8, "tensor"),
    "int8-channel": lambda: weight_only(8, "channel"),
    "int8-group": lambda: weight_only(8, "group"),
    "int4-tensor": lambda: weight_only(4, "tensor"),
    "int4-channel": lambda: weight_only(4, "channel"),
    "int4-group": lambda: weight_only(4, "group"),
    "w8a8-static": w8a8_static,
    "w8a8-dynamic": w8a8_dynamic,
}
if find_spec("torchao") is not None:
    READY_MODES |= {
        "torchao-int8": lambda: torchao("Int8WeightOnlyConfig"),
        "torchao-int8-dynamic": lambda: torchao("Int8DynamicActivationInt8WeightConfig"),
    }
STANDARD = tuple(name for name in READY_MODES if not name.startswith("torchao"))


def list_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, int]]:
    """Yield the weights that are quantised, each with its name and the axis of its output channels.

    They are the parameters called `weight` or `..._weight` of two or more axes. Embeddings stay, and so does a head
    that is tied to one.
    """
    lookups = [module for module in model.modules() if isinstance(module, _LOOKUPS)]
    kept = {id(weight) for lookup in lookups for weight in lookup.parameters(recurse=False)}
    for prefix, module in model.named_modules():
        axis = 1 if isinstance(module, _OUTPUTS_SECOND) or type(module).__name__ == "Conv1D" else 0
        for name, parameter in module.named_parameters(recurse=False):
            is_weight = name.endswith("weight") and parameter.ndim >= 2 and parameter.is_floating_point()
            if is_weight and id(parameter) not in kept:
                kept.add(id(parameter))  # a weight that is shared is quantised once
                yield f"{prefix}.{name}" if prefix else name, parameter, axis


def round_weight(
    weight: torch.Tensor, channel_axis: int, bits: int, granularity: Granularity, group: int = DEFAULT_GROUP
) -> torch.Tensor:
    """Return a weight rounded to integers of so many bits and back; a last group may be shorter."""
    rows = weight.movedim(channel_axis, 0)
    shape = rows.shape
    rows = rows.reshape(shape[0], -1)
    largest = 2 ** (bits - 1) - 1
    if granularity == "tensor":
        rounded = round_integers(rows, _nonzero(rows.abs().amax()) / largest, bits)
    else:
        size = group if granularity == "group" else max(1, rows.shape[1])
        pieces = []
        for piece in torch.split(rows, size, dim=1):
            scale = _nonzero(piece.abs().amax(dim=1, keepdim=True)) / largest
            pieces.append(round_integers(piece, scale, bits))
        rounded = torch.cat(pieces, dim=1)
    return rounded.reshape(shape).movedim(0, channel_axis).contiguous()


def round_integers(values: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Return values rounded to symmetric integers of so many bits and back; what does not fit is clipped."""
    largest = 2 ** (bits - 1) - 1
    return torch.clamp(torch.round(values / scale), -largest - 1, largest) * scale


def _nonzero(limit: torch.Tensor) -> torch.Tensor:
    """Return limits to divide by: those of values that are all zero do not matter."""
    return torch.where(limit > 0, limit, torch.ones_like(limit))


def _cast_model(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    def cast_inputs(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = Inputs(args, kwargs).cast(dtype)
        return inputs.args, dict(inputs.kwargs)

    model = model.to(dtype)
    model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    return model


def _list_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers whose inputs are rounded."""
    kinds = ("Conv1D",)  # of transformers: a linear layer
    return [module for module in model.modules() if isinstance(module, _LAYERS) or type(module).__name__ in kinds]


def _change_input(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a hook that changes the first argument of a layer."""

    def change_first(_: torch.nn.Module, args: tuple[Any, ...]) -> Any:
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return None
        return (change(args[0]), *args[1:])

    return change_first


def _make_rounder(limit: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: round_integers(values, limit.to(values.dtype) / 127, 8)


def _check_percentile(percentile: float) -> None:
    if not 0 < percentile <= 100:
        raise UsageError(f"a percentile is above 0 and at most 100, not {percentile!r}")


def _find_limit(values: torch.Tensor, percentile: float, per_token: bool = False) -> torch.Tensor:
    """Return the percentile of the sizes of values: of all, or along the last axis."""
    sizes = values.detach().abs()
    if not per_token:
        sizes = sizes.reshape(-1)
    if percentile == 100:
        limit = sizes.amax(dim=-1, keepdim=True)
    else:
        limit = torch.quantile(sizes.float(), percentile / 100, dim=-1, keepdim=True).to(values.dtype)
    return _nonzero(limit)


def _calibrate(
    model: torch.nn.Module, samples: Sequence[Any], percentile: float
) -> dict[torch.nn.Module, torch.Tensor]:
    """Return the largest percentile of the inputs of every layer over all samples."""
    limits: dict[torch.nn.Module, torch.Tensor] = {}

    def note_limit(layer: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return
        values = args[0].reshape(-1)
        if percentile < 100 and values.numel() > _MOST_CALIBRATION_VALUES:
            values = values[:: -(-values.numel() // _MOST_CALIBRATION_VALUES)]
        limit = _find_limit(values, percentile)
        limits[layer] = torch.maximum(limits[layer], limit) if layer in limits else limit

    handles = [layer.register_forward_pre_hook(note_limit) for layer in _list_layers(model)]
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            for sample in samples:
                inputs = as_inputs(sample).fresh()
                model(*inputs.args, **inputs.kwargs)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return limits
