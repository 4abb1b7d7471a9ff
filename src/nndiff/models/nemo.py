"""NeMo models: restored by the class their config names, fed with a waveform, judged by their own loss."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from nndiff.errors import MissingExtraError, ModelError, NndiffError, SourceError, UsageError
from nndiff.files import RegularFile, Window
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.nemo_inputs import accept_labels, accept_masks, accept_speakers, inputs_for, signal_of
from nndiff.models.nemo_loss import loss_for
from nndiff.models.spec import ModelSpec, Wishes
from nndiff.sources.pickle_nodes import Object
from nndiff.sources.torch_file import load_any

_DATA_KEYS = ("train_ds", "validation_ds", "test_ds", "optim")  # what training needs and a forward pass does not
_PARTS = ("asr", "audio", "speechlm2", "tts")  # collections that are extras of the package too
_DEEPEST = 64


class MissingNemoError(MissingExtraError):
    """Say that NeMo is missing, or a part of it, and how to get it."""

    def __init__(self, path: str, module: str, part: str = "asr") -> None:
        self.package = "nemo_toolkit"
        NndiffError.__init__(
            self,
            f"{path}: NeMo is needed to run it and {module!r} is not installed: "
            f'pip install "nemo_toolkit[{part}]"; to compare its weights alone, `nndiff diff` needs no NeMo',
        )


def build(path: str, wishes: Wishes) -> ModelSpec:
    """Build the model of a .nemo file, or of a Lightning checkpoint of NeMo, on the CPU and in eval mode.

    A checkpoint is read without running its pickle; its class and layout come from --config, else from the
    hyper-parameters it carries.
    """
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    with _off_stdout(), _explained(path):
        config = _read_config(wishes.config) if wishes.config else None
        model, notes = _from_checkpoint(path, config) if _is_checkpoint(path) else (_restored(path, config), [])
    accept_masks(model)
    accept_labels(model)
    accept_speakers(model)
    return ModelSpec(
        model=model.eval(),  # NeMo restores in train mode, where dither and dropout draw random numbers
        label=os.path.basename(path),  # a recording knows nothing of the machine it was made on
        inputs=partial(inputs_for, model, wishes.batch_size or 2, wishes.seq_len or 16000, wishes.seed),
        loss=loss_for(model) if signal_of(model) else None,  # without a waveform there is no batch to be made
        notes=tuple(notes),
    )


def _restored(path: str, config: Any) -> Any:
    base = import_module("nemo.core.classes").ModelPT
    target = _target(config) or _target(base.restore_from(path, return_config=True))
    # Where the named class fails, NeMo tries the one it is called on and reports that one's trouble: called on the
    # named class it reports the right one. Which names outside of NeMo are safe, NeMo decides.
    owner = _import_class(path, target) if target.startswith("nemo.") else base
    return owner.restore_from(path, override_config_path=config, map_location="cpu", strict=True)


def _from_checkpoint(path: str, config: Any) -> tuple[Any, list[str]]:
    carried = _carried_config(path)
    target = _target(config) or _target(carried)
    chosen = config if config is not None else carried and _resolved(_omegaconf().create(carried))
    if not chosen:
        raise UsageError(f"{path}: carries no config of NeMo, so one is needed: --config MODEL.yaml")
    if not target.startswith("nemo."):
        said = f"is for the class {target!r}, which is not NeMo's" if target else "names no class"
        raise UsageError(f"{path}: its config {said}: add `target: nemo.collections...` to --config MODEL.yaml")
    model = _import_class(path, target).from_config_dict(chosen, trainer=None)
    return model, load_checkpoint(model, path)


def _is_checkpoint(path: str) -> bool:
    """Tell a checkpoint (zip or pickle) from a .nemo archive (tar, plain or gzip) by how it begins."""
    return Window(RegularFile(path)).head(4).startswith((b"PK\x03\x04", b"\x80"))


def _omegaconf() -> Any:
    return import_module("omegaconf").OmegaConf


def _read_config(path: str) -> Any:
    """Return the config of a model: the whole file, or what stands under `model` in a training config."""
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    whole = _omegaconf().load(path)
    if not hasattr(whole, "items"):
        raise SourceError(path, "is not a config: it holds no keys")
    return _resolved(whole.model if "model" in whole else whole)


def _resolved(config: Any) -> Any:
    """Return the config without its datasets: these need files, and may refer to what is not there."""
    with import_module("omegaconf").open_dict(config):
        for key in _DATA_KEYS:
            config.pop(key, None)
    return _omegaconf().create(_omegaconf().to_container(config, resolve=True))


def _target(config: Any) -> str:
    found = config.get("target") if hasattr(config, "get") else None
    return found if isinstance(found, str) else ""


def _import_class(path: str, target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        missing = f"class {target}"
    except ModuleNotFoundError as error:
        missing = error.name or module
        if not missing.startswith("nemo."):  # the collection is there, and what it needs is not
            part = target.removeprefix("nemo.collections.").partition(".")[0]
            raise MissingNemoError(path, missing, part if part in _PARTS else "asr") from error
    raise ModelError(f"{path}: this NeMo has no {missing}: another version of NeMo is needed")


def _carried_config(path: str) -> dict[str, Any] | None:
    """Return the config among the hyper-parameters of a Lightning checkpoint, as plain values."""
    root = load_any(Window(RegularFile(path))).root
    held = root.get("hyper_parameters") if isinstance(root, dict) else None
    plain = _plain(path, held)
    config = plain.get("cfg", plain) if isinstance(plain, dict) else None
    return config if isinstance(config, dict) else None


def _plain(path: str, node: Any, depth: int = 0) -> Any:
    """Return what an omegaconf object stands for, from the inert pickle."""
    if depth > _DEEPEST:
        raise SourceError(path, "the config it carries is nested too deeply: give --config MODEL.yaml")
    if isinstance(node, Object):
        state = node.state[0] if node.state and isinstance(node.state[0], dict) else {}
        return _plain(path, next((state[key] for key in ("_content", "_val") if key in state), None), depth + 1)
    if isinstance(node, dict):
        return {key: _plain(path, each, depth + 1) for key, each in node.items() if isinstance(key, str)}
    if isinstance(node, (list, tuple)):
        return [_plain(path, each, depth + 1) for each in node]
    return node if isinstance(node, (bool, int, float, str)) else None


@contextlib.contextmanager
def _off_stdout() -> Iterator[None]:
    """Keep NeMo's talk off stdout, where reports go: it ends up on stderr.

    NeMo's log handlers take hold of what is stdout when NeMo is first imported, so the effect lasts.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever NeMo raises into one sentence."""
    try:
        yield
    except NndiffError:
        raise
    except ModuleNotFoundError as error:
        raise MissingNemoError(path, error.name or "nemo") from error
    except Exception as error:
        text = " ".join(str(error).split())[:400].rstrip(".")
        said = f"{path}: NeMo cannot restore it: {type(error).__name__}: {text}"
        raise ModelError(f"{said}; to compare its weights alone, `nndiff diff` needs no NeMo") from error
