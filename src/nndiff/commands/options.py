"""The options of all commands: one entry for each option, in the groups that commands take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nndiff.errors import UsageError
from nndiff.reports import FORMATS, PICTURES, ReportOptions, check_specs, get_report_path, write_reports
from nndiff.text import printable
from nndiff.tolerance import DEFAULT_ATOL, DEFAULT_RTOL, NOISE_FACTOR

if TYPE_CHECKING:
    from nndiff.result import Comparison

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


@dataclass(frozen=True)
class Option:
    """One option: its flags, and what argparse is told about it."""

    flags: tuple[str, ...]
    settings: Mapping[str, Any]
    excludes: str = ""  # options with the same word here exclude each other

    @property
    def attribute(self) -> str:
        """Return the name of the attribute that holds the parsed value."""
        return self.settings.get("dest") or self.flags[-1].lstrip("-").replace("-", "_")

    def write_words(self, value: Any) -> list[str]:
        """Return the command line words that give the option this value."""
        flag = self.flags[-1]
        if value is None or value is False:
            return []
        if value is True:
            return [flag]
        values = value if isinstance(value, list) else [value]
        return [f"{flag}={item}" for item in values]


@dataclass(frozen=True)
class OptionGroup:
    """Options that stand together in the help of a command."""

    title: str
    options: tuple[Option, ...]
    about: str | None = None


def option(*flags: str, excludes: str = "", **settings: Any) -> Option:
    """Return one option; the settings are those of `ArgumentParser.add_argument`."""
    return Option(flags, settings, excludes)


def flag(*flags: str, excludes: str = "", **settings: Any) -> Option:
    """Return one option that takes no value."""
    return Option(flags, {"action": "store_true", **settings}, excludes)


def repeatable(*flags: str, **settings: Any) -> Option:
    """Return one option that may be given several times."""
    return Option(flags, {"action": "append", "default": [], **settings})


def parse_path(text: str) -> str:
    """Return a path from the command line; refuse an empty one, which an unset shell variable leaves."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give the path of a file or folder")
    return text


def parse_count(text: str) -> int:
    """Return a whole number of 0 or more."""
    return _parse_whole_number(text, 0)


def parse_size(text: str) -> int:
    """Return a whole number of 1 or more."""
    return _parse_whole_number(text, 1)


def _parse_whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {text!r}")
    return number


# How much is printed.
QUIET = flag("-q", "--quiet", excludes="amount", help="print only the verdict")
VERBOSE = flag("-v", "--verbose", excludes="amount", help="show every row, also the identical ones")
REPORTS = OptionGroup(
    "reports",
    (
        repeatable(
            "--report",
            metavar="FORMAT[:PATH]",
            help=f"write a report ({', '.join((*FORMATS, *PICTURES))}) to PATH, or print it if there is no PATH; "
            "repeatable (default: the terminal report)",
        ),
        option("--top", type=parse_count, default=20, metavar="N", help="show the N worst rows (default: 20)"),
        QUIET,
        VERBOSE,
    ),
)

# What is compared with what, and how it is judged.
TOLERANCE = OptionGroup(
    "tolerance",
    (
        option(
            "--atol",
            action="append",
            metavar="A",
            help=f"absolute tolerance (default: {DEFAULT_ATOL:g}); PATTERN=A for tensors that match; repeatable",
        ),
        option(
            "--rtol",
            action="append",
            metavar="R",
            help=f"relative tolerance (default: {DEFAULT_RTOL:g}); PATTERN=R for tensors that match; repeatable",
        ),
        option(
            "--tolerance",
            choices=("auto", "noise"),
            help="auto: choose both by dtype, as torch.testing.assert_close does; noise: by the noise floor that "
            "nndiff record --noise measured of the reference",
        ),
        option(
            "--noise-factor",
            type=float,
            metavar="N",
            help=f"for --tolerance noise: by how many times its floor a tensor may be off (default: {NOISE_FACTOR:g})",
        ),
    ),
    about="a candidate passes if |cand - ref| <= atol + rtol * |ref|",
)
JUDGEMENT = OptionGroup(
    "judgement",
    (
        repeatable(
            "--accept",
            metavar="KIND,...",
            help="relations that count as agreement (layout, cast, scale, fold, vocab); extra: one-sided outputs",
        ),
        option(
            "--judge",
            choices=("all", "outputs"),
            default="all",
            help="outputs: only what goes in and comes out of the model decides (default: all)",
        ),
        option("--strict-dtype", action="store_true", help="tensors of another dtype are different"),
    ),
    about="tied weights always count as the same; layout and fold do inside recordings",
)
INCLUDE = repeatable("--include", metavar="PATTERN", help="only tensors that match; repeatable")
EXCLUDE = repeatable("--exclude", metavar="PATTERN", help="skip tensors that match; repeatable")
RENAME = repeatable(
    "--rename",
    metavar="REGEX=>REPLACEMENT",
    help="rewrite candidate names into reference names; repeatable, applied in order",
)
MAP = option(
    "--map",
    metavar="FILE",
    type=parse_path,
    help='pairs of tensor or module names: JSON {"ref": "cand"}, or lines of \'REF => CAND\'; or what nndiff map '
    "wrote, which is applied to the reference first",
)
PAIRING = OptionGroup(
    "pairing",
    (
        INCLUDE,
        EXCLUDE,
        repeatable(
            "--group", metavar="NAME=PATTERN", help="report totals for the tensors that match, as NAME; repeatable"
        ),
        RENAME,
        MAP,
        flag("--dry-run", help="print what would be compared with what"),
    ),
)

CONTENT = OptionGroup(
    "content",
    (flag("--no-content", help="pair by names alone; unpaired tensors are not read"),),
    about="tensors of checkpoints that names leave over are paired by what they hold",
)

# Which model runs, on which inputs.
CKPT = option("--ckpt", metavar="FILE", help="load these weights into the model; every name must match")
CONFIG = option("--config", metavar="FILE", help="config of a NeMo model or a Lightning checkpoint")
INPUT = repeatable(
    "--input",
    metavar="SPEC",
    help="NAME=DTYPE[SHAPE][:LOW..HIGH], drawn from the seed (B and T in the shape stand for --batch-size and "
    "--seq-len; a number as NAME is a position), repeatable; or one .npz, .safetensors or .pt file, a recording, or "
    "a folder of saved outputs",
)
SIZES = (
    option("--batch-size", type=parse_size, metavar="B", help="batch size of generated inputs"),
    option("--seq-len", type=parse_size, metavar="T", help="sequence length of generated inputs"),
)
PLACEMENT = (
    option("--device", metavar="NAME", help="cpu, cuda, ... (default: where the model is)"),
    option("--dtype", metavar="NAME", help="convert the model and its float inputs: float64, bfloat16, ..."),
)
MODEL = OptionGroup(
    "model and inputs",
    (
        CKPT,
        flag("--partial", help="let --ckpt skip tensors that only the checkpoint or only the model has"),
        CONFIG,
        option("--variant", metavar="NAME", help="build one of the `variants` that the model's file defines"),
        INPUT,
        *SIZES,
        *PLACEMENT,
    ),
)
SHARED_INPUTS = OptionGroup(
    "inputs of both models",
    (INPUT, *SIZES, flag("--own-inputs", help="let each model make its own inputs"), *PLACEMENT),
)
REPLAY_SWITCH = option(
    "--replay",
    action=argparse.BooleanOptionalAction,
    help="run each candidate once more on the reference's tensors, to find every module at fault (default: if "
    "something differs)",
)
NOISE_SWITCH = option(
    "--noise",
    action=argparse.BooleanOptionalAction,
    help="measure how far rounding alone moves the reference (default: if something differs)",
)
EXPERIMENTS = OptionGroup("experiments, at most 4 passes more", (REPLAY_SWITCH, NOISE_SWITCH))

REPLAY = OptionGroup(
    "if a candidate is a MODEL, which is run on the inputs of the reference recording",
    (
        CKPT,
        CONFIG,
        option("--python", metavar="PYTHON", help="Python interpreter or environment that runs the model"),
        option("--mode", choices=("train", "eval"), help="run the model in this mode (default: as recorded)"),
        REPLAY_SWITCH,
    ),
)

RUNS = OptionGroup(
    "if all sides are training runs",
    (
        option(
            "--filter",
            choices=("all", "mlp", "backbone"),
            help="let only the head (mlp: names with mlp or fc) or the rest (backbone) decide (default: all)",
        ),
        option(
            "--output-dir",
            metavar="DIR",
            type=parse_path,
            help="write model_comparison.png, model_comparison.csv and detailed_comparison.json to DIR; with several "
            "candidates to a folder of each in DIR",
        ),
    ),
)


def get_side_options(prefix: str, side: str) -> tuple[Option, ...]:
    """Return the options of one of the two models of `nndiff run`."""
    return (
        option(f"--{prefix}-ckpt", metavar="FILE", help=f"load these weights into the {side}"),
        option(f"--{prefix}-config", metavar="FILE", help=f"config of the {side}, for NeMo"),
        option(
            f"--{prefix}-variant", metavar="NAME", help=f"build one of the `variants` that the {side}'s file defines"
        ),
        option(f"--{prefix}-python", metavar="PYTHON", help=f"Python interpreter or environment that runs the {side}"),
    )


# How a model runs, and what is recorded.
RUN = OptionGroup(
    "run",
    (
        option(
            "--seed",
            type=int,
            help="seed of Python, NumPy and torch (default: the seed saved with --input, or else 42)",
        ),
        flag("--backward", help="also run the loss and the backward pass"),
        option("--mode", choices=("train", "eval"), help="put the model in this mode (default: leave it as it is)"),
        option("--dropout", choices=("off",), help="off: disable dropout in train mode"),
        option(
            "--repeat", type=parse_size, default=1, metavar="N", help="run N times and check that the runs are equal"
        ),
        flag("--deterministic", help="make torch use deterministic algorithms"),
    ),
)
KEEP = OptionGroup(
    "what is recorded",
    (
        repeatable(
            "--keep",
            metavar="LEVEL[:PATTERN]",
            help="how much to keep of the modules that match: digest, stats, sketch (1024 values) or full (default); "
            "repeatable",
        ),
        option("--depth", type=int, metavar="N", help="only modules down to this depth (0: only the model itself)"),
        flag("--leaves", help="only the model and modules without children"),
        flag("--params", help="also record parameters and buffers"),
        flag("--inputs", dest="inputs_kept", help="also record the inputs of every module, as --keep says"),
    ),
)
MODULES = OptionGroup(
    "which modules are recorded",
    (
        repeatable("--include", metavar="PATTERN", help="only modules that match; repeatable"),
        repeatable("--exclude", metavar="PATTERN", help="skip modules that match; repeatable"),
    ),
)


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    purpose: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a sub-command and return its parser, to which the command adds its arguments."""
    parser = subparsers.add_parser(
        name,
        help=purpose,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_options(parser: argparse.ArgumentParser, *groups: OptionGroup) -> None:
    """Add groups of options to the parser of a command."""
    for group in groups:
        section = parser.add_argument_group(group.title, group.about)
        exclusive_sections: dict[str, argparse._MutuallyExclusiveGroup] = {}
        for entry in group.options:
            if not entry.excludes:
                section.add_argument(*entry.flags, **entry.settings)
                continue
            if entry.excludes not in exclusive_sections:
                exclusive_sections[entry.excludes] = section.add_mutually_exclusive_group()
            exclusive_sections[entry.excludes].add_argument(*entry.flags, **entry.settings)


def check_reports(args: argparse.Namespace) -> None:
    """Refuse reports that cannot be written, before any work is done."""
    if args.report and args.dry_run:
        raise UsageError("--dry-run compares nothing, so there is no report to write: drop --report or --dry-run")
    check_specs(args.report)


def report_comparison(
    comparison: Comparison, args: argparse.Namespace, protected: Iterable[str | os.PathLike[str]] = ()
) -> int:
    """Write the reports asked for and return the exit status; files in `protected` are never overwritten."""
    amount = ReportOptions(top=args.top, quiet=args.quiet, verbose=args.verbose)
    paths = [path for path in map(get_report_path, args.report) if path]
    only_files = len(paths) == len(args.report)  # a report that goes to a file does not silence the terminal
    specs = [*args.report, "terminal"] if only_files else args.report
    write_reports(comparison, specs, amount, protected)
    if only_files and paths and not args.quiet:
        from nndiff.reports.output import print_text

        print_text("".join(f"wrote {printable(path)}\n" for path in paths))
    if comparison.exit_code == 2:
        from nndiff.commands.trouble import print_trouble
        from nndiff.reports.summary import headline

        print_trouble(headline(comparison))
    return comparison.exit_code
