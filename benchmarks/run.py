"""Run every bench_*.py beside this file and print the ratios; --record adds them to HISTORY.md."""

from __future__ import annotations

import argparse
import datetime
import importlib
import math
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from timing import Row  # noqa: E402  # beside this file, not installed

HEAD = ("what", "seconds", "against", "seconds", "ratio", "of the best", "in CPU time", "target", "")


def cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "MISSED"}[row.met]
    kind = "faster" if row.is_speedup else "of it"
    if math.isnan(row.ours):  # could not be run: the first cell says why
        return (row.what, "", row.against, "", "", "", "", row.target, "")
    ratio = f"{row.ratio:.2f}x {kind}"
    others = (f"{other:.2f}x" if other else "" for other in (row.best_ratio, row.cpu_ratio))
    return (row.what, f"{row.ours:.4f}", row.against, f"{row.theirs:.4f}", ratio, *others, row.target, met)


def line(parts: tuple[str, ...], widths: list[int]) -> str:
    return "| " + " | ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)) + " |"


def table(rows: list[Row]) -> str:
    grid = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(parts[column]) for parts in grid) for column in range(len(HEAD))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(HEAD, widths), rule, *(line(parts, widths) for parts in grid[1:])])


def cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(row.split(":", 1)[1].strip() for row in text.splitlines() if row.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment() -> str:
    import numpy
    import torch

    from nndiff.stats.engine import describe_engine

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpu()}, {cores} cores, engine {describe_engine()}, numpy {numpy.__version__}, torch {torch.__version__}"


def measured(names: list[str]) -> Iterator[Row]:
    for path in sorted(HERE.glob("bench_*.py")):
        if not names or path.stem.removeprefix("bench_") in names:
            for row in importlib.import_module(path.stem).rows():
                print("  ".join(cells(row)), file=sys.stderr, flush=True)
                yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which (tensors, files, ...); all of them by default")
    parser.add_argument("--record", action="store_true", help="add the table to HISTORY.md")
    asked = parser.parse_args()
    rows = list(measured(asked.names))
    text = f"## {datetime.date.today()}\n\n{environment()}\n\n{table(rows)}\n"
    print(text)
    if asked.record:
        with open(HERE / "HISTORY.md", "a", encoding="utf-8") as history:
            history.write("\n" + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
