"""Hugging Face models from a local folder: the class its config names, nothing fetched, no remote code."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from nndiff.errors import ModelError
from nndiff.models.spec import ModelSpec, Wishes
from nndiff.models.user_code import user_code
from nndiff.text import listed, plural

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")


def build(folder: str, wishes: Wishes) -> ModelSpec:
    """Build the model of a folder with a config.json; without weights beside it they are drawn from the seed."""
    path = Path(folder)
    if find_spec("transformers") is None:
        raise ModelError(f"hf:{folder}: transformers is needed and is not installed: pip install transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    _be_quiet(transformers)
    with user_code(f"reading {folder}/config.json"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    cls = _class(transformers, config)
    weighted = any(next(path.glob(pattern), None) for pattern in _WEIGHTS)
    with user_code(f"building {cls.__name__} from {folder}"):
        model, notes = _loaded(cls, folder) if weighted else (cls(config), [_NO_WEIGHTS])
    # eval as from_pretrained has it, whether there were weights or not
    return ModelSpec(model.eval(), f"hf:{folder}", _inputs(model, config, wishes), notes=tuple(notes))


_NO_WEIGHTS = "the folder holds no weights: they were drawn from the seed"


def _be_quiet(transformers: Any) -> None:
    """Leave the terminal to us: what matters of loading is told in notes, and trouble is one sentence."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


_NOT_FITTING = {
    "missing_keys": "missing in the folder and drawn from the seed",
    "mismatched_keys": "of another shape in the folder and drawn from the seed",
    "unexpected_keys": "in the folder and not used",
}


def _loaded(cls: Any, folder: str) -> tuple[Any, list[str]]:
    """Return the model with its weights, and what of them did not fit."""
    model, found = cls.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    notes = []
    for kind, told in _NOT_FITTING.items():
        # of another shape: with both shapes
        names = sorted(each[0] if isinstance(each, tuple) else str(each) for each in found.get(kind, ()))
        if names:
            notes.append(f"{plural(len(names), 'weight')} {told} ({listed(names)})")
    return model, notes


def _class(transformers: Any, config: Any) -> Any:
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    found = transformers.AutoModel._model_mapping.get(type(config), None)
    if found is None:
        raise ModelError(f"this transformers has no class for {getattr(config, 'architectures', None)}")
    return found[0] if isinstance(found, tuple) else found


def _inputs(model: Any, config: Any, wishes: Wishes) -> Callable[[], dict[str, Any]] | None:
    """Return what makes inputs of the kind the model names as its main one; a model of text and images gets both."""
    main = getattr(model, "main_input_name", "input_ids")
    taken = inspect.signature(type(model).forward).parameters
    both = hasattr(config, "text_config") and hasattr(config, "vision_config")
    names = [name for name in ("input_ids", "pixel_values") if both and name in taken] or [main]

    def make() -> dict[str, Any]:
        made = {name: _MAKERS.get(name, _ids)(config, wishes) for name in names}
        if getattr(config, "is_encoder_decoder", False):
            made["decoder_input_ids"] = _ids(config, replace(wishes, seq_len=min(wishes.seq_len or 16, 16)))
        return made

    return make


def _ids(config: Any, wishes: Wishes) -> torch.Tensor:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return torch.randint(0, getattr(text, "vocab_size", 100), (wishes.batch_size or 2, wishes.seq_len or 16))


def _pixels(config: Any, wishes: Wishes) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return torch.randn(wishes.batch_size or 2, getattr(vision, "num_channels", 3), height, width)


def _features(config: Any, wishes: Wishes) -> torch.Tensor:
    frames = wishes.seq_len or 2 * getattr(config, "max_source_positions", 50)
    return torch.randn(wishes.batch_size or 2, getattr(config, "num_mel_bins", 80), frames)


def _waves(config: Any, wishes: Wishes) -> torch.Tensor:
    return torch.randn(wishes.batch_size or 2, wishes.seq_len or 16000)


_MAKERS = {"pixel_values": _pixels, "input_features": _features, "input_values": _waves}
