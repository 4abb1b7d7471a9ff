"""Whether a checkpoint loads into implementations: as text for people, as JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from nndiff.reports.summary import headline
from nndiff.result import Pair
from nndiff.result_json import to_dict
from nndiff.text import plural, printable
from nndiff.verdict import Verdict
from nndiff.verification import (
    FROM_CHECKPOINT,
    FROM_SAVE,
    Check,
    CheckKind,
    CheckResult,
    Direction,
    LoadedSide,
    Verification,
)

FORMAT, VERSION = "nndiff.verification", 1  # 1: the first
_WIDTH = 60
_TESTS = {
    Direction.BIDIRECTIONAL: "BIDIRECTIONAL TEST: Loading checkpoint in both models and comparing",
    Direction.NEMO_TO_LOCAL: "NEMO TO LOCAL TEST: Loading NeMo checkpoint in local model",
    Direction.LOCAL_TO_NEMO: "LOCAL TO NEMO TEST: Loading local checkpoint in NeMo model",
}
_MOST_LISTED = 10  # names under each count, unless everything is asked for


def render_json(verification: Verification) -> str:
    """Return everything that was found out, with the whole comparison of each check."""
    sides = []
    for side in verification.sides:
        sides.append(
            {
                "label": side.label,
                "model": side.model,
                "class": side.class_name,
                "parameters": side.parameters,
                "trainable": side.trainable,
                "failure": side.failure or None,
            }
        )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "checkpoint": verification.checkpoint,
        "direction": verification.direction.value,
        "nemo_available": verification.nemo_available,
        "exit_code": verification.exit_code,
        "untested": verification.untested or None,
        "sides": sides,
        "checks": [_describe_check(check) for check in verification.checks],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _describe_check(check: Check) -> dict[str, Any]:
    return {
        "kind": check.kind.value,
        "reference": check.reference,
        "candidate": check.candidate,
        "result": check.result.value,
        "failure": check.failure or None,
        "common": check.common,
        "only_reference": check.only_reference,
        "only_candidate": check.only_candidate,
        "shape_mismatches": [pair.name for pair in check.shape_mismatches],
        "value_mismatches": [pair.name for pair in check.value_mismatches],
        "comparison": to_dict(check.comparison) if check.comparison else None,
    }


def render_text(verification: Verification, *, quiet: bool = False, verbose: bool = False) -> str:
    """Return the report for people: header, each implementation, each comparison, and the last line."""
    if quiet:
        return _conclude(verification) + "\n"
    most = None if verbose else _MOST_LISTED
    lines = _frame(
        "Checkpoint Compatibility Verification",
        f"Checkpoint: {printable(verification.checkpoint)}",
        f"Direction: {verification.direction.value}",
        f"NeMo available: {verification.nemo_available}",
    )
    lines += ["", "#" * _WIDTH, _TESTS[verification.direction], "#" * _WIDTH]
    for side in verification.sides:
        lines += _show_side(side, verification.checkpoint)
        for check in verification.checks:
            if check.kind is CheckKind.CHECKPOINT and check.candidate == side.label:
                lines += _show_states(check, most)
    for check in verification.checks:
        if check.kind is CheckKind.STATE_DICTS:
            lines += _frame(f"Comparing {_name_check(check)}")
            lines += _list_mismatches(check, most)
    round_trips = [check for check in verification.checks if check.kind is CheckKind.ROUND_TRIP]
    if round_trips:
        lines += _frame("Saving and loading")
        for check in round_trips:
            lines += _show_states(check, most)
    for check in verification.checks:
        if check.kind is CheckKind.FORWARD:
            lines += _frame(f"Comparing {_name_check(check)}")
            lines += _show_outputs(check)
    if verification.untested:
        lines += ["", f"NOT TESTED: {verification.untested}"]
    return "\n".join([*lines, "", _conclude(verification)]).lstrip() + "\n"


def _frame(title: str, *facts: str) -> list[str]:
    bar = "=" * _WIDTH
    return ["", bar, title, bar, *facts, *([bar] if facts else [])]


def _name_check(check: Check) -> str:
    """Return what is compared with what."""
    names = {
        CheckKind.CHECKPOINT: f"{check.reference} → {check.candidate}",
        CheckKind.STATE_DICTS: f"state dicts: {check.candidate} vs {check.reference}",
        CheckKind.ROUND_TRIP: f"saved by {check.reference} → loaded by {check.candidate}",
        CheckKind.FORWARD: f"outputs: {check.candidate} vs {check.reference}",
    }
    return printable(names[check.kind])


def _show_side(side: LoadedSide, checkpoint: str) -> list[str]:
    lines = _frame(f"Loading {printable(side.title)} from checkpoint: {printable(checkpoint)}")
    if side.failure:
        lines.append(f"✗ Failed to load: {printable(side.failure)}")
    else:
        kind = "" if side.is_nemo else f"{os.path.splitext(checkpoint)[1]} checkpoint ".lstrip()
        lines.append(f"✓ Successfully loaded {printable(kind)}as {printable(side.class_name)}")
    if side.class_name:
        lines += [f"  Total parameters: {side.parameters:,}", f"  Trainable parameters: {side.trainable:,}"]
    return lines


def _show_states(check: Check, most: int | None) -> list[str]:
    """Return one line for a check that passed, and all that is wrong for one that did not."""
    name = _name_check(check)
    if check.result is CheckResult.PASSED:
        return [f"✓ {name}: {plural(check.common, 'tensor')}, same bits"]
    if check.failure:
        return [f"✗ {name}: {printable(check.failure)}"]
    return [f"✗ {name}", *_list_mismatches(check, most)]


def _list_mismatches(check: Check, most: int | None) -> list[str]:
    """Return the counts of keys, shapes and values that do not fit, each with the names."""
    sides = check.reference, check.candidate
    if check.kind is CheckKind.ROUND_TRIP:
        sides = FROM_CHECKPOINT, FROM_SAVE
    lines = ["", "Keys comparison:", f"  Common keys: {check.common:,}"]
    for side, names in ((sides[1], check.only_candidate), (sides[0], check.only_reference)):
        lines.append(f"  Only in {printable(side)}: {len(names):,}")
        lines += _list_lines([printable(name) for name in names], most, indent=4)
    shapes = [
        f"{printable(pair.name)}: {list(pair.shape[0])} → {list(pair.shape[1])}" for pair in check.shape_mismatches
    ]
    values = [f"{printable(pair.name)}: {_describe_values(pair)}" for pair in check.value_mismatches]
    lines += ["", f"Shape mismatches: {len(shapes):,}", *_list_lines(shapes, most)]
    lines += ["", f"Value mismatches: {len(values):,}", *_list_lines(values, most), ""]
    if check.result is CheckResult.PASSED:
        return [*lines, "✓ State dicts are identical!"]
    if check.result is CheckResult.NOTHING:
        return [*lines, "✗ Nothing was compared: no name is in both; --rename REGEX=>REPLACEMENT pairs other names"]
    findings = check.comparison.findings if check.comparison else ()
    return [*lines, *(f"  {printable(finding.evidence)}" for finding in findings), "✗ State dicts differ"]


def _list_lines(texts: Sequence[str], most: int | None, indent: int = 2) -> list[str]:
    lines = [" " * indent + text for text in texts[:most]]
    if len(texts) > len(lines):
        lines.append(f"{' ' * indent}... and {len(texts) - len(lines):,} more (-v shows all)")
    return lines


def _describe_values(pair: Pair) -> str:
    """Return how the values of two tensors of one shape differ."""
    texts = []
    if pair.dtype[0] != pair.dtype[1]:
        texts.append(f"{pair.dtype[0]} → {pair.dtype[1]}")
    metrics = pair.stored
    if pair.verdict is Verdict.NOT_COMPARED or metrics is None:
        texts.append("could not be compared")
    elif metrics.nonfinite_cand == metrics.count and not metrics.nonfinite_ref:
        texts.append("all NaN or infinite, as if not loaded")
    elif metrics.unequal:
        texts.append(f"{metrics.unequal:,} of {plural(metrics.count, 'element')}")
        texts.append("not finite" if metrics.nonfinite_unequal else f"max abs {metrics.max_abs:.3g}")
    elif pair.dtype[0] == pair.dtype[1]:
        texts.append("equal values in other bits (the sign of a zero, or a NaN)")
    if pair.related is not None:
        texts.append(f"equal after {pair.related.relation.text}")
    return ", ".join(texts)


def _show_outputs(check: Check) -> list[str]:
    if check.comparison is None:
        return [f"✗ {printable(check.failure)}"]
    sign = "✓" if check.result is CheckResult.PASSED else "✗"
    lines = [f"{sign} {headline(check.comparison)}"]
    if check.result is CheckResult.FAILED:
        lines.append("  `nndiff run` shows every layer")
    return lines


def _conclude(verification: Verification) -> str:
    """Return the last line: success, or what failed."""
    failures = [f"{side.label} cannot load the checkpoint" for side in verification.sides if side.failure]
    failures += [_name_check(check) for check in verification.failed]
    if failures:
        return f"✗ FAILED: {printable('; '.join(failures))}"
    if verification.empty or not verification.checks:
        names = "; ".join(_name_check(check) for check in verification.empty)
        return f"✗ NOT VERIFIED: nothing was compared{f' ({names})' if names else ''}"
    if not verification.is_complete:
        return "✗ NOT VERIFIED: what was tested is compatible, and NeMo could not be tested"
    if verification.untested:
        return "✓ SUCCESS: what was tested is compatible; NeMo was not tested"
    return "✓ SUCCESS: Checkpoints are fully compatible!"
