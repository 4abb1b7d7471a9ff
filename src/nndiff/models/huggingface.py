"""Hugging Face models from a local folder: the class its config names, nothing downloaded, no remote code."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from nndiff.errors import ModelError
from nndiff.models.inputs import DEFAULT_BATCH_SIZE, DEFAULT_SEQ_LEN
from nndiff.models.spec import BuildOptions, ModelSpec
from nndiff.models.user_code import user_code
from nndiff.text import listed, plural

_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")
_LOADING_TROUBLES = {
    "missing_keys": "missing from the folder and drawn from the seed",
    "mismatched_keys": "with another shape in the folder and drawn from the seed",
    "unexpected_keys": "in the folder but not used",
}
_DEFAULT_SAMPLES = 16000


def build_hugging_face_model(folder: str, options: BuildOptions) -> ModelSpec:
    """Build the model of a folder with a config.json; without weight files, the weights are drawn from the seed."""
    model_class, config = read_class(folder)
    has_weights = any(next(Path(folder).glob(pattern), None) for pattern in _WEIGHT_FILES)
    with _silence_warnings(), user_code(f"building {model_class.__name__} from {folder}"):
        if has_weights:
            model, loading = model_class.from_pretrained(folder, local_files_only=True, output_loading_info=True)
            notes = _describe_loading(loading)
        else:
            model = model_class(config)
            notes = ["the folder holds no weights: they were drawn from the seed"]
    model.eval()  # as from_pretrained does
    return ModelSpec(model, f"hf:{folder}", make_input_maker(model, config, options), notes=tuple(notes))


def read_class(folder: str) -> tuple[Any, Any]:
    """Return the class that the config.json of a folder names, and the config."""
    if find_spec("transformers") is None:
        raise ModelError(f"hf:{folder}: transformers is needed and is not installed: pip install transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with _silence_warnings():
        import transformers

        reports: Any = transformers.logging
        reports.set_verbosity_error()  # nndiff tells in notes what matters about loading
        reports.disable_progress_bar()
        with user_code(f"reading {folder}/config.json"):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return _find_class(transformers, config), config


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Keep the log quiet: transformers imports packages, torchao for one, that warn of libraries this machine lacks."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _find_class(transformers: Any, config: Any) -> Any:
    """Return the model class that a config names, or else the base model of its kind."""
    architectures = getattr(config, "architectures", None) or ()
    for name in architectures:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    model_class = transformers.AutoModel._model_mapping.get(type(config), None)
    if model_class is None:
        raise ModelError(f"this version of transformers has no class for {', '.join(architectures) or 'the config'}")
    return model_class[0] if isinstance(model_class, tuple) else model_class


def _describe_loading(loading: dict[str, Any]) -> list[str]:
    """Return a note for each kind of weight that did not fit."""
    notes = []
    for kind, description in _LOADING_TROUBLES.items():
        names = []
        for key in loading.get(kind, ()):
            names.append(key[0] if isinstance(key, tuple) else str(key))  # mismatched keys come with both shapes
        if names:
            notes.append(f"{plural(len(names), 'weight')} {description} ({listed(sorted(names))})")
    return notes


def make_input_maker(model: Any, config: Any, options: BuildOptions) -> Callable[[], dict[str, Any]]:
    """Return a function that draws the main input of a model; a model of text and images gets both."""
    names = [getattr(model, "main_input_name", "input_ids")]
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        parameters = inspect.signature(type(model).forward).parameters
        names = [name for name in ("input_ids", "pixel_values") if name in parameters] or names

    def make_inputs() -> dict[str, Any]:
        inputs = {}
        for name in names:
            draw = _DRAWERS.get(name, _draw_tokens)
            inputs[name] = draw(config, options)
        if getattr(config, "is_encoder_decoder", False):
            length = min(options.seq_len or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
            inputs["decoder_input_ids"] = _draw_tokens(config, replace(options, seq_len=length))
        return inputs

    return make_inputs


def _draw_tokens(config: Any, options: BuildOptions) -> torch.Tensor:
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    shape = (options.batch_size or DEFAULT_BATCH_SIZE, options.seq_len or DEFAULT_SEQ_LEN)
    return torch.randint(0, getattr(text_config, "vocab_size", 100), shape)


def _draw_pixels(config: Any, options: BuildOptions) -> torch.Tensor:
    vision_config = getattr(config, "vision_config", config)
    size = getattr(vision_config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(vision_config, "num_channels", 3)
    return torch.randn(options.batch_size or DEFAULT_BATCH_SIZE, channels, height, width)


def _draw_features(config: Any, options: BuildOptions) -> torch.Tensor:
    frames = options.seq_len or 2 * getattr(config, "max_source_positions", 50)
    return torch.randn(options.batch_size or DEFAULT_BATCH_SIZE, getattr(config, "num_mel_bins", 80), frames)


def _draw_waveform(config: Any, options: BuildOptions) -> torch.Tensor:
    return torch.randn(options.batch_size or DEFAULT_BATCH_SIZE, options.seq_len or _DEFAULT_SAMPLES)


_DRAWERS = {"pixel_values": _draw_pixels, "input_features": _draw_features, "input_values": _draw_waveform}
