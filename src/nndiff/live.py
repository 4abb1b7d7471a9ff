"""Models compared where they are: each is recorded on the same inputs, then the recordings are compared."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nndiff.comparing import compare_sources
from nndiff.errors import UsageError
from nndiff.result import Comparison


def compare(
    reference: Any,
    *candidates: Any,
    inputs: Any = None,
    seed: int | None = None,
    backward: bool = False,
    loss: Callable[..., Any] | None = None,
    mode: Literal["train", "eval"] | None = None,
    dropout: Literal["off"] | None = None,
    params: bool = False,
    inputs_kept: bool = False,
    depth: int | None = None,
    leaves: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    tolerance: Literal["auto"] | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    rename: str | Iterable[str | tuple[str, str]] = (),
    mapping: Mapping[str, str] | None = None,
    group: str | Iterable[str] | Mapping[str, str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    r"""Compare a reference with one or more candidates.

    Each side is a path (checkpoint, folder, recording; `FILE::key` chooses a part), a mapping of names to
    arrays or tensors, or a module. Modules are compared by their weights, or, with `inputs`, by what every
    layer does with them: forward, and with `backward` the gradients too. Against a recording a module is fed
    what was recorded, as it was recorded. Returns the result; prints nothing.

        nndiff.compare("a.nemo", "b.ckpt").verdict
        nndiff.compare(model_a, model_b, inputs=batch, backward=True).first_divergence
        nndiff.compare("a.nnrec", model).verdict
        nndiff.compare(model_a, model_b.state_dict(), rename=[r"^encoder\.=>"])

    `inputs` is a tensor, a tuple of arguments, a dict of keywords, or a function that makes one of them. What of
    the modules is recorded and compared, `params`, `inputs_kept`, `depth` and `leaves` say as for nndiff.record.
    `include`, `exclude`, `rename` and `group` are one rule or several, as the command line has them; a rename
    may also be a tuple (regex, replacement), and groups a mapping {name: pattern}. `mapping` is {reference's
    name: candidate's name}. `progress` is called with the elements done and those in all.
    """
    _one_by_one(candidates)
    options: dict[str, Any] = {
        "atol": atol,
        "rtol": rtol,
        "tolerance": tolerance,
        "include": _rules("include", include),
        "exclude": _rules("exclude", exclude),
        "rename": _rules("rename", rename, str, tuple),
        "mapping": mapping,
        "group": group if isinstance(group, Mapping) else _rules("group", group),
        "progress": progress,
    }
    running: dict[str, Any] = {"seed": seed, "backward": backward, "loss": loss, "mode": mode, "dropout": dropout}
    running |= {"params": params, "inputs_kept": inputs_kept, "depth": depth, "leaves": leaves}
    recorded = _run_of(reference) if inputs is None and any(map(_is_module, candidates)) else ""
    if recorded:
        inputs, running = _as_recorded(recorded, running)
    if inputs is None:
        _refuse_running(running)
        _recording_first(reference, candidates)
        return compare_sources(reference, *candidates, **options)
    running["seed"] = 42 if running["seed"] is None else running["seed"]
    with tempfile.TemporaryDirectory(prefix="nndiff-") as folder:
        sides = [
            _recorded(side, inputs, Path(folder) / str(number), running)
            for number, side in enumerate((reference, *candidates))
        ]
        return compare_sources(*sides, **options)


def _refuse_running(running: Mapping[str, Any]) -> None:
    """Refuse options about running models where none is run, lest they be taken for heeded."""
    asked = [name for name, value in running.items() if value is not None and value is not False]
    idle = [name for name in asked if name != "seed"]  # scripts give it to every call
    if idle:
        verb = "is" if len(idle) == 1 else "are"
        raise UsageError(f"{' and '.join(idle)} {verb} about running models: give inputs=... too")


def _one_by_one(candidates: Iterable[Any]) -> None:
    for candidate in candidates:
        if isinstance(candidate, (list, tuple)) and any(isinstance(each, (str, os.PathLike)) for each in candidate):
            raise UsageError("candidates are given one by one, compare(reference, a, b), not as a list of paths")


def _rules(option: str, given: Any, *kinds: type) -> tuple[Any, ...]:
    """Return one rule or several as a tuple."""
    rules = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for rule in rules:
        if not isinstance(rule, kinds or str):
            raise UsageError(f"{option} takes a text or several of them, not {rule!r}")
    return rules


def _is_module(side: Any) -> bool:
    return hasattr(side, "named_modules")


def _run_of(side: Any) -> str:
    """Return the path of a recorded run; an empty one where the side is something else."""
    from nndiff.models.rerun import is_recorded_run

    path = side if isinstance(side, (str, os.PathLike)) else getattr(side, "path", None)
    path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    return path if isinstance(path, str) and is_recorded_run(path) else ""


def _recording_first(reference: Any, candidates: Iterable[Any]) -> None:
    if _is_module(reference) and any(map(_run_of, candidates)):
        raise UsageError(
            "a module is compared with a recording by running it on what was recorded: the recording comes first, "
            "compare(recording, module)"
        )


def _as_recorded(path: str, running: dict[str, Any]) -> tuple[_Saved, dict[str, Any]]:
    """Return where a recorded run has its inputs, and how it was run where nothing else is asked for."""
    from nndiff.models.rerun import read_run_settings

    run = read_run_settings(path)
    alike = ("backward", "mode", "dropout", "params", "inputs_kept")
    found = running | {name: running[name] or getattr(run, name) for name in alike}
    found["seed"] = run.seed if running["seed"] is None else running["seed"]
    return _Saved(run.inputs), found


@dataclass(frozen=True)
class _Saved:
    """Name the file or recording that holds the inputs."""

    path: str


def _recorded(side: Any, inputs: Any, path: Path, running: dict[str, Any]) -> Any:
    """Return the recording of a module; a recording stays what it is."""
    if not _is_module(side):
        return side
    from nndiff.recording.record import record

    if not isinstance(inputs, _Saved):
        return record(side, inputs, path=path, **running)
    from nndiff.models.inputs import load_inputs

    saved = load_inputs(inputs.path, side)
    return record(side, saved.inputs, path=path, notes=saved.notes, **running)


def assert_same(reference: Any, candidate: Any, inputs: Any = None, **options: Any) -> None:
    """Raise AssertionError with the report unless two models (or any two sources) are the same.

    nndiff.assert_same(model_a, model_b, inputs)
    nndiff.assert_same("a.safetensors", "b.safetensors", atol=0, rtol=0)
    """
    result = compare(reference, candidate, inputs=inputs, **options)
    if result.exit_code:
        raise AssertionError("\n" + _report(result))


def _report(result: Comparison) -> str:
    from nndiff.reports import ReportOptions, get_report

    return get_report("terminal").render(result, ReportOptions(top=8, width=100, color=False))
