"""The JSON of a training run: steps, layouts and the description as text, and back; every claim is checked."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.recording.format.lines import Fields, dump_json, parse_json_object
from nndiff.runs.files import FORMAT, KEEP_LEVELS, LINE_LIMIT, SKETCH_LIMIT, VERSION
from nndiff.runs.run import BatchPart, RunDescription, Step, TensorKey, TensorKind
from nndiff.tensors import MOST_AXES, Shape
from nndiff.text import printable

_KINDS = {kind.value: kind for kind in TensorKind}
_MOST_ELEMENTS = 1 << 60
_SAMPLE_BYTES = 8
_DIGEST = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True)
class Layout:
    """Say which tensors a state holds, row by row; steps that hold the same tensors share one."""

    keys: tuple[TensorKey, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    widths: NDArray[np.int64]

    @cached_property
    def rows(self) -> dict[TensorKey, int]:
        """Return the row of each tensor."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return where the sketch of each row begins, and at last where all end."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.widths)])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Return the number of elements of each tensor."""
        return np.array([math.prod(shape) for shape in self.shapes], np.int64)


@dataclass(frozen=True)
class StepLine:
    """Hold one line of steps.jsonl: a step, or the state before the first one, and where its tensors are."""

    step: Step | None  # None: the state before the first step
    state: int | None = None  # number of the file with its tensors
    layout: int | None = None
    crc: int | None = None  # of the arrays in that file; None: written before files had one


@dataclass(frozen=True)
class RunHeader:
    """Hold what run.json says."""

    description: RunDescription
    seed: int


def split_lines(window: Window) -> Iterator[tuple[int, bytes]]:
    """Yield each finished line with its number, from 1 on; a last line without an end was cut off and is left out."""
    unfinished, number = b"", 0
    for chunk in window.chunks():
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            number += 1
            yield number, line
        if len(unfinished) > LINE_LIMIT:
            raise UnsafeFileError(window.path, f"has a line of more than {LINE_LIMIT} bytes")


def layout_to_line(layout: Layout) -> bytes:
    """Return a layout as one line of JSON."""
    rows = []
    for key, shape, dtype, width in zip(layout.keys, layout.shapes, layout.dtypes, layout.widths.tolist(), strict=True):
        rows.append([key.kind.value, key.name, key.state, list(shape), dtype, width])
    return dump_json({"tensors": rows}).encode() + b"\n"


def line_to_layout(where: str, line: bytes) -> Layout:
    """Return the layout of one line."""
    rows = parse_json_object(where, line).get("tensors")
    if not isinstance(rows, list):
        raise SourceError(where, "'tensors' is not a list")
    keys, shapes, dtypes, widths = [], [], [], []
    for row in rows:
        if not isinstance(row, list) or len(row) != 6:
            raise SourceError(where, "a tensor is not a list of kind, name, state, shape, dtype and width")
        kind, name, state, shape, dtype, width = row
        if kind not in _KINDS or not isinstance(name, str) or not isinstance(state, str) or not isinstance(dtype, str):
            raise SourceError(where, "a tensor has no kind of docs/run-format.md, or its name or dtype is not text")
        if not isinstance(shape, list) or len(shape) > MOST_AXES:
            raise SourceError(where, f"the shape of {printable(name, 80)!r} is not a list of at most {MOST_AXES} sizes")
        sizes = [*shape, width]
        if not all(type(size) is int and 0 <= size < _MOST_ELEMENTS for size in sizes):
            raise SourceError(where, f"{printable(name, 80)!r} has sizes that are not whole numbers of zero or more")
        if math.prod(shape) >= _MOST_ELEMENTS or width > 2 * math.prod(shape):
            raise SourceError(where, f"{printable(name, 80)!r} has {width} numbers kept for a shape of {shape}")
        keys.append(TensorKey(_KINDS[kind], name, state))
        shapes.append(tuple(shape))
        dtypes.append(dtype)
        widths.append(width)
    if len(set(keys)) != len(keys):
        raise SourceError(where, "lists a tensor twice")
    if sum(widths) > SKETCH_LIMIT:
        raise UnsafeFileError(where, f"claims sketches of {sum(widths):,} numbers; more than {SKETCH_LIMIT:,} not read")
    return Layout(tuple(keys), tuple(shapes), tuple(dtypes), np.array(widths, np.int64))


def step_to_line(line: StepLine) -> bytes:
    """Return a step as one line of JSON, without its empty fields."""
    body: dict[str, Any] = {}
    step = line.step
    if step is None:
        body["initial"] = True
    else:
        body["step"] = step.number
        if step.epoch is not None:
            body["epoch"] = step.epoch
        if step.batch is not None:
            body["batch"] = step.batch
        body["scalars"] = dict(step.scalars)
        if step.data is not None:
            body["data"] = [_part_to_json(part) for part in step.data]
        if step.random_states:
            body["random"] = dict(step.random_states)
    if line.state is not None:
        body |= {"state": line.state, "layout": line.layout}
        if line.crc is not None:
            body["crc"] = line.crc
    return dump_json(body).encode() + b"\n"


def _part_to_json(part: BatchPart) -> dict[str, Any]:
    body = {"path": part.path, "shape": list(part.shape), "dtype": part.dtype, "digest": part.digest}
    if part.samples:
        body["samples"] = base64.b64encode(part.samples).decode()
    return body


def line_to_step(where: str, line: bytes) -> StepLine:
    """Return the step of one line."""
    fields = _StepFields(where, parse_json_object(where, line))
    state, layout = fields.get_optional_integer("state"), fields.get_optional_integer("layout")
    crc = fields.get_optional_integer("crc")
    if (state is None) != (layout is None):
        raise SourceError(where, "'state' and 'layout' are not given together")
    if fields.body.get("initial") is True:
        return StepLine(None, state, layout, crc)
    step = Step(
        number=fields.get_integer("step"),
        epoch=fields.get_optional_integer("epoch"),
        batch=fields.get_optional_integer("batch"),
        scalars=fields.get_scalars(),
        data=fields.get_data(),
        random_states=fields.get_digests("random"),
        has_tensors=state is not None,
    )
    return StepLine(step, state, layout, crc)


class _StepFields(Fields):
    """Take the fields of a step out of a JSON object that nobody vouches for."""

    def make_error(self, name: str, expected: str) -> SourceError:
        return SourceError(self.where, f"{name!r} of a step is not {expected}")

    def get_object(self, name: str) -> dict[str, Any]:
        value = self.body.get(name, {})
        if not isinstance(value, dict):
            raise self.make_error(name, "an object")
        return value

    def get_scalars(self) -> dict[str, float]:
        numbers = Fields(self.where, self.get_object("scalars"))
        return {name: numbers.get_number(name) for name in numbers.body}

    def get_digests(self, name: str) -> dict[str, str]:
        digests = Fields(self.where, self.get_object(name))
        return {generator: digests.get_match(generator, _DIGEST) or "" for generator in digests.body}

    def get_data(self) -> tuple[BatchPart, ...] | None:
        bodies = self.body.get("data")
        if bodies is None:
            return None
        if not isinstance(bodies, list) or not all(isinstance(body, dict) for body in bodies):
            raise self.make_error("data", "a list of objects")
        return tuple(_StepFields(self.where, body).get_part() for body in bodies)

    def get_part(self) -> BatchPart:
        shape = self.get_integers("shape", MOST_AXES)
        digest = self.get_match("digest", _DIGEST)
        if digest is None:
            raise self.make_error("digest", "given")
        encoded = self.body.get("samples", "")
        try:
            samples = base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise self.make_error("samples", "base64") from None
        if samples and (not shape or len(samples) != _SAMPLE_BYTES * shape[0]):
            raise self.make_error("samples", f"{_SAMPLE_BYTES} bytes for each sample along the first axis")
        return BatchPart(self.get_text("path"), shape, self.get_text("dtype"), digest, samples)


def header_to_text(header: RunHeader) -> str:
    """Return run.json, one line per item: the format comes first, so that a glance recognises it."""
    description = header.description
    trainable = description.trainable
    body = {
        "format": FORMAT,
        "version": VERSION,
        "keep": description.keep,
        "seed": header.seed,
        "model": description.model,
        "optimizer": description.optimizer,
        "param_groups": [list(group) for group in description.param_groups],
        "trainable": None if trainable is None else sorted(trainable),
        "environment": dict(description.environment),
        "notes": list(description.notes),
    }
    return "{\n" + ",\n".join(f" {dump_json(name)}: {dump_json(value)}" for name, value in body.items()) + "\n}\n"


def text_to_header(path: str, text: bytes) -> RunHeader:
    """Return what run.json says; raise SourceError if this nndiff cannot read the run."""
    body = parse_json_object(path, text)
    if body.get("format") != FORMAT:
        raise SourceError(path, f"the format is {printable(repr(body.get('format')), 80)}, not {FORMAT!r}")
    version = body.get("version")
    if type(version) is not int or version < 1:
        raise SourceError(path, "the version is not a whole number of one or more")
    if version > VERSION:
        raise SourceError(path, f"has version {version}, this nndiff reads up to {VERSION}: update nndiff")
    fields = _HeaderFields(path, body)
    keep = fields.get_text("keep")
    if keep not in KEEP_LEVELS:
        raise SourceError(path, "'keep' is not one of " + ", ".join(KEEP_LEVELS))
    groups = body.get("param_groups", [])
    environment = body.get("environment", {})
    if not isinstance(groups, list) or not isinstance(environment, dict):
        raise SourceError(path, "'param_groups' is not a list, or 'environment' is not an object")
    trainable = None
    if body.get("trainable") is not None:
        trainable = frozenset(fields.check_texts("trainable", body["trainable"]))
    description = RunDescription(
        keep=keep,
        optimizer=fields.get_text("optimizer", ""),
        model=fields.get_text("model", ""),
        param_groups=tuple(fields.check_texts("param_groups", group) for group in groups),
        trainable=trainable,
        environment=environment,
        notes=fields.check_texts("notes", body.get("notes", [])),
    )
    return RunHeader(description, fields.get_integer("seed", 0))


class _HeaderFields(Fields):
    """Take the fields of run.json out of a JSON object that nobody vouches for."""

    def make_error(self, name: str, expected: str) -> SourceError:
        return SourceError(self.where, f"{name!r} is not {expected}")

    def check_texts(self, name: str, texts: Any) -> tuple[str, ...]:
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self.make_error(name, "a list of texts")
        return tuple(texts)
