"""Reports: one file per format behind one small Protocol; each only reads the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from nndiff.errors import ReportError, UsageError
from nndiff.reports.output import Output, Sink, get_stdout_sink, write_outputs

if TYPE_CHECKING:
    from nndiff.result import Comparison

__all__ = [
    "FORMATS",
    "PICTURES",
    "Picture",
    "Report",
    "ReportOptions",
    "check_specs",
    "draw_picture",
    "get_report",
    "write_report",
    "write_reports",
]


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


class Picture(Protocol):
    """Turn a result into a picture."""

    name: str

    def draw(self, comparison: Comparison) -> bytes:
        """Return the file of the picture."""


# Modules by format: imported when asked for, so that a JSON report never pays for rich.
FORMATS: dict[str, str] = {
    "terminal": "nndiff.reports.terminal:TerminalReport",
    "json": "nndiff.reports.json_report:JsonReport",
    "csv": "nndiff.reports.csv_report:CsvReport",
    "md": "nndiff.reports.markdown:MarkdownReport",
    "junit": "nndiff.reports.junit:JunitReport",
    "html": "nndiff.reports.html.page:HtmlReport",
}
PICTURES = ("png",)
# Kinds of comparison that show something other than tensors have reports of their own.
_OF_KIND: dict[tuple[str, str], str] = {
    ("run", "terminal"): "nndiff.reports.run_terminal:RunTerminalReport",
    ("run", "csv"): "nndiff.reports.run_csv:RunCsvReport",
    ("run", "md"): "nndiff.reports.run_markdown:RunMarkdownReport",
    ("run", "junit"): "nndiff.reports.run_junit:RunJunitReport",
    ("run", "html"): "nndiff.reports.html.run_page:RunHtmlReport",
    ("run", "png"): "nndiff.reports.run_picture:RunPicture",
    ("modes", "csv"): "nndiff.reports.modes_csv:ModesCsvReport",
    ("modes", "md"): "nndiff.reports.modes_markdown:ModesMarkdownReport",
    ("modes", "junit"): "nndiff.reports.modes_junit:ModesJunitReport",
    ("modes", "html"): "nndiff.reports.modes_html:ModesHtmlReport",
    ("modes", "png"): "nndiff.reports.modes_picture:ModesPicture",
}
_OTHER_NAMES = {
    "markdown": "md",
    "xml": "junit",
    "text": "terminal",
    "txt": "terminal",
    "htm": "html",
    "stdout": "terminal",
}


@dataclass
class _ReportByKind:
    """Render a result by the report of its kind."""

    name: str

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        place = _OF_KIND.get((comparison.kind, self.name)) or FORMATS[self.name]
        report: Report = _load_member(place)()
        return report.render(comparison, options)


def get_report(name: str) -> Report:
    """Return the report of a format by its name."""
    _check_format(name)
    if name in PICTURES:
        raise UsageError(f"{name} is a picture, not a text: write it to a file, {name}:PATH")
    return _ReportByKind(name)


def draw_picture(comparison: Comparison, name: str = "png") -> bytes:
    """Return a picture of a result, as the bytes of its file."""
    place = _OF_KIND.get((comparison.kind, name))
    if place is None:
        raise ReportError(
            f"{name} pictures show training runs and modes, not a comparison of kind {comparison.kind!r}: use html"
        )
    picture: Picture = _load_member(place)()
    return picture.draw(comparison)


def _load_member(place: str) -> Any:
    module, _, member = place.partition(":")
    return getattr(import_module(module), member)


def check_specs(specs: Iterable[str]) -> None:
    """Refuse unknown formats, missing folders and clashes before any work is done."""
    sinks = []
    for spec in specs:
        name, sink = _parse_spec(spec)
        _check_format(name)
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
    reports = []
    for spec in specs:
        name, sink = _parse_spec(spec)
        _check_format(name)
        reports.append((name, sink))
    _refuse_clashes([sink for _, sink in reports])
    for _, sink in reports:
        sink.refuse_to_overwrite(_list_source_files(comparison), "is one of the compared files")
        sink.refuse_to_overwrite(protected, "is the file being read")
    outputs = []
    for name, sink in reports:
        if name in PICTURES:
            outputs.append(Output(sink, draw_picture(comparison, name)))
            continue
        shown = _adapt_options(options or ReportOptions(), sink)
        outputs.append(Output(sink, get_report(name).render(comparison, shown), for_people=name == "terminal"))
    write_outputs(outputs)


def get_report_path(spec: str) -> str:
    """Return the file that a report goes to; an empty text for standard output."""
    return _parse_spec(spec)[1].path or ""


def _parse_spec(spec: str) -> tuple[str, Sink]:
    name, colon, path = spec.partition(":")
    if colon and not path:
        raise UsageError(f"--report {spec!r} has no path after the colon: give one, or {name!r} alone to print it")
    if "\0" in path:
        raise UsageError(f"--report {spec!r} has a NUL in its path")
    if name in PICTURES and path in ("", "-"):
        raise UsageError(f"--report {spec!r} is a picture and cannot be printed: give a path, as in {name}:PATH")
    return name, get_stdout_sink() if path in ("", "-") else Sink(path)


def _adapt_options(options: ReportOptions, sink: Sink) -> ReportOptions:
    """Return options with the width and colours of the place the report goes to."""
    return replace(
        options,
        width=sink.width if options.width is None else options.width,
        color=sink.color if options.color is None else options.color,
        quiet=options.quiet and sink.path is None,  # quiet is about the terminal: a file is whole
    )


def _refuse_clashes(sinks: Sequence[Sink]) -> None:
    seen: set[str | None] = set()
    for sink in sinks:
        if sink.key in seen:
            where = "standard output" if sink.path is None else repr(sink.path)
            raise UsageError(f"two reports cannot both go to {where}: give each a path of its own, as in json:PATH")
        seen.add(sink.key)


def _list_source_files(comparison: Comparison) -> Iterator[str]:
    for side in (comparison.reference, *comparison.candidates):
        yield side.label
        yield side.label.partition("::")[0]  # FILE::key names a part of a file


def _check_format(name: str) -> None:
    """Refuse an unknown format, naming the one that was probably meant."""
    formats = (*FORMATS, *PICTURES)
    if name in formats:
        return
    ending = name.rpartition(".")[2].lower()
    ending = _OTHER_NAMES.get(ending, ending)
    if "." in name and ending in formats:
        raise UsageError(f"unknown report format {name!r}: did you mean {ending}:{name}?")
    import difflib

    close = difflib.get_close_matches(name.lower(), formats, n=1)
    meant = _OTHER_NAMES.get(name.lower()) or (close[0] if close else None)
    known = ", ".join(formats)
    advice = f"did you mean {meant!r}? The formats are {known}" if meant else f"the formats are {known}"
    raise UsageError(f"unknown report format {name!r}: {advice}")
