"""The Python API: compare, assert_same, and the methods of a result that show it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nndiff import result_json
from nndiff.batches import merge_batches
from nndiff.comparison import compare_sources, read_options, run_plans
from nndiff.errors import UsageError
from nndiff.experiments import LiveModels, Wishes, measure_judging_noise, run_experiments
from nndiff.plan import plan_comparison
from nndiff.reports import ReportOptions, get_report, write_report
from nndiff.result import Comparison, present_with
from nndiff.sources import Source, open_source
from nndiff.tolerance import Given, Tolerance, choose_tolerance

__all__ = ["Comparison", "assert_same", "compare"]

_DEFAULT_SEED = 42
_REPORT_WIDTH = 100  # columns of a printed result: notebooks and logs have no width of their own


class _Presenter:
    """Show results by the reports."""

    def text(self, comparison: Comparison) -> str:
        """Return the terminal report."""
        return get_report("terminal").render(comparison, ReportOptions(width=_REPORT_WIDTH, color=False))

    def html(self, comparison: Comparison) -> str:
        """Return the html report, for a notebook."""
        from nndiff.reports.html import render_html

        return render_html(comparison)

    def to_dict(self, comparison: Comparison) -> dict[str, Any]:
        """Return the result as plain data."""
        return result_json.to_dict(comparison)

    def write(self, comparison: Comparison, report: str) -> None:
        """Write a report, `FORMAT:PATH`."""
        write_report(comparison, report)

    def judged_at(self, comparison: Comparison, tolerance: Tolerance) -> Comparison:
        """Return the same numbers judged at another tolerance."""
        from nndiff.findings.causes import LASTING_CAUSES
        from nndiff.rejudge import judge_at

        return judge_at(comparison, tolerance, LASTING_CAUSES)


present_with(_Presenter())


@dataclass(frozen=True)
class _Running:
    """Say how models are run; None and False leave it to the recording, or to the default."""

    seed: int | None
    backward: bool
    loss: Callable[..., Any] | None
    mode: Literal["train", "eval"] | None
    dropout: Literal["off"] | None
    params: bool
    inputs_kept: bool
    depth: int | None
    leaves: bool

    def as_options(self) -> dict[str, Any]:
        """Return the keywords of nndiff.record."""
        return {**vars(self), "seed": _DEFAULT_SEED if self.seed is None else self.seed}


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
    atol: Given = None,
    rtol: Given = None,
    tolerance: Literal["auto", "noise"] | None = None,
    noise_factor: float | None = None,
    accept: str | Iterable[str] = (),
    judge: Literal["all", "outputs"] = "all",
    strict_dtype: bool = False,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    rename: str | Iterable[str | tuple[str, str]] = (),
    mapping: Mapping[str, str] | None = None,
    content: bool = True,
    group: str | Iterable[str] | Mapping[str, str] = (),
    filter: Literal["all", "mlp", "backbone"] = "all",  # noqa: A002 - the word of the command line
    replay: bool | None = None,
    noise: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    r"""Compare a reference with one or more candidates; returns the result and prints nothing.

    Each side is a path (checkpoint, folder, recording; `FILE::key` chooses a part), a mapping of names to arrays or
    tensors, or a module. Modules are compared by their weights, or, with `inputs`, by what every layer does with them:
    forward, and with `backward` the gradients too. Against a recording, a module is fed what was recorded, the way it
    was recorded.

        nndiff.compare("a.nemo", "b.ckpt").verdict
        nndiff.compare(model_a, model_b, inputs=batch, backward=True).first_divergence
        nndiff.compare(model_a, model_b, inputs=[batch_1, batch_2])
        nndiff.compare("a.nnrec", model).verdict
        nndiff.compare(model_a, model_b.state_dict(), rename=[r"^encoder\.=>"])

    `inputs` is a tensor, a tuple of arguments, a dict of keywords, a function that makes one of them, or a list of
    several batches. `params`, `inputs_kept`, `depth` and `leaves` choose what is recorded, as in nndiff.record.
    `atol` and `rtol` are numbers, or {pattern: number}. `accept` names kinds of relations that count as agreement
    (layout, cast, scale, fold, vocab, extra), `judge="outputs"` lets only inputs and outputs of the model decide, and
    `strict_dtype` calls tensors of another dtype different. `include`, `exclude`, `rename` and `group` are one rule or
    several, as on the command line; `mapping` is {reference's name: candidate's name}. Without `content`, checkpoints
    are paired by names alone, not by what unpaired tensors hold. `progress` is called with the elements done and the
    elements in all.

    When modules that were run differ, experiments follow: the noise floor of the reference is measured, and each
    candidate is run once more on the reference's tensors, so that every module at fault is found (`own_errors`).
    `replay` and `noise` turn them off (False), or on even if nothing differs (True).

    Two folders of `TrainingRecorder`, or of checkpoints with a step in their names, are compared as training runs,
    step by step; `filter` lets only the head (mlp) or the rest (backbone) decide.
    """
    for candidate in candidates:
        if isinstance(candidate, (list, tuple)) and any(isinstance(item, (str, os.PathLike)) for item in candidate):
            raise UsageError("candidates are given one by one, compare(reference, a, b), not as a list of paths")
    options: dict[str, Any] = {
        "atol": atol,
        "rtol": rtol,
        "tolerance": tolerance,
        "noise_factor": noise_factor,
        "accept": _as_rules("accept", accept),
        "judge": judge,
        "strict_dtype": strict_dtype,
        "include": _as_rules("include", include),
        "exclude": _as_rules("exclude", exclude),
        "rename": _as_rules("rename", rename, str, tuple),
        "mapping": mapping,
        "content": content,
        "group": group if isinstance(group, Mapping) else _as_rules("group", group),
        "progress": progress,
    }
    sides = (reference, *candidates)
    if any(_is_folder(side) for side in sides):
        from nndiff.runs.opening import are_trainings

        if are_trainings(sides):
            return _compare_trainings(sides, options, filter)
    if filter != "all":
        raise UsageError(
            f"filter={filter!r} is about training runs: give folders of TrainingRecorder or of checkpoints"
        )
    running = _Running(seed, backward, loss, mode, dropout, params, inputs_kept, depth, leaves)
    wishes = Wishes(replay, noise)
    recorded_run = _find_run(reference) if inputs is None and any(map(_is_module, candidates)) else ""
    if recorded_run:
        inputs, running = _repeat_run(recorded_run, running)
    if inputs is None:
        _refuse_running_options(running)
        if _is_module(reference) and any(_find_run(candidate) for candidate in candidates):
            raise UsageError(
                "a module is compared with a recording by running it on what was recorded: the recording comes first, "
                "compare(recording, module)"
            )
        return compare_sources(reference, *candidates, **options)
    results = []
    for batch in inputs if isinstance(inputs, list) else [inputs]:
        with tempfile.TemporaryDirectory(prefix="nndiff-") as folder:
            results.append(_compare_runs(sides, batch, Path(folder), running, options, wishes))
    if not results:
        raise UsageError("inputs is an empty list: give at least one batch")
    return results[0] if len(results) == 1 else merge_batches(results)


def _compare_runs(
    sides: tuple[Any, ...],
    inputs: Any,
    folder: Path,
    running: _Running,
    options: Mapping[str, Any],
    wishes: Wishes,
) -> Comparison:
    """Run the models on one batch, compare what they did, and experiment with those that differ."""
    progress = options["progress"]
    rules = read_options(**{name: value for name, value in options.items() if name != "progress"})
    sources: list[Source] = []
    for number, side in enumerate(sides):
        role = "reference" if number == 0 else "candidate"
        source = open_source(_record_side(side, inputs, folder / str(number), running), role)
        if _is_module(side):  # it goes by its class, not by the folder it was recorded to
            source = replace(source, label=_choose_label(side, [candidate.label for candidate in sources[1:]]))
        sources.append(source)

    def record_reference(draws: int) -> str:
        again = replace(running, params=True, inputs_kept=True)
        return str(_record_side(sides[0], inputs, folder / "reference", again, noise=draws).path)

    def make_replay(number: int) -> Callable[[str, Mapping[str, str]], str]:
        def replay_candidate(reference: str, partners: Mapping[str, str]) -> str:
            path = folder / f"replay-{number}"
            return str(_replay_side(sides[number], inputs, path, running, reference, partners).path)

        return replay_candidate

    models = LiveModels(
        reference=_find_run(sides[0]),
        record_reference=record_reference if _is_module(sides[0]) else None,
        replay_candidates={
            number - 1: make_replay(number) for number in range(1, len(sides)) if _is_module(sides[number])
        },
    )
    sources[0], models = measure_judging_noise(sources[0], models, rules.tolerance, wishes)
    plans = plan_comparison(sources[0], sources[1:], rules.pairing)
    comparison = run_plans(plans, rules.tolerance, rules.rules, rules.pairing.groups, progress)
    return run_experiments(comparison, sources, rules, models, wishes, progress)


def _is_folder(side: Any) -> bool:
    return isinstance(side, (str, os.PathLike)) and os.path.isdir(side)


def _compare_trainings(sides: tuple[Any, ...], options: Mapping[str, Any], filter_name: str) -> Comparison:
    """Compare training runs by the options that are about names and tolerance."""
    from nndiff.align import Rename
    from nndiff.names import parse_groups
    from nndiff.runs.comparison import RunRules, compare_runs
    from nndiff.runs.opening import open_training

    group = options["group"]
    rules = RunRules(
        tuple(Rename.parse(rule) for rule in options["rename"]),
        dict(options["mapping"] or {}),
        options["include"],
        options["exclude"],
        dict(group) if isinstance(group, Mapping) else parse_groups(group),
        filter_name,
    )
    tolerance = choose_tolerance(options["atol"], options["rtol"], options["tolerance"], options["noise_factor"])
    runs = [open_training(side) for side in sides]
    return compare_runs(runs[0], runs[1:], tolerance, rules, options["progress"])


def _choose_label(model: Any, taken: Sequence[str]) -> str:
    """Return what reports call a live model: its class, with a number where another candidate is of the same."""
    name = f"<{type(model).__name__}>"
    label, number = name, 2
    while label in taken:
        label, number = f"{name} ({number})", number + 1
    return label


def _refuse_running_options(running: _Running) -> None:
    """Refuse options about running models where none is run, lest they be taken for heeded."""
    given = []
    for name, value in vars(running).items():
        if name != "seed" and value is not None and value is not False:  # scripts give the seed to every call
            given.append(name)
    if given:
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(f"{' and '.join(given)} {verb} about running models: give inputs=... too")


def _as_rules(option: str, given: Any, *kinds: type) -> tuple[Any, ...]:
    """Return one rule or several as a tuple."""
    rules = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    for rule in rules:
        if not isinstance(rule, kinds or str):
            raise UsageError(f"{option} takes a string or several of them, not {rule!r}")
    return rules


def _is_module(side: Any) -> bool:
    return hasattr(side, "named_modules")


def _find_run(side: Any) -> str:
    """Return the path of a recorded run; an empty one where the side is something else."""
    from nndiff.models.rerun import is_recorded_run

    path = side if isinstance(side, (str, os.PathLike)) else getattr(side, "path", None)
    path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    return path if isinstance(path, str) and is_recorded_run(path) else ""


@dataclass(frozen=True)
class _SavedInputs:
    """Name the file or recording that holds the inputs."""

    path: str


def _repeat_run(path: str, running: _Running) -> tuple[_SavedInputs, _Running]:
    """Return where a recorded run has its inputs, and how it was run where nothing else is asked for."""
    from nndiff.models.rerun import read_run_settings

    run = read_run_settings(path)
    return _SavedInputs(run.inputs), replace(
        running,
        seed=run.seed if running.seed is None else running.seed,
        backward=running.backward or run.backward,
        mode=running.mode or run.mode,
        dropout=running.dropout or run.dropout,
        params=running.params or run.params,
        inputs_kept=running.inputs_kept or run.inputs_kept,
    )


def _record_side(side: Any, inputs: Any, path: Path, running: _Running, noise: int = 0) -> Any:
    """Return the recording of a module; a recording stays what it is."""
    if not _is_module(side):
        return side
    from nndiff.recording.record import record

    inputs, notes = _load_saved(inputs, side)
    return record(side, inputs, path=path, notes=notes, noise=noise, **running.as_options())


def _replay_side(
    side: Any, inputs: Any, path: Path, running: _Running, reference: str, partners: Mapping[str, str]
) -> Any:
    """Return the recording of a module that ran on the reference's tensors."""
    from nndiff.recording.replay import replay

    inputs, _ = _load_saved(inputs, side)
    return replay(side, inputs, reference=reference, partners=partners, path=path, **running.as_options())


def _load_saved(inputs: Any, model: Any) -> tuple[Any, tuple[str, ...]]:
    """Return inputs as a model takes them, and notes; those of a file or recording are read."""
    if not isinstance(inputs, _SavedInputs):
        return inputs, ()
    from nndiff.models.inputs import load_inputs

    saved = load_inputs(inputs.path, model)
    return saved.inputs, tuple(saved.notes)


def assert_same(reference: Any, candidate: Any, inputs: Any = None, *, msg: str | None = None, **options: Any) -> None:
    """Raise AssertionError with the report unless two models (or any two sources) are the same.

    nndiff.assert_same(model_a, model_b, inputs)
    nndiff.assert_same("a.safetensors", "b.safetensors", atol=0, rtol=0, msg="after conversion")
    """
    __tracebackhide__ = True  # pytest shows the caller's line, not this one
    result = compare(reference, candidate, inputs=inputs, **options)
    if result.exit_code:
        terminal = get_report("terminal")
        headline = terminal.render(result, ReportOptions(quiet=True, width=_REPORT_WIDTH, color=False))
        report = terminal.render(result, ReportOptions(top=8, width=_REPORT_WIDTH, color=False))
        raise AssertionError("\n".join(filter(None, (f"{msg}: {headline}" if msg else headline, report))))
