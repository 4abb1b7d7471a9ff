"""Which kind of thing a name on the command line stands for: a model to be run, or something that was saved."""

from __future__ import annotations

import os

from nndiff.errors import ModelError, SourceError, UsageError

HUGGING_FACE = "hf:"
_RESTORED = (".nemo", ".ckpt")  # both: weights to be read, and a model to be restored
# What endings say that no Python module has by accident: `x.pt` is a file that is missing, not a module `pt` of `x`.
_SAVED = (
    *(".nnrec", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".pkl", ".pickle"),
    *(".zip", ".tar", ".gz", ".tgz", ".onnx", ".gguf", ".h5"),
)
FORMS = "file.py[:factory], package.module[:factory], hf:DIR or x.nemo"


def target_of(name: str) -> str:
    """Return a MODEL without its factory."""
    return name if os.path.lexists(name) or ":" not in name else name.rpartition(":")[0]


def looks_like_model(name: str) -> bool:
    """Tell whether a name can only be a model, not a source of tensors."""
    if name.startswith(HUGGING_FACE):
        return True
    target = target_of(name)
    if target.endswith(".py"):
        return True
    return not (os.path.lexists(target) or target.endswith((*_SAVED, *_RESTORED))) and _is_dotted(target)


def check_name(name: str) -> None:
    """Refuse what cannot be a model, before anything is built or run."""
    if name.startswith(HUGGING_FACE):
        return _check_hugging_face(name)
    target = target_of(name)
    is_path = os.sep in target or target.endswith((".py", *_RESTORED, *_SAVED))
    if is_path and not os.path.lexists(target):
        raise SourceError(target, "no such file or directory")
    if target.endswith(_SAVED):
        raise UsageError(f"{target} was saved by a model and is none: a model is {FORMS}; nndiff diff compares files")
    if os.path.isdir(target):
        return _check_folder(target)
    return None


def _check_hugging_face(name: str) -> None:
    folder = name.removeprefix(HUGGING_FACE)
    if not os.path.isdir(folder):
        raise ModelError(f"{name}: no such folder; nothing is fetched, give the local folder of a Hugging Face model")
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise ModelError(f"{name}: no config.json there; give the local folder of a Hugging Face model")


def _check_folder(target: str) -> None:
    """Refuse a folder, unless a Python package may go by its name."""
    if os.path.isfile(os.path.join(target, "config.json")):
        raise UsageError(f"{target} is a folder; the model of a Hugging Face folder is hf:{target}")
    if not _is_dotted(target):
        raise UsageError(f"{target} is a folder and no model: a model is {FORMS}")


def _is_dotted(target: str) -> bool:
    return all(part.isidentifier() for part in target.split("."))
