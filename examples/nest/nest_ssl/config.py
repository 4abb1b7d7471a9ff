"""Configs of NeMo: read from YAML, and turned into modules section by section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

Config = dict[str, Any]
ModuleT = TypeVar("ModuleT", bound=nn.Module)
# Options of NeMo that the port does not have, with the values at which it does the same.
ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "AudioToMelSpectrogramPreprocessor": {
        "normalize": ("per_feature",),
        "log": (True,),
        "log_zero_guard_type": ("add",),
        "log_zero_guard_value": (2**-24,),
        "frame_splicing": (1,),
        "exact_pad": (False,),
        "mag_power": (2.0,),
        "rng": (None,),
        "nb_augmentation_prob": (0.0,),
        "nb_max_freq": (4000,),
        "mel_norm": ("slaney",),
        "n_window_size": (None,),
        "n_window_stride": (None,),
        # these do nothing in NeMo either
        "use_torchaudio": (False, True),
        "stft_exact_pad": (False, True),
        "stft_conv": (False, True),
    },
    "RandomProjectionVectorQuantizer": {"time_ahead": (False,), "freeze": (True,)},
    "ConformerEncoder": {
        "feat_out": (-1,),
        "causal_downsampling": (False,),
        "subsampling": ("dw_striding",),
        "subsampling_conv_chunking_factor": (1,),
        "reduction": (None,),
        "reduction_position": (None,),
        "reduction_factor": (1,),
        "self_attention_model": ("rel_pos",),
        "att_context_size": ([-1, -1], None),
        "att_context_probs": (None,),
        "att_chunk_context_size": (None,),
        "att_context_style": ("regular",),
        "untie_biases": (True,),
        "conv_norm_type": ("batch_norm",),
        "conv_context_size": (None,),
        "conv_context_style": ("regular",),
        "stochastic_depth_drop_prob": (0.0,),
        "stochastic_depth_mode": ("linear", "uniform"),
        "stochastic_depth_start_layer": (1,),
        "global_tokens": (0,),
        "global_tokens_spacing": (1,),
        "global_attn_separate": (False,),
        "use_pytorch_sdpa": (False,),
        "use_pytorch_sdpa_backends": (None, []),
        "sync_max_audio_length": (True, False),
    },
    "MultiSoftmaxDecoder": {"init_mode": ("xavier_uniform",)},
}
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


class ConfigError(ValueError):
    """A config that this port cannot build."""


def read_config(path: str | Path) -> Config:
    """Return the config of a model from a file: the whole of it, or its `model` section."""
    return parse_config(Path(path).read_text())


def parse_config(text: str) -> Config:
    """Return the config of a model from YAML, with references like ${model.encoder.d_model} resolved."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError("reading a config needs PyYAML: pip install pyyaml") from error
    root = yaml.safe_load(text)
    if not isinstance(root, dict):
        raise ConfigError(f"a config has sections, and this one is a {type(root).__name__}")
    config = resolve(root.get("model", root), root)
    return {name: section for name, section in config.items() if name not in ("train_ds", "validation_ds", "test_ds")}


def resolve(value: Any, root: Config) -> Any:
    """Return a value of a config with its references replaced by what they refer to."""
    if isinstance(value, dict):
        return {name: resolve(inner, root) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, root) for inner in value]
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    target: Any = root
    for name in reference.group(1).split("."):
        if not isinstance(target, dict) or name not in target:
            raise ConfigError(f"{value} refers to {name!r}, which the config does not have")
        target = target[name]
    return resolve(target, root)


def build_module(module_class: type[ModuleT], section: Mapping[str, Any]) -> ModuleT:
    """Return a module built from its section of a config.

    The options of NeMo are arguments of the class, or stand in `ONLY`.
    """
    target = section.get("_target_", module_class.__name__)
    if target.rpartition(".")[2] != module_class.__name__:
        raise ConfigError(f"the config asks for {target}; the port has {module_class.__name__}")
    arguments = inspect.signature(module_class).parameters
    only = ONLY.get(module_class.__name__, {})
    options = {}
    for name, value in section.items():
        if name in arguments:
            options[name] = value
        elif name != "_target_" and (name not in only or value not in only[name]):
            choices = f"it must be {' or '.join(map(repr, only[name]))}" if name in only else "it is not known"
            raise ConfigError(f"{module_class.__name__}: {name} is {value!r}, and in the port {choices}")
    return module_class(**options)
