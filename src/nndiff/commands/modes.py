"""nndiff modes: record every mode of a model and compare them all with the reference."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nndiff.commands.options import (
    REPORTS,
    TOLERANCE,
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    check_reports,
    flag,
    option,
    parse_path,
    parse_size,
    repeatable,
    report_comparison,
)
from nndiff.commands.progress import ProgressBar
from nndiff.commands.trouble import print_trouble
from nndiff.errors import MissingExtraError, NndiffError, ReportError, UsageError
from nndiff.facts.modes import BlamedLayer, Direction, RecommendedLayers
from nndiff.modes.compare import ModeRules, compare_modes
from nndiff.modes.thresholds import TARGET_METRICS, check_metric, parse_limits, parse_number, parse_threshold
from nndiff.reports import check_specs, write_reports
from nndiff.reports.wording import select_candidate
from nndiff.result import Note, NoteSlug
from nndiff.text import printable
from nndiff.tolerance import choose_tolerance

if TYPE_CHECKING:
    from nndiff.modes.definition import Definition
    from nndiff.result import Comparison

_EXAMPLES = """\
  nndiff modes FILE.py -o layer_outputs                 record the reference and every mode, compare them all
  nndiff modes FILE.py -o layer_outputs --preset fp_only                the reference alone, to compare later
  nndiff modes FILE.py -o layer_outputs --only 2-1,2-4 --layers all     some modes, every layer
  nndiff modes --compare layer_outputs 2-1              compare what was recorded, by nndiff or by other scripts
  nndiff modes --compare layer_outputs --reference fp16 --save-comparison results/fp16.json
  nndiff modes hf:./my-model --preset standard          ready modes on a Hugging Face folder: no file needed
  nndiff modes FILE.py --fail-under sqnr=20 --fail-over mse=1e-3        for CI: exit 1 if a mode misses it
  nndiff modes FILE.py --only int4 --blame --recommend sqnr=30          which layers to keep at full precision

FILE.py defines
  def model(): ...                      the reference, made afresh for every run
  def samples(count=10): ...            a list of inputs: a tensor, a tuple, or a dict of keyword arguments
  modes = {"fp16": fn, "2-1": fn}       fn(model) or fn(model, samples) returns the model to run
  presets = {"essential": ["fp32", "2-1"]}          optional
  reference = "fp32"                    optional: the name of the untouched model()
  def labels(count=10): ...             optional: a tensor of labels per sample, for perplexity
  logits = True                         optional: the output is logits (default: told by its name and shape)
nndiff.modes has ready modes for any model: fp16, bf16, fp8-e4m3, int8-channel, int4-group, w8a8-static, ...

--fail-under, --fail-over, ranks and --recommend are about the model's output, or the last layer where it was not saved.
Exit status: 0 the same or requirements met, 1 different or requirements missed, 2 trouble.
"""

_RECORD = OptionGroup(
    "what is recorded",
    (
        option("-o", "--output", metavar="DIR", type=parse_path, help="keep the outputs of all modes in this folder"),
        option("--only", metavar="NAME,...", help="only these modes; ready modes may be named too"),
        option("--preset", metavar="NAME", help="all (default), fp_only, quant_only, standard, or one of FILE.py"),
        option("--samples", type=parse_size, default=10, metavar="N", help="number of samples (default: 10)"),
        option("--seq-len", type=parse_size, metavar="T", help="length of samples (default: as FILE.py; hf: 512)"),
        option("--seed", type=int, default=42, help="seed of models and samples (default: 42)"),
        option(
            "--layers",
            default="first,last",
            metavar="WHICH",
            help="first,last (default): the first and last of the repeated blocks; all; or PATTERN,... of module paths",
        ),
        option("--layout", choices=("recording", "npy"), default="recording", help="how outputs are stored"),
        flag("--overwrite", help="record finished modes again"),
    ),
)
_COMPARE = OptionGroup(
    "comparing",
    (
        option("--compare", metavar="DIR", type=parse_path, help="record nothing: compare the modes in this folder"),
        option("--reference", metavar="NAME", help="compare with this mode (default: that of FILE.py, or fp32)"),
        repeatable("--fail-under", metavar="METRIC=N", help="exit 1 if a mode is below, as in sqnr=20; repeatable"),
        repeatable("--fail-over", metavar="METRIC=N", help="exit 1 if a mode is above, as in mse=1e-3; repeatable"),
        repeatable("--rate", metavar="METRIC=A,B,C", help="where ratings end, as in mse=1e-4,1e-3,1e-2; repeatable"),
        flag("--blame", help="find the layers that the error of the output comes from"),
        option("--recommend", metavar="METRIC=N", help="which layers to keep to reach this: sqnr, mse or top1"),
        option("--save-comparison", metavar="FILE.json", type=parse_path, help="save the result"),
        option(
            "--comparisons",
            metavar="DIR",
            type=parse_path,
            help="folder for the result of each mode and the summary (default: comparisons in the folder of the modes)",
        ),
    ),
)


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "modes",
        run,
        purpose=purpose,
        description="Record a model and its variants (quantised, cast, ...) on the same samples, and compare them all "
        "with the reference, layer by layer.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="FILE.py [MODE ...]",
        help="the file or MODEL, then modes; with --compare modes only",
    )
    add_options(parser, _RECORD, _COMPARE, TOLERANCE, REPORTS)
    parser.set_defaults(dry_run=False, more_words=[])


def run(args: argparse.Namespace) -> int:
    """Record what is missing, compare, report; return the exit status."""
    args.names += args.more_words
    rules = ModeRules(
        choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor),
        parse_limits(args.rate),
        (
            *(parse_threshold(text, Direction.UNDER) for text in args.fail_under),
            *(parse_threshold(text, Direction.OVER) for text in args.fail_over),
        ),
    )
    target = parse_number(args.recommend, "--recommend", TARGET_METRICS) if args.recommend else None
    check_reports(args)
    if args.save_comparison:
        os.makedirs(os.path.dirname(args.save_comparison) or ".", exist_ok=True)
        check_specs([f"json:{args.save_comparison}"])
    if args.compare is not None:
        _refuse_recording_options(args)
        comparison = _compare_folder(args, args.compare, args.reference or "fp32", args.names, rules)
        return _report(comparison, args, args.compare)
    if not args.names:
        raise UsageError("give a FILE.py (or another MODEL) to record, or --compare DIR to compare what was recorded")
    if args.output is not None:
        return _record_and_compare(args, args.output, rules, target)
    with tempfile.TemporaryDirectory(prefix="nndiff-modes-") as folder:
        return _record_and_compare(args, folder, rules, target)


def _refuse_recording_options(args: argparse.Namespace) -> None:
    """Refuse options about running models where none is run, lest they be taken for heeded."""
    given = {
        "-o": args.output,
        "--only": args.only,
        "--preset": args.preset,
        "--overwrite": args.overwrite,
        "--blame": args.blame,
        "--recommend": args.recommend,
    }
    idle = [name for name, value in given.items() if value]
    if idle:
        raise UsageError(
            f"{' and '.join(idle)} would run models, and --compare only reads what was recorded: give FILE.py and -o "
            "instead of --compare"
        )


@dataclass
class _Narrator:
    """Tell on stderr how far the modes are."""

    total: int
    quiet: bool
    done: int = 0
    start: float = field(default_factory=time.monotonic)
    bar: ProgressBar | None = None

    def show_samples(self, mode: str, done: int, total: int) -> None:
        """Show how many samples of a mode are done."""
        if self.bar is None:
            self.bar = ProgressBar(f"[{self.done + 1}/{self.total}] {printable(mode)}", self.quiet)
            self.bar.__enter__()
        self.bar(done, total)

    def tell_mode(self, mode: str, what: str) -> None:
        """Say what became of a mode."""
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
            self.bar = None
        self.done += 1
        if not self.quiet:
            seconds = time.monotonic() - self.start
            sys.stderr.write(
                f"[{self.done}/{self.total}] {printable(mode)}: {printable(what, 500)} ({seconds:.1f} s)\n"
            )
        self.start = time.monotonic()


def _record_and_compare(
    args: argparse.Namespace, folder: str, rules: ModeRules, target: tuple[str, float] | None
) -> int:
    """Record the reference and the modes that are asked for, then compare them."""
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "to run a model", "torch")
    from nndiff.modes.definition import SampleOptions, load_definition
    from nndiff.modes.layouts import Layout
    from nndiff.modes.record import RecordSettings, record_modes
    from nndiff.modes.selection import choose_modes, choose_reference

    name, *modes = args.names
    if args.only:
        modes += [mode for mode in args.only.split(",") if mode]
    definition = load_definition(name, SampleOptions(args.samples, args.seq_len, args.seed))
    reference = choose_reference(definition, args.reference)
    chosen = choose_modes(definition, reference, modes, args.preset)
    narrator = _Narrator(len(chosen) + 1, args.quiet)
    record_modes(
        definition,
        reference,
        chosen,
        folder,
        RecordSettings(args.layers, Layout(args.layout), args.seq_len),
        overwrite=args.overwrite,
        progress=narrator.show_samples,
        report=narrator.tell_mode,
    )
    if not chosen:
        _print_alone(args, reference)
        return 0
    comparison = _compare_folder(args, folder, reference, chosen, rules)
    if args.blame or target is not None:
        comparison = _add_blame(comparison, definition, target, args)
    return _report(comparison, args, args.output)


def _print_alone(args: argparse.Namespace, reference: str) -> None:
    from nndiff.reports.output import print_text

    where = f" in {args.output}" if args.output else ""
    line = f"recorded the reference {reference!r}{where}; there is nothing to compare yet: record a mode next"
    print_text(printable(line) + "\n")


def _compare_folder(
    args: argparse.Namespace, folder: str, reference: str, modes: list[str], rules: ModeRules
) -> Comparison:
    recorder = "nndiff modes " + (shlex.quote(args.names[0]) if args.compare is None else "FILE.py")
    with ProgressBar("comparing", args.quiet) as bar:
        return compare_modes(
            folder, reference, modes, rules, recorder=recorder, progress=lambda mode, done, total: bar(done, total)
        )


def _add_blame(
    comparison: Comparison, definition: Definition, target: tuple[str, float] | None, args: argparse.Namespace
) -> Comparison:
    """Return the result with the layers to blame and to keep, for every mode that ran."""
    from nndiff.models.user_code import user_code
    from nndiff.modes.blame import blame_layers
    from nndiff.modes.recommendation import recommend_layers

    assert comparison.modes is not None  # compare_modes made it
    facts = comparison.modes
    if target is not None:
        check_metric("--recommend", target[0], facts.modes)
    samples = definition.make_samples()
    blame: dict[str, tuple[BlamedLayer, ...]] = {}
    recommend: dict[str, RecommendedLayers] = {}
    notes = list(comparison.notes)

    def make_reference() -> Any:
        return definition.build_mode(facts.reference, samples)

    for mode in facts.modes:
        if mode.failed is not None:
            continue

        def make_candidate(name: str = mode.mode) -> Any:
            return definition.build_mode(name, samples)

        try:
            title = f"blame of {printable(mode.mode)}"
            with user_code(f"mode {mode.mode!r}"), ProgressBar(title, args.quiet) as bar:
                layers = blame_layers(make_reference, make_candidate, samples, progress=bar)
                if args.blame:
                    blame[mode.mode] = tuple(layers)
                if target is not None:
                    advice = recommend_layers(make_reference, make_candidate, samples, target, layers)
                    recommend[mode.mode] = RecommendedLayers(
                        tuple(advice.keep), advice.predicted, advice.verified, advice.target, advice.metric
                    )
        except NndiffError as error:  # the others go on
            notes.append(Note(NoteSlug.MODE, f"{mode.mode}: the layers to blame could not be found: {error}"))
    return replace(comparison, modes=replace(facts, blame=blame, recommend=recommend), notes=tuple(notes))


def _report(comparison: Comparison, args: argparse.Namespace, folder: str | None) -> int:
    """Write the reports, the saved comparison and the folder of comparisons; return the exit status."""
    if args.save_comparison:
        write_reports(comparison, [f"json:{args.save_comparison}"])
    if args.comparisons:
        _write_comparisons(comparison, args.comparisons)
    elif folder is not None:
        try:
            _write_comparisons(comparison, os.path.join(folder, "comparisons"))
        except (OSError, ReportError) as error:  # a folder that can only be read is compared all the same
            print_trouble(f"the comparisons were not saved: {error}")
    return report_comparison(comparison, args)


def _write_comparisons(comparison: Comparison, folder: str) -> None:
    """Write each mode's comparison into a folder, and of several modes the summary."""
    os.makedirs(folder, exist_ok=True)
    against = f"vs_{comparison.reference.label}"
    for side in comparison.candidates:
        path = os.path.join(folder, f"mode_{side.label}_{against}.json")
        write_reports(select_candidate(comparison, side), [f"json:{path}"])
    if len(comparison.candidates) > 1:
        summary = os.path.join(folder, f"summary_{against}")
        formats = ["json", "csv", "md"] + (["png"] if find_spec("matplotlib") is not None else [])
        write_reports(comparison, [f"{name}:{summary}.{name}" for name in formats])
