"""nndiff diff: compare a reference with one or more candidates."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nndiff.align import Rename, read_map
from nndiff.commands.options import (
    CONTENT,
    JUDGEMENT,
    PAIRING,
    REPLAY,
    REPORTS,
    RUNS,
    TOLERANCE,
    Subparsers,
    add_command,
    add_options,
    check_reports,
    parse_path,
    report_comparison,
)
from nndiff.commands.progress import ProgressBar
from nndiff.comparison import CompareOptions, run_plans
from nndiff.conversion import is_conversion_map, read_conversion_map
from nndiff.errors import UsageError
from nndiff.experiments import LiveModels, Wishes, run_experiments
from nndiff.judge import parse_accept, parse_judge
from nndiff.models.rerun import is_recorded_run, read_run_settings
from nndiff.names import parse_groups
from nndiff.plan import PairingRules, Plan, plan_comparison
from nndiff.result import CANDIDATE, REFERENCE, Rules
from nndiff.sources import Source, open_source
from nndiff.text import printable
from nndiff.tolerance import Tolerance, choose_tolerance
from nndiff.verdict import Judge

_EXAMPLES = """\
  nndiff diff ref.safetensors cand.safetensors
  nndiff diff model.nemo last.ckpt                         formats may differ
  nndiff diff a.ckpt::optimizer_states b.ckpt::optimizer_states
  nndiff diff fp32/ fp16/ int8/                            one reference, several candidates
  nndiff diff whole.safetensors 'rank*.safetensors'        several files that together are one (quote the pattern)
  nndiff diff a.pt b.pt --rename '^transformer\\.=>model.'  rewrite candidate names into reference names
  nndiff diff ref.nnrec cand.nnrec                         two recordings, layer by layer
  nndiff diff ref.nnrec model.py --ckpt last.ckpt          run a model on the recorded inputs
  nndiff diff a.pt b.pt --map map.json                     apply the names and operations of nndiff map first
  nndiff diff a.pt b.pt --dry-run                          which tensors are paired, and how
  nndiff diff runs/ref runs/ours --output-dir out          two trainings, step by step
  nndiff diff a.pt b.pt --report junit:diff.xml --report md:diff.md

PATTERN is a shell pattern for the whole name (*.bias), a module path (encoder.layers.0) or re:REGEX. For recordings,
PATTERN may also match module paths (*.norm), as for nndiff record.
Exit status: 0 the same, 1 different, 2 trouble (unreadable file, nothing could be compared).
"""


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "diff",
        run,
        purpose=purpose,
        description="Compare the named tensors of a reference with those of one or more candidates: checkpoints in "
        "any format, folders, recordings. nndiff detects what they are.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "reference", metavar="REF", type=parse_path, help="the side that is right by definition; FILE::key is a part"
    )
    parser.add_argument("candidates", metavar="CAND", nargs="+", type=parse_path, help="one or more sides to test")
    add_options(parser, TOLERANCE, JUDGEMENT, PAIRING, CONTENT, REPLAY, RUNS, REPORTS)


def read_pairing_rules(args: argparse.Namespace) -> PairingRules:
    """Return the pairing rules that the options give."""
    conversion = read_conversion_map(args.map) if args.map and is_conversion_map(args.map) else None
    return PairingRules(
        tuple(Rename.parse(text) for text in args.rename),
        read_map(args.map) if args.map and conversion is None else {},
        tuple(args.include),
        tuple(args.exclude),
        parse_groups(args.group),
        conversion,
    )


def run(args: argparse.Namespace) -> int:
    """Compare, report, and return the exit status."""
    tolerance = choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor)
    pairing = replace(read_pairing_rules(args), content=not args.no_content)
    check_reports(args)
    if _is_surely_model(args.reference) and any(is_recorded_run(name) for name in args.candidates):
        raise UsageError(
            f"{args.reference} is a model, and the reference must be a recording: the recording comes first, then "
            "the MODEL; to compare two models, use nndiff run"
        )
    sources = [args.reference, *args.candidates]
    if any(os.path.isdir(source) for source in sources):
        from nndiff.runs.opening import are_trainings  # what only training runs need

        if are_trainings(sources):
            return _compare_trainings(sources, tolerance, pairing, args)
    _refuse_run_options(args)
    models = _find_models(args.reference, args.candidates)
    if not models:
        _refuse_replay_options(args)
        return compare_sources([args.reference, *args.candidates], tolerance, pairing, args)
    _check_replay(args.reference, models)
    with tempfile.TemporaryDirectory(prefix="nndiff-replay-") as folder:
        candidates, live = _replay_models(args, models, folder)
        wishes = Wishes(replay=args.replay, noise=False)  # the reference is no model
        return compare_sources([args.reference, *candidates], tolerance, pairing, args, live, wishes)


def _compare_trainings(
    sources: Sequence[str], tolerance: Tolerance, pairing: PairingRules, args: argparse.Namespace
) -> int:
    """Compare training runs step by step, write the reports and return the exit status."""
    from nndiff.reports.run_files import check_output_folder, write_run_files
    from nndiff.runs.comparison import RunRules, compare_runs
    from nndiff.runs.opening import open_training

    _refuse_replay_options(args)
    _refuse_options_about_tensors(args)
    if pairing.conversion is not None:
        raise UsageError(f"{args.map} is a map of nndiff map, for checkpoints: training runs take pairs of names")
    rules = RunRules(
        pairing.renames,
        pairing.mapping,
        pairing.include,
        pairing.exclude,
        pairing.groups,
        args.filter or RunRules.filter,
    )
    if args.output_dir:
        check_output_folder(args.output_dir, list(sources))
    runs = [open_training(source) for source in sources]
    with ProgressBar("comparing", args.quiet) as bar:
        comparison = compare_runs(runs[0], runs[1:], tolerance, rules, bar)
    status = report_comparison(comparison, args)
    if args.output_dir:
        written = write_run_files(comparison, args.output_dir)
        if not args.quiet:
            from nndiff.reports.output import print_text

            print_text("".join(f"wrote {printable(path)}\n" for path in written))
    return status


def _refuse_run_options(args: argparse.Namespace) -> None:
    """Refuse options about training runs if no run is compared."""
    for option, value in (("--filter", args.filter), ("--output-dir", args.output_dir)):
        if value is not None:
            raise UsageError(f"{option} is for training runs: give folders of TrainingRecorder or of checkpoints")


def _refuse_options_about_tensors(args: argparse.Namespace) -> None:
    """Refuse options about single tensors, which would do nothing to training runs."""
    given = (
        ("--dry-run", args.dry_run),
        ("--accept", args.accept),
        ("--judge", args.judge != Judge.ALL.value),
        ("--strict-dtype", args.strict_dtype),
        ("--no-content", args.no_content),
    )
    for option, is_given in given:
        if is_given:
            raise UsageError(f"{option} would do nothing: training runs are compared step by step; leave it out")


def compare_sources(
    sources: Sequence[str | Source],
    tolerance: Tolerance,
    pairing: PairingRules,
    args: argparse.Namespace,
    models: LiveModels | None = None,
    wishes: Wishes = Wishes(),  # noqa: B008 - frozen
) -> int:
    """Compare the first source with the others, write the reports and return the exit status.

    With models that can run again, experiments tell more of those that differ.
    """
    rules = Rules(parse_accept(args.accept), parse_judge(args.judge), args.strict_dtype)
    plans = plan_comparison(sources[0], sources[1:], pairing)
    if args.dry_run:
        return _print_plans(plans)
    with ProgressBar("comparing", args.quiet) as bar:
        comparison = run_plans(plans, tolerance, rules, pairing.groups, bar)
    if models is not None:
        opened = [plans[0].reference, *(plan.candidate for plan in plans)]
        options = CompareOptions(pairing, tolerance, rules)
        comparison = run_experiments(comparison, opened, options, models, wishes)
    return report_comparison(comparison, args)


def _print_plans(plans: Sequence[Plan]) -> int:
    """Print which names are paired and how; return 0 if all are, 1 if some are, 2 if none is."""
    from nndiff.reports.output import print_text

    is_complete = True
    for plan in plans:
        mismatched_shapes = 0
        lines = [f"plan: {printable(plan.reference.label)} against {printable(plan.label)}"]
        for match, reference, candidate in plan.pairs():
            names = printable(match.reference)
            if match.candidate != match.reference:
                names += f" <- {printable(match.candidate)}"
            shape = str(list(reference.shape))
            if reference.shape != candidate.shape:
                mismatched_shapes += 1
                shape += f" against {list(candidate.shape)}: shapes differ"
            lines.append(f"  {names}  {shape}  by {match.method.value}")
        for group in plan.alignment.groups:
            sides = [" + ".join(printable(name) for name in names) for names in (group.reference, group.candidate)]
            lines.append(f"  {sides[0]} <- {sides[1]}  by {group.method.value}")
        grouped = plan.alignment.list_grouped()
        leftovers = [leftover for leftover in plan.leftovers() if (leftover.side, leftover.name) not in grouped]
        for leftover in leftovers:
            hint = f"  did you mean {printable(leftover.near)!r}?" if leftover.near else ""
            lines.append(f"  only in the {leftover.side}: {printable(leftover.name)}  {list(leftover.shape)}{hint}")
        alone = Counter(leftover.side for leftover in leftovers)
        methods = Counter(match.method.value for match in plan.alignment.matches)
        methods.update(group.method.value for group in plan.alignment.groups)
        counts = ", ".join(f"{count} by {printable(method)}" for method, count in methods.most_common())
        lines.append(
            f"pairs: {counts or 'none'}; only in the reference: {alone[REFERENCE]}; "
            f"only in the candidate: {alone[CANDIDATE]}; shapes differ: {mismatched_shapes}"
        )
        lines += [f"note: {printable(note.text)}" for note in plan.notes]
        print_text("\n".join(lines) + "\n")
        is_complete = is_complete and not leftovers and not mismatched_shapes
    if not any(plan.alignment.matches or plan.alignment.groups for plan in plans):
        from nndiff.commands.trouble import print_trouble

        print_trouble("no name of the reference is paired with one of a candidate: see --rename and --map")
        return 2
    return 0 if is_complete else 1


def _find_models(reference: str, candidates: Sequence[str]) -> list[str]:
    """Return the candidates that are models to run, not sources to read."""
    from nndiff.models.kinds import RESTORED_SUFFIXES, looks_like_model

    can_replay = is_recorded_run(reference)
    models = []
    for name in candidates:
        is_model = _is_surely_model(name)
        if can_replay and not is_model:  # elsewhere a name that is no file is a typing error, not a Python module
            is_restored = name.endswith(RESTORED_SUFFIXES) and os.path.isfile(name)
            is_model = is_restored or looks_like_model(name)
        if is_model:
            models.append(name)
    return models


def _is_surely_model(name: str) -> bool:
    return name.startswith("hf:") or name.partition(":")[0].endswith(".py")


def _refuse_replay_options(args: argparse.Namespace) -> None:
    """Refuse options for a model if no candidate is one: they would do nothing, without a word."""
    idle = []
    for option in REPLAY.options:
        if getattr(args, option.attribute) is not None:
            idle.append(option.flags[-1])
    if idle:
        raise UsageError(
            f"{' and '.join(idle)} would do nothing: no candidate is a model to run; leave it out, or compare a "
            "recording with a MODEL (file.py, hf:DIR, x.nemo)"
        )


def _check_replay(reference: str, models: Sequence[str]) -> None:
    """Refuse what cannot be replayed: the reference must be a recording, and the models must be there."""
    from nndiff.models.kinds import check_name

    if is_recorded_run(reference):
        for model in models:
            check_name(model)
        return
    if _is_surely_model(reference):
        check_name(reference)
    else:
        open_source(reference)  # raises if it is not there or cannot be read
    raise UsageError(
        f"{', '.join(models)} is a model, but {reference} is not a recording to replay: record the reference first "
        "(nndiff record), or compare two models with nndiff run"
    )


def _replay_models(args: argparse.Namespace, models: Sequence[str], folder: str) -> tuple[list[Source], LiveModels]:
    """Record every candidate that is a model in the way the reference was recorded; return all candidates."""
    from nndiff.commands.model_process import RecordingJob, make_live_models, record_in_process

    settings = read_run_settings(args.reference)
    options = [f"--input={settings.inputs}", f"--seed={settings.seed}"]
    named_options = (
        ("--mode", args.mode or settings.mode),
        ("--dropout", settings.dropout),
        ("--ckpt", args.ckpt),
        ("--config", args.config),
    )
    for name, value in named_options:
        if value is not None:
            options.append(f"{name}={value}")
    flags = (("--backward", settings.backward), ("--params", settings.params), ("--inputs", settings.inputs_kept))
    for name, is_set in flags:
        if is_set:
            options.append(name)
    candidates = []
    jobs: dict[int, RecordingJob] = {}
    for number, name in enumerate(args.candidates):
        if name not in models:
            candidates.append(open_source(name))
            continue
        job = RecordingJob(name, os.path.join(folder, str(number)), "candidate", args.python, options)
        candidates.append(record_in_process(job, args.quiet))
        jobs[number] = job
    reference = RecordingJob(args.reference, args.reference, REFERENCE)
    return candidates, make_live_models(reference, jobs, folder, args.quiet, is_live=False)
