"""nndiff map: say how one checkpoint is made of another, as names and operations."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

from nndiff.commands.diff import read_pairing_rules
from nndiff.commands.options import (
    EXCLUDE,
    INCLUDE,
    MAP,
    QUIET,
    RENAME,
    TOLERANCE,
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    flag,
    option,
    parse_path,
)
from nndiff.commands.progress import ProgressBar
from nndiff.comparison import run_plans
from nndiff.conversion import ConversionMap, Entry, Missing
from nndiff.conversion.pairs import build_map
from nndiff.conversion.torch_code import write_torch_code
from nndiff.errors import ConversionError, UsageError
from nndiff.plan import plan_comparison
from nndiff.relations import Relation
from nndiff.reports.output import Output, Sink, print_text, write_outputs
from nndiff.result import Rules
from nndiff.text import counted, first_few, plural, printable
from nndiff.tolerance import choose_tolerance
from nndiff.verdict import RelationKind

_EXAMPLES = """\
  nndiff map gpt2/ nanogpt.pt -o map.json                  write how the second is made of the first
  nndiff diff gpt2/ nanogpt.pt --map map.json              compare after applying it
  nndiff convert gpt2/ --map map.json -o new.safetensors   rewrite the first in the form of the second
  nndiff map gpt2/ nanogpt.pt --torch > convert.py         the same as a few lines of torch

Exit status: 0 every tensor of B can be made of A and agrees, 1 some cannot or do not, 2 trouble.
"""
_OUTPUT = OptionGroup(
    "output",
    (
        option("-o", "--output", metavar="FILE", type=parse_path, help="write the map, as JSON"),
        flag("--torch", help="print the conversion as torch code, from state dict to state dict"),
        QUIET,
    ),
)
_MOST_ROWS = 20  # kinds of operations in the table


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "map",
        run,
        purpose=purpose,
        description="Find out how the tensors of one checkpoint are made of those of another: renamed, transposed, "
        "permuted, fused, split, cast. Every operation is proven on every element.",
        examples=_EXAMPLES,
    )
    parser.add_argument("reference", metavar="A", type=parse_path, help="the checkpoint to start from")
    parser.add_argument("candidate", metavar="B", type=parse_path, help="the checkpoint whose form is wanted")
    add_options(parser, _OUTPUT, TOLERANCE, OptionGroup("pairing", (INCLUDE, EXCLUDE, RENAME, MAP)))
    parser.set_defaults(group=[], no_content=False)


def run(args: argparse.Namespace) -> int:
    """Compare two checkpoints, write the map, print what it holds, and return the exit status."""
    sink = Sink(args.output) if args.output else None
    if sink is not None:
        sink.refuse_to_overwrite([args.reference, args.candidate], "is one of the two checkpoints")
    tolerance = choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor)
    pairing = read_pairing_rules(args)
    if pairing.conversion is not None:
        raise UsageError(f"{args.map} is a map already; --map takes pairs of names here")
    plans = plan_comparison(args.reference, [args.candidate], pairing)
    plan = plans[0]
    if "recording" in (plan.reference.kind, plan.candidate.kind):
        raise UsageError("nndiff map is about checkpoints, and one side is a recording")
    with ProgressBar("comparing", args.quiet) as bar:
        comparison = run_plans(plans, tolerance, Rules(), {}, bar)
    conversion = build_map(plan.reference, plan.candidate, comparison.pairs, comparison.leftovers)
    if not conversion.entries:
        reasons = dict.fromkeys(_describe_reason(item) for item in conversion.missing)
        raise ConversionError(
            f"no tensor of {args.candidate} can be made of {args.reference}: {first_few(list(reasons))}; tensors that "
            "belong together are paired with --rename or --map"
        )
    code = write_torch_code(conversion) if args.torch else ""
    if sink is not None:
        write_outputs([Output(sink, conversion.to_text())])
    if code:
        print_text(code, for_people=False)
    else:
        lines = list(describe_map(conversion))
        if sink is not None:
            lines.append(f"wrote {printable(args.output)}")
        print_text("\n".join(lines[:1] if args.quiet else lines) + "\n")
    return 0 if is_complete(conversion) else 1


def is_complete(conversion: ConversionMap) -> bool:
    """Return True if every tensor can be made, and agrees."""
    return not any(missing.blocks for missing in conversion.missing) and all(
        entry.proven for entry in conversion.entries
    )


def describe_map(conversion: ConversionMap) -> Iterator[str]:
    """Yield what a map holds, line by line: how much can be made, by which operations, what cannot."""
    blocking = [missing for missing in conversion.missing if missing.blocks]
    total = len(conversion.entries) + len(blocking)
    unproven = [entry.target for entry in conversion.entries if not entry.proven]
    parts = [f"{len(conversion.entries):,} of {plural(total, 'tensor')} can be made"]
    if unproven:
        parts.append(f"{len(unproven):,} of them with other values")
    sign = "✓" if is_complete(conversion) else "✗"
    yield f"{sign} {printable(conversion.reference)} to {printable(conversion.candidate)}: {', '.join(parts)}"
    yield from _list_operations(conversion.entries)
    if unproven:
        yield f"  values differ: {first_few([printable(name) for name in unproven])}"
    reasons = Counter(_describe_reason(missing) for missing in conversion.missing)
    for reason, _ in reasons.most_common(_MOST_ROWS):
        names = [printable(item.target) for item in conversion.missing if _describe_reason(item) == reason]
        yield f"  missing, {reason}: {first_few(names)}"
    if conversion.unused:
        yield f"  unused: {counted([printable(name) for name in conversion.unused], 'tensor')}"


def _describe_reason(missing: Missing) -> str:
    return missing.reason.value + (f" ({printable(missing.text, 80)})" if missing.text else "")


def _list_operations(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield how many tensors are made by which operations, the most frequent first."""
    names_of: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        renamed = entry.sources != (entry.target,)
        text = Relation(RelationKind.LAYOUT, candidate=entry.operations).text if entry.operations else ""
        kind = entry.kind.value if entry.kind else "renamed" if renamed else "as it is"
        names_of.setdefault((kind, text), []).append(printable(entry.target))
    rows = sorted(names_of.items(), key=lambda row: -len(row[1]))
    for (kind, text), names in rows[:_MOST_ROWS]:
        how = f"{kind}: {printable(text, 100)}" if text else kind
        yield f"  {len(names):>6,}  {how}  ({names[0]}{', ...' if len(names) > 1 else ''})"
    if len(rows) > _MOST_ROWS:
        yield f"  {sum(len(names) for _, names in rows[_MOST_ROWS:]):>6,}  in {len(rows) - _MOST_ROWS:,} other ways"
