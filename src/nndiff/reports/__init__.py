"""Reports: one file per format behind one small Protocol; each only reads the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from nndiff.errors import UsageError
from nndiff.reports.output import Output, write_outputs
from nndiff.reports.sink import Sink, for_path, for_stdout

if TYPE_CHECKING:
    from nndiff.result import Comparison

__all__ = ["FORMATS", "Report", "ReportOptions", "check_specs", "get_report", "write_report", "write_reports"]


@dataclass(frozen=True)
class ReportOptions:
    """Say how much a report shows and how; machine formats always hold everything."""

    top: int = 20  # rows of a table
    width: int | None = None  # columns; None: those of the terminal
    color: bool | None = None  # None: only on a terminal
    quiet: bool = False  # the verdict alone
    verbose: bool = False  # every row, the identical ones too


class Report(Protocol):
    """Turn a result into a document."""

    name: str

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""


# Modules by format: imported when asked for, so that a JSON report never pays for rich.
FORMATS: dict[str, str] = {
    "terminal": "nndiff.reports.terminal:TerminalReport",
    "json": "nndiff.reports.json_report:JsonReport",
    "csv": "nndiff.reports.csv_report:CsvReport",
    "md": "nndiff.reports.markdown:MarkdownReport",
    "junit": "nndiff.reports.junit:JunitReport",
    "html": "nndiff.reports.html:HtmlReport",
}
_MEANT = {"markdown": "md", "xml": "junit", "text": "terminal", "txt": "terminal", "htm": "html", "stdout": "terminal"}


def get_report(name: str) -> Report:
    """Return the report of a format by its name."""
    if name not in FORMATS:
        raise UsageError(f"unknown report format {name!r}: {_advice(name)}")
    module, _, member = FORMATS[name].partition(":")
    report: Report = getattr(import_module(module), member)()
    return report


def check_specs(specs: Iterable[str]) -> None:
    """Refuse unknown formats, missing folders and clashes before any work is done."""
    sinks = []
    for name, sink in map(_parse, specs):
        if name not in FORMATS:
            raise UsageError(f"unknown report format {name!r}: {_advice(name)}")
        if sink.path is not None and not os.path.isdir(os.path.dirname(sink.path) or "."):
            raise UsageError(f"{sink.path}: the folder for this report does not exist")
        sinks.append(sink)
    _refuse_clashes(sinks)


def write_report(comparison: Comparison, spec: str, options: ReportOptions | None = None) -> None:
    """Write one report as `FORMAT[:PATH]` says; no path or `-` is standard output."""
    write_reports(comparison, [spec], options)


def write_reports(
    comparison: Comparison,
    specs: Sequence[str],
    options: ReportOptions | None = None,
    protected: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Write several reports: all are rendered before one is written, and no source is overwritten."""
    plan = [(get_report(name), sink) for name, sink in map(_parse, specs)]
    _refuse_clashes([sink for _, sink in plan])
    for _, sink in plan:
        sink.refuse(_source_files(comparison), "is one of the compared files")
        sink.refuse(protected, "is the file being read")
    write_outputs([_rendered(comparison, report, sink, options or ReportOptions()) for report, sink in plan])


def _parse(spec: str) -> tuple[str, Sink]:
    name, colon, path = spec.partition(":")
    if colon and not path:
        raise UsageError(f"--report {spec!r} has no path after the colon: give one, or {name!r} alone to print it")
    if "\0" in path:
        raise UsageError(f"--report {spec!r} has a NUL in its path")
    return name, for_stdout() if path in ("", "-") else for_path(path)


def _rendered(comparison: Comparison, report: Report, sink: Sink, options: ReportOptions) -> Output:
    shown = ReportOptions(
        top=options.top,
        width=sink.width if options.width is None else options.width,
        color=sink.color if options.color is None else options.color,
        quiet=options.quiet and sink.path is None,  # quiet is about the terminal: a file is whole
        verbose=options.verbose,
    )
    return Output(sink, report.render(comparison, shown), for_people=report.name == "terminal")


def _refuse_clashes(sinks: Sequence[Sink]) -> None:
    seen: set[str | None] = set()
    for sink in sinks:
        if sink.key in seen:
            where = "standard output" if sink.path is None else repr(sink.path)
            raise UsageError(f"two reports cannot both go to {where}: give each a path of its own, as in json:PATH")
        seen.add(sink.key)


def _source_files(comparison: Comparison) -> Iterable[str]:
    for side in (comparison.reference, *comparison.candidates):
        yield side.label
        yield side.label.partition("::")[0]  # FILE::key names a part of a file


def _advice(name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    ending = _MEANT.get(ending, ending)
    if "." in name and ending in FORMATS:
        return f"did you mean {ending}:{name}?"
    import difflib

    close = difflib.get_close_matches(name.lower(), FORMATS, n=1)
    meant = _MEANT.get(name.lower()) or (close[0] if close else None)
    known = ", ".join(FORMATS)
    return f"did you mean {meant!r}? Known are {known}" if meant else f"known are {known}"
