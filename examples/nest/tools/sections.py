"""The sections that the tools print, from nndiff's result; nothing is compared here."""

from __future__ import annotations

from collections.abc import Sequence

from nndiff import Comparison
from nndiff.reports.layers import RecordingView, Row, view_recordings
from nndiff.reports.summary import headline
from nndiff.result import Pair
from nndiff.result_json import Rate

WIDTH = 80


def print_title(title: str) -> None:
    """Print the head of a section."""
    print(f"\n{'=' * WIDTH}\n{title}\n{'=' * WIDTH}")


def view(comparison: Comparison) -> RecordingView:
    """Return the only candidate's side of a result."""
    return view_recordings(comparison)[0]


def list_layers(result: RecordingView) -> list[Row]:
    """Return the rows of layers, without those of the model's own outputs."""
    return [row for row in result.rows if not any(pair.is_final_output for pair in row.pairs)]


def print_layers(rows: Sequence[Row]) -> None:
    """Print whether the output of each layer matches, how far it is off, and its shape."""
    print(f"\n{'Layer Name':<55} {'Match':<10} {'Max Abs Diff':<16} {'Shape':<20}\n{'-' * 105}")
    for row in rows:
        if row.forward:
            shape = f"torch.Size({list(row.forward.shape[0])})"
            print(f"{row.label:<55} {mark(row.forward):<10} {difference(row.forward):<16} {shape}")


def print_both_directions(rows: Sequence[Row]) -> None:
    """Print whether the output of each layer and the gradient at it match."""
    print(f"\n{'Layer Name':<55} {'Forward Match':<15} {'Backward Match':<16} {'Max Diff'}\n{'-' * 105}")
    for row in rows:
        print(f"{row.label:<55} {mark(row.forward):<15} {mark(row.backward):<16} {difference(row.worst)}")


def print_gradients(pairs: Sequence[Pair]) -> None:
    """Print whether the gradient of each parameter matches."""
    print(f"Common parameters: {len(pairs)}\n\n{'Parameter Name':<55} {'Match':<10} {'Max Abs Diff'}\n{'-' * 85}")
    for pair in pairs:
        print(f"{pair.name.removesuffix(':param_grad'):<55} {mark(pair):<10} {difference(pair)}")


def mark(pair: Pair | None) -> str:
    """Return a tick or a cross; a dash where there is nothing to compare."""
    if pair is None:
        return "-"
    return "✓" if pair.verdict.passed else "✗"


def difference(pair: Pair) -> str:
    """Return the largest difference; shapes where they differ."""
    if pair.metrics is None:
        return f"{list(pair.shape[0])} != {list(pair.shape[1])}"
    return f"{pair.metrics.max_abs:.2e}"


def print_mismatches(rows: Sequence[Row]) -> None:
    """Print the numbers of each layer that does not match."""
    for row in rows:
        pair = row.forward
        if pair is None or pair.verdict.passed:
            continue
        print(f"\n{row.label}\n  Shape: {list(pair.shape[0])} (NeMo), {list(pair.shape[1])} (local)")
        if pair.metrics:
            print(f"  Max abs diff: {pair.metrics.max_abs:.2e}\n  Mean abs diff: {pair.metrics.mean_abs:.2e}")
            print(f"  Out of tolerance: {pair.metrics.mismatched:,} of {pair.metrics.count:,} elements")


def print_rate(name: str, rate: Rate | None) -> None:
    """Print how many of a kind match."""
    matched, total = (rate.matched, rate.total) if rate else (0, 0)
    print(f"  {name}: {matched}\n  {name.replace('match', 'mismatch').replace('Match', 'Mismatch')}: {total - matched}")


def percent(rate: Rate | None) -> str:
    """Return the share that matches."""
    return f"{100 * rate.matched / rate.total:.2f}%" if rate and rate.total else "nothing compared"


def print_cause(comparison: Comparison) -> None:
    """Print where the two models part and why, as nndiff says it."""
    if comparison.exit_code == 0:
        return
    print(f"\n{headline(comparison)}")
    first = view(comparison).first
    if first is not None:
        print(f"  {first.why}")
    for finding in comparison.findings:
        print(f"  {finding.cause} ({finding.confidence:.0%} sure): {finding.evidence}\n    repair: {finding.repair}")
