"""Hugging Face models from a local folder: the class its config names, nothing fetched, no remote code."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nndiff.errors import ModelError
from nndiff.models.spec import ModelSpec, Wishes
from nndiff.models.user_code import user_code

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")


def build(folder: str, wishes: Wishes) -> ModelSpec:
    """Build the model of a folder with a config.json; without weights beside it they are drawn from the seed."""
    path = Path(folder)
    if find_spec("transformers") is None:
        raise ModelError(f"hf:{folder}: transformers is needed and is not installed: pip install transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    with user_code(f"reading {folder}/config.json"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    cls = _class(transformers, config)
    weighted = any(next(path.glob(pattern), None) for pattern in _WEIGHTS)
    with user_code(f"building {cls.__name__} from {folder}"):
        model = cls.from_pretrained(folder, local_files_only=True) if weighted else cls(config)
    notes = () if weighted else (f"{folder} holds no weights: they were drawn from the seed",)
    return ModelSpec(model, f"hf:{folder}", _inputs(model, config, wishes), notes=notes)


def _class(transformers: Any, config: Any) -> Any:
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    found = transformers.AutoModel._model_mapping.get(type(config), None)
    if found is None:
        raise ModelError(f"this transformers has no class for {getattr(config, 'architectures', None)}")
    return found[0] if isinstance(found, tuple) else found


def _inputs(model: Any, config: Any, wishes: Wishes) -> Callable[[], dict[str, Any]] | None:
    """Return what makes inputs of the kind the model names as its main one."""
    import torch

    batch, length = wishes.batch_size or 2, wishes.seq_len
    name = getattr(model, "main_input_name", "input_ids")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config

    def ids(steps: int) -> torch.Tensor:
        return torch.randint(0, getattr(text, "vocab_size", 100), (batch, steps))

    def make() -> dict[str, Any]:
        made: dict[str, Any] = {}
        if name == "pixel_values":
            size = getattr(config, "image_size", None) or 224
            height, width = (size, size) if isinstance(size, int) else tuple(size)
            made[name] = torch.randn(batch, getattr(config, "num_channels", 3), height, width)
        elif name == "input_features":
            frames = length or 2 * getattr(config, "max_source_positions", 50)
            made[name] = torch.randn(batch, getattr(config, "num_mel_bins", 80), frames)
        elif name == "input_values":
            made[name] = torch.randn(batch, length or 16000)
        else:
            made[name] = ids(length or 16)
        if getattr(config, "is_encoder_decoder", False):
            made["decoder_input_ids"] = ids(min(length or 16, 16))
        return made

    return make
