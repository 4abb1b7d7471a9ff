"""What a name on the command line stands for: a model to run, or something that was saved."""

from __future__ import annotations

import os

from nndiff.errors import ModelError, SourceError, UsageError

HUGGING_FACE = "hf:"
NEMO = "nemo"  # for `nndiff verify`: NeMo itself, by the class that a config names
RESTORED_SUFFIXES = (".nemo", ".ckpt")  # these hold weights to read, and a model to restore
# no Python module is called like this: `x.pt` is a missing file, not the module `pt` of the package `x`
_SAVED_SUFFIXES = (
    *(".nnrec", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".pkl", ".pickle"),
    *(".zip", ".tar", ".gz", ".tgz", ".onnx", ".gguf", ".h5"),
)
FORMS = "file.py[:factory], package.module[:factory], hf:DIR or x.nemo"


def split_factory(name: str) -> tuple[str, str]:
    """Return the file or module of a MODEL, and its factory, which may be empty."""
    if os.path.lexists(name) or ":" not in name:
        return name, ""
    target, _, factory = name.rpartition(":")
    return target, factory


def looks_like_path(name: str) -> bool:
    """Return True if a name is the path of a source or a model, or is spelled like one."""
    if name.startswith(HUGGING_FACE):
        return True
    target, _ = split_factory(name.partition("::")[0])
    return os.path.lexists(target) or os.sep in target or target.endswith((".py", *RESTORED_SUFFIXES, *_SAVED_SUFFIXES))


def looks_like_model(name: str) -> bool:
    """Return True if a name can only be a model, not a source of tensors."""
    if name.startswith(HUGGING_FACE):
        return True
    target, _ = split_factory(name)
    if target.endswith(".py"):
        return True
    if os.path.lexists(target) or target.endswith((*_SAVED_SUFFIXES, *RESTORED_SUFFIXES)):
        return False
    return is_dotted_name(target)


def check_name(name: str) -> None:
    """Refuse what cannot be a model, before anything is built or run."""
    if name.startswith(HUGGING_FACE):
        folder = name.removeprefix(HUGGING_FACE)
        if not os.path.isdir(folder):
            raise ModelError(f"{name}: no such folder; nothing is downloaded, give a local Hugging Face folder")
        if not os.path.isfile(os.path.join(folder, "config.json")):
            raise ModelError(f"{name}: no config.json in it; give a local Hugging Face folder")
        return
    target, _ = split_factory(name)
    is_path = os.sep in target or target.endswith((".py", *RESTORED_SUFFIXES, *_SAVED_SUFFIXES))
    if is_path and not os.path.lexists(target):
        raise SourceError(target, "no such file or directory")
    if target.endswith(_SAVED_SUFFIXES):
        raise UsageError(
            f"{target} holds tensors, not a model to run: a model is {FORMS}; to compare files, use nndiff diff"
        )
    if os.path.isdir(target):
        if os.path.isfile(os.path.join(target, "config.json")):
            raise UsageError(f"{target} is a folder; to run its Hugging Face model, write hf:{target}")
        if not is_dotted_name(target):  # a Python package may have the name of a folder
            raise UsageError(f"{target} is a folder, not a model: a model is {FORMS}")


def is_dotted_name(target: str) -> bool:
    """Return True if a name may be that of a Python module."""
    return all(word.isidentifier() for word in target.split("."))
