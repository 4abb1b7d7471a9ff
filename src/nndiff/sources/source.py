"""What every source looks like once it is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import Window
from nndiff.names import looks_trainable
from nndiff.result import Side
from nndiff.tensors import TensorRef
from nndiff.text import plural

# metadata of recordings that a result need not repeat
_LONG_METADATA = frozenset(("modules", "shared", "dropout_active", "inputs", "held"))
_MOST_NAMED = 5  # entries with tensors that a note names one by one
_LONGEST_NAME = 200  # characters of a name that messages show


class EntryKind(Enum):
    """Say what an entry that is not compared is."""

    VALUE = "value"  # a number, text, bytes: nothing that holds tensors
    TENSORS = "tensors"
    ATTRIBUTE = "attribute"  # a tensor of a pickled module that its state_dict would not have
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class OtherEntry:
    """Describe something that a source holds and nndiff does not compare."""

    kind: EntryKind
    text: str = ""  # of a VALUE: what it is
    tensors: int = 0
    at_least: bool = False  # there may be more tensors than were counted

    @classmethod
    def of_value(cls, text: str) -> OtherEntry:
        """Return the entry of something without tensors."""
        return cls(EntryKind.VALUE, text)

    @classmethod
    def of_bytes(cls, size: int) -> OtherEntry:
        """Return the entry of bytes that nndiff does not interpret."""
        return cls(EntryKind.VALUE, plural(size, "byte"))

    @classmethod
    def of_tensors(cls, count: int, at_least: bool = False) -> OtherEntry:
        """Return the entry of something that holds tensors."""
        return cls(EntryKind.TENSORS, tensors=count, at_least=at_least)

    @property
    def description(self) -> str:
        """Return a few words for people."""
        if self.kind is EntryKind.TENSORS:
            return f"{'at least ' if self.at_least else ''}{plural(self.tensors, 'tensor')}"
        if self.kind is EntryKind.ATTRIBUTE:
            return "a tensor, but not part of the state"
        if self.kind is EntryKind.FILE:
            return "another file of tensors"
        if self.kind is EntryKind.FOLDER:
            return "a folder, not searched"
        return self.text


@dataclass(frozen=True)
class Source:
    """Hold named tensors in order, and describe what else was found with them."""

    label: str
    kind: str  # safetensors, torch, nemo, npz, recording, ...
    tensors: Mapping[str, TensorRef]
    part: str = ""  # the key inside the file the tensors were taken from
    others: Mapping[str, OtherEntry] = field(default_factory=dict)  # what else the file holds
    foreign: tuple[str, ...] = ()  # classes that were met and not loaded
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Window] = field(default_factory=dict)  # config and tokenizer files of a folder, unread

    def side(self) -> Side:
        """Describe the source for a result."""
        notes = list(self.notes)
        if self.part:
            notes.append(f"compared: {self.part!r}")
        if self.others and self.kind != "recording":
            notes.append(f"also in the file and not compared: {self._summarise_others()}")
        elements = trainable = nbytes = 0
        for tensor in self.tensors.values():
            elements += tensor.count
            nbytes += tensor.nbytes
            if looks_trainable(tensor.name, tensor.dtype):
                trainable += tensor.count
        return Side(
            label=self.label,
            kind=self.kind,
            tensors=len(self.tensors),
            elements=elements,
            trainable=trainable,
            nbytes=nbytes,
            notes=tuple(notes),
            meta={key: value for key, value in self.meta.items() if key not in _LONG_METADATA},
        )

    def describe_others(self) -> dict[str, str]:
        """Return a few words about each entry that is not compared, by name."""
        return {key: entry.description for key, entry in self.others.items()}

    def _summarise_others(self) -> str:
        """Name the entries that may hold tensors, count the rest."""
        named = []
        values = 0
        for key, entry in self.others.items():
            if entry.kind is EntryKind.VALUE:
                values += 1
            else:
                named.append(f"{key} ({entry.description})")
        summary = named[:_MOST_NAMED]
        if len(named) > _MOST_NAMED:
            summary.append(f"{len(named) - _MOST_NAMED} more")
        if values:
            summary.append(f"{values} {'entry' if values == 1 else 'entries'} without tensors")
        return ", ".join(summary)


def index_by_name(label: str, tensors: Iterable[TensorRef]) -> dict[str, TensorRef]:
    """Return tensors by name in order; two of the same name are an error."""
    named: dict[str, TensorRef] = {}
    for tensor in tensors:
        if tensor.name in named:
            raise SourceError(label, f"holds two tensors named {quote_name(tensor.name)}")
        named[tensor.name] = tensor
    return named


def select_part(source: Source, part_key: str) -> Source:
    """Return the tensors below a dotted name, as if that were the file."""
    if not part_key:
        return source
    tensors = {}
    if part_key in source.tensors:
        name = part_key.rsplit(".", 1)[-1]
        tensors[name] = source.tensors[part_key].renamed(name)
    else:
        prefix = f"{part_key}."
        for name, tensor in source.tensors.items():
            if name.startswith(prefix):
                inner_name = name[len(prefix) :]
                tensors[inner_name] = tensor.renamed(inner_name)
    if not tensors:
        raise SourceError(source.label, f"has no tensors below {quote_name(part_key)}")
    return Source(
        f"{source.label}::{part_key}", source.kind, tensors, part_key, foreign=source.foreign, meta=source.meta
    )


def quote_name(value: object) -> str:
    """Return a name from a file as messages show it: quoted, escaped, of bounded length."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    return repr(value if len(value) <= _LONGEST_NAME else value[: _LONGEST_NAME - 1] + "…")
