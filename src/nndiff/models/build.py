"""Building a model by its name: a Python file, a checkpoint of NeMo, a folder of Hugging Face."""

from __future__ import annotations

from importlib.util import find_spec

from nndiff.errors import MissingExtraError, UsageError
from nndiff.models.kinds import HUGGING_FACE, RESTORED_SUFFIXES, check_name
from nndiff.models.spec import BuildOptions, ModelSpec


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
