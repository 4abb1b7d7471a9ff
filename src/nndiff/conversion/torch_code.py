"""A map as a few lines of torch: a function from one state dict to the other, with loops where entries repeat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from nndiff.conversion.map import ConversionMap, Entry
from nndiff.errors import ConversionError
from nndiff.names import natural_key
from nndiff.relations import Operation
from nndiff.text import printable

_NUMBER = re.compile(r"(?<![0-9A-Za-z_])\d+(?![0-9A-Za-z_])")  # a part of a dotted name that is all digits
_VARIABLES = "ijklmn"


@dataclass(frozen=True)
class _Template:
    """Hold a name whose numbers are taken out."""

    parts: tuple[str, ...]  # the text around the numbers
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> _Template:
        """Return the template of a name; a number with leading zeros stays text."""
        parts, numbers, end = [], [], 0
        for match in _NUMBER.finditer(name):
            if str(int(match[0])) == match[0] and len(match[0]) < 10:
                parts.append(name[end : match.start()])
                numbers.append(int(match[0]))
                end = match.end()
        return cls((*parts, name[end:]), tuple(numbers))

    def write(self, numbers: Sequence[str]) -> str:
        """Return the name as Python text, an f-string where numbers are variables."""
        if all(number.isdigit() for number in numbers):
            return repr(_join_parts(self.parts, numbers))
        parts = [part.replace("{", "{{").replace("}", "}}") for part in self.parts]
        braced = [number if number.isdigit() else "{" + number + "}" for number in numbers]
        return "f" + repr(_join_parts(parts, braced))


def _join_parts(parts: Sequence[str], numbers: Sequence[str]) -> str:
    text = parts[0]
    for number, part in zip(numbers, parts[1:], strict=True):
        text += number + part
    return text


def write_torch_code(conversion: ConversionMap) -> str:
    """Return the source of `convert(state)`, which returns the state dict that the map leads to."""
    groups: dict[Any, list[Entry]] = {}
    for entry in sorted(conversion.entries, key=lambda entry: natural_key(entry.target)):
        templates = [_Template.of(name).parts for name in (entry.target, *entry.sources)]
        groups.setdefault((tuple(templates), entry.operations, entry.dtype), []).append(entry)
    dtypes = {entry.dtype for entry in conversion.entries}
    loops: dict[str, list[str]] = {}  # by their first line, in order; "" for what is not repeated
    for entries in groups.values():
        header, line = _write_group(entries)
        cast = f".to(torch.{entries[0].dtype})" if len(dtypes) > 1 else ""
        loops.setdefault(header, []).append(line + cast)
    imports = ["from itertools import product", ""] if any(" product(" in header for header in loops) else []
    lines = [
        *imports,
        "import torch",
        "",
        "",
        "def convert(state):",
        f'    """Return the tensors of {_quote(conversion.reference)} as {_quote(conversion.candidate)} has them."""',
        "    new = {}",
    ]
    for header, body in loops.items():
        if header:
            lines.append(f"    {header}")
        indent = "        " if header else "    "
        lines += [indent + line for line in body]
    for missing in conversion.missing:
        lines.append(f"    # not made: {printable(missing.target)} ({missing.reason.value})")
    cast = f".to(torch.{dtypes.pop()})" if len(dtypes) == 1 else ""
    lines.append(f"    return {{name: tensor{cast}.contiguous() for name, tensor in new.items()}}")
    return "\n".join(lines) + "\n"


def _quote(label: str) -> str:
    return printable(label, 120).replace("\\", "/").replace('"', "'")


def _write_group(entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the first line of a loop over entries that differ in their numbers only, and the line inside."""
    templates = [[_Template.of(name) for name in (entry.target, *entry.sources)] for entry in entries]
    columns = list(zip(*([n for template in row for n in template.numbers] for row in templates), strict=True))
    variables: dict[tuple[int, ...], str] = {}  # values in the loop: name
    words: list[str] = []
    for values in columns:
        shift = _find_shift(values, variables)
        if len(set(values)) == 1:
            words.append(str(values[0]))
        elif shift is not None:
            words.append(shift)
        else:
            variables[values] = _VARIABLES[len(variables)] if len(variables) < len(_VARIABLES) else f"n{len(variables)}"
            words.append(variables[values])
    names, start = [], 0
    for template in templates[0]:
        stop = start + len(template.numbers)
        names.append(template.write(words[start:stop]))
        start = stop
    arrays = [f"state[{name}]" for name in names[1:]]
    line = f"new[{names[0]}] = {_write_operations(entries[0], arrays)}"
    return _write_header(variables), line


def _find_shift(values: tuple[int, ...], variables: dict[tuple[int, ...], str]) -> str | None:
    """Return how a column of numbers follows from a variable: `i`, `i + 1`; None if from none."""
    for known, name in variables.items():
        distances = {value - number for value, number in zip(values, known, strict=True)}
        if len(distances) == 1:
            distance = distances.pop()
            return name if distance == 0 else f"{name} {'+' if distance > 0 else '-'} {abs(distance)}"
    return None


def _write_header(variables: dict[tuple[int, ...], str]) -> str:
    """Return the first line of the loop: over a range where the numbers are one, else over all of them."""
    if not variables:
        return ""
    if len(variables) == 1:
        ((values, name),) = variables.items()
        numbers = range(values[0], values[0] + len(values))
        if list(values) == list(numbers):
            return f"for {name} in {_write_range(numbers)}:"
        return f"for {name} in {list(values)}:"
    names = ", ".join(variables.values())
    rows = list(zip(*variables, strict=True))
    ranges = [range(min(values), max(values) + 1) for values in variables]
    if rows == list(product(*ranges)):
        return f"for {names} in product({', '.join(map(_write_range, ranges))}):"
    return f"for {names} in {rows}:"


def _write_range(numbers: range) -> str:
    return f"range({numbers.stop})" if numbers.start == 0 else f"range({numbers.start}, {numbers.stop})"


def _write_operations(entry: Entry, arrays: list[str]) -> str:
    """Return the expression that makes a target of its sources."""
    for operation in entry.operations:
        arrays = _write_operation(operation, arrays)
    if len(arrays) != 1:
        raise ConversionError(f"the map's entry of {printable(entry.target)!r} leaves {len(arrays)} arrays")
    return arrays[0]


def _write_operation(operation: Operation, arrays: list[str]) -> list[str]:
    """Return the expressions after one operation; those on values compute in float64, as nndiff does."""
    values: Any = operation
    match operation.op:
        case "arrange":
            return [arrays[number] for number in values.order]
        case "concatenate":
            return [f"torch.cat([{', '.join(arrays)}], {values.axis})"]
        case "stack":
            return [f"torch.stack([{', '.join(arrays)}], {values.axis})"]
        case "add":
            return [" + ".join(arrays)]
        case "weight_norm":
            size, direction = (f"{array}.double()" for array in arrays)
            length = f"{direction}.square().sum({tuple(values.axes)}, keepdim=True).sqrt()"
            return [f"{size} * {direction} / {length}"]
        case "add_low_rank":
            weight, down, up = (f"{array}.double()" for array in arrays)
            return [f"({weight} + {values.scale!r} * ({up} @ {down}){'.T' if values.transposed else ''})"]
        case "fold_norm" if len(arrays) == 2:
            return [_write_along(values.axis, "mul", f"{arrays[1]}.double()", arrays[0])]
        case "fold_batch_norm":
            *layer, gamma, beta, mean, variance = (f"{array}.double()" for array in arrays)
            factor = f"({gamma} / ({variance} + {values.eps!r}).sqrt())"
            shift = f"({layer[1]} - {mean})" if values.has_bias else f"-{mean}"
            return [_write_along(values.axis, "mul", factor, arrays[0]), f"({beta} + {shift} * {factor})"]
        case "reshape":
            after = f".reshape({_write_sizes(values.shape)})"
        case "flatten":
            after = ".flatten()"
        case "permute":
            after = ".T" if tuple(values.axes) == (1, 0) else f".permute({_write_sizes(values.axes)})"
        case "slice":
            after = f".narrow({values.axis}, {values.start}, {values.stop - values.start})"
        case "take":
            after = f".index_select({values.axis}, torch.tensor({list(values.places)}))"
        case "expand":
            after = f".expand({_write_sizes(values.shape)})"
        case "multiply":
            after = f".double().mul({values.factor!r})"
        case "shift":
            after = f".double().add({values.number!r})"
        case "multiply_along":
            return [_write_along(values.axis, "mul", _write_numbers(values.factors), array) for array in arrays]
        case "shift_along":
            return [_write_along(values.axis, "add", _write_numbers(values.numbers), array) for array in arrays]
        case "round":
            after = f".to(torch.{values.dtype})"
        case _:
            raise ConversionError(
                f"the map holds an operation that --torch does not write ({operation.text}): use nndiff convert"
            )
    return [array + after for array in arrays]


def _write_sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) if sizes else "()"


def _write_numbers(numbers: Sequence[float]) -> str:
    return f"torch.tensor({list(numbers)}, dtype=torch.double)"


def _write_along(axis: int, method: str, numbers: str, array: str) -> str:
    """Return an array combined with one number for each place along an axis."""
    return f"{array}.double().movedim({axis}, -1).{method}({numbers}).movedim(-1, {axis})"
