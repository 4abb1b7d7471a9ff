"""What every source looks like once it is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nndiff.errors import SourceError
from nndiff.names import looks_trainable
from nndiff.result import Side
from nndiff.tensors import TensorRef

# what a recording knows of its model and a result need not repeat
_TOO_LONG = frozenset(("modules", "shared", "dropout_active", "inputs", "held"))


@dataclass(frozen=True)
class Source:
    """Hold named tensors in order, and what else was found beside them."""

    label: str
    kind: str  # safetensors, torch, nemo, npz, recording, ...
    tensors: Mapping[str, TensorRef]
    part: str = ""  # the key inside the file the tensors were taken from
    others: Mapping[str, str] = field(default_factory=dict)  # what else the file holds: {key: short description}
    foreign: tuple[str, ...] = ()  # classes that were met and not loaded
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def side(self) -> Side:
        """Describe the source for a result."""
        notes = list(self.notes)
        if self.part:
            notes.append(f"compared: {self.part!r}")
        if self.others and self.kind != "recording":
            notes.append(f"also in the file and not compared: {self._beside()}")
        return Side(
            label=self.label,
            kind=self.kind,
            tensors=len(self.tensors),
            elements=sum(tensor.count for tensor in self.tensors.values()),
            trainable=sum(each.count for each in self.tensors.values() if looks_trainable(each.name, each.dtype)),
            nbytes=sum(tensor.nbytes for tensor in self.tensors.values()),
            notes=tuple(notes),
            meta={key: value for key, value in self.meta.items() if key not in _TOO_LONG},
        )

    def _beside(self) -> str:
        """Name what holds tensors, count the rest."""
        holding = [f"{key} ({what})" for key, what in self.others.items() if "tensor" in what or "folder" in what]
        rest = len(self.others) - len(holding)
        plain = [f"{rest} {'entry' if rest == 1 else 'entries'} without tensors"] if rest else []
        return ", ".join([*holding[:5], *([f"{len(holding) - 5} more"] if len(holding) > 5 else []), *plain])


def by_name(label: str, tensors: Iterable[TensorRef]) -> dict[str, TensorRef]:
    """Return tensors by name in order; two of one name are an error, never a choice."""
    named: dict[str, TensorRef] = {}
    for tensor in tensors:
        if tensor.name in named:
            raise SourceError(label, f"holds two tensors of the name {shown(tensor.name)}")
        named[tensor.name] = tensor
    return named


def below(source: Source, part: str) -> Source:
    """Return the tensors below a dotted name, as if that were the file."""
    if not part:
        return source
    found = {
        name[len(part) + 1 :]: tensor.renamed(name[len(part) + 1 :])
        for name, tensor in source.tensors.items()
        if name.startswith(part + ".")
    }
    if part in source.tensors:
        name = part.rsplit(".", 1)[-1]
        found = {name: source.tensors[part].renamed(name)}
    if not found:
        raise SourceError(source.label, f"has no tensors below {shown(part)}")
    return Source(f"{source.label}::{part}", source.kind, found, part, foreign=source.foreign, meta=source.meta)


def shown(value: object) -> str:
    """Return a name from a file as messages show it: quoted, escaped, of bounded length."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    return repr(value if len(value) <= 200 else value[:199] + "…")
