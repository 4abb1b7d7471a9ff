"""What a MODEL name stands for: a built model, with the inputs and the loss that come with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nndiff.errors import MissingExtraError, UsageError
from nndiff.models.kinds import HUGGING_FACE, RESTORED_SUFFIXES, check_name

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BuildOptions:
    """What the user asks of a model that is about to be built."""

    seed: int = 42
    config: str | None = None  # a file that overrides the model's own config
    batch_size: int | None = None
    seq_len: int | None = None
    variant: str | None = None  # one of the `variants` of a Python file


@dataclass(frozen=True)
class ModelSpec:
    """A model that is built, with the inputs and the loss that come with it."""

    model: torch.nn.Module
    label: str
    inputs: Any = None  # as nndiff.record takes them; None if the model has none
    loss: Callable[..., Any] | None = None
    variants: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    checkpoint: str = ""  # the file its weights were loaded from, if not its own


def build_model(name: str, options: BuildOptions | None = None) -> ModelSpec:
    """Build the model that a name stands for: `file.py[:factory]`, `package.module[:factory]`, `hf:DIR`, `x.nemo`."""
    check_name(name)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "to run a model", "torch")
    options = options or BuildOptions()
    from nndiff.recording.environment.randomness import seed_everything

    seed_everything(options.seed)  # random weights depend on the seed alone
    is_hugging_face = name.startswith(HUGGING_FACE)
    is_restored = name.endswith(RESTORED_SUFFIXES) and not is_hugging_face
    if options.config is not None and not is_restored:
        place = "is in its folder" if is_hugging_face else "is up to its file"
        raise UsageError(f"--config is for .nemo and .ckpt models; the config of {name} {place}")
    if options.variant is not None and (is_restored or is_hugging_face):
        raise UsageError(f"--variant is for models in Python files; {name} has no variants")
    if is_hugging_face:
        from nndiff.models.huggingface import build_hugging_face_model

        return build_hugging_face_model(name.removeprefix(HUGGING_FACE), options)
    if is_restored:
        from nndiff.models.nemo import build_nemo_model

        return build_nemo_model(name, options)
    from nndiff.models.python_file import build_python_model

    return build_python_model(name, options)
