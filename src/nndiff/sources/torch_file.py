"""Files that torch.save wrote, zip or legacy, and plain pickles: read without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nndiff.dtypes import DTYPES, DType
from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.archives import Zip
from nndiff.sources.arrays import NUMPY_HANDLERS, Array, array_ref, set_state
from nndiff.sources.pickle_vm import Handler, PickleMachine, Span
from nndiff.sources.source import Source, by_name
from nndiff.sources.torch_objects import TORCH_HANDLERS, Storage, Tensor, storage_dtype, tensor_ref
from nndiff.sources.tree import Tree
from nndiff.tensors import FileData, LateData, MemoryData, TensorRef

# the first pickle of a legacy file is this number
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_HEAD = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class Loaded:
    """Hold the object of a torch file or pickle, inert, and the classes that were met."""

    def __init__(self, root: Any, foreign: list[str]) -> None:
        self.root = root
        self.foreign = foreign


def open_torch_zip(path: str, archive: Zip, part: str = "") -> Source:
    """Open a zip file of torch.save or torch.jit.save."""
    kind = "torchscript" if any(name.endswith("/constants.pkl") for name in archive.names) else "torch"
    return as_source(path, kind, load_zip(archive), part)


def open_pickle(path: str, part: str = "") -> Source:
    """Open a legacy torch file or a plain pickle."""
    window = Window(RegularFile(path))
    if is_legacy(window.head(32)):
        return as_source(path, "torch legacy", load_legacy(window), part)
    return as_source(path, "pickle", load_plain(window), part)


def is_legacy(head: bytes) -> bool:
    """Tell whether a file begins as torch's format before 1.6 does."""
    return head[:1] == b"\x80" and head[2:].startswith(_LEGACY_HEAD)


def load_any(window: Window) -> Loaded:
    """Load torch bytes of any of the formats."""
    head = window.head(32)
    if head[:4] == b"PK\x03\x04":
        return load_zip(Zip(window))
    return load_legacy(window) if is_legacy(head) else load_plain(window)


def load_zip(archive: Zip) -> Loaded:
    """Load the object of a torch zip file."""
    pickles = [name for name in archive.names if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise SourceError(archive.path, f"holds {len(pickles)} entries data.pkl where a torch file has one")
    folder = pickles[0][: -len("data.pkl")]
    storages = _ZipStorages(archive, folder)
    machine = _machine(archive.entry(pickles[0]), storages)
    return Loaded(machine.load(), list(machine.foreign))


class _ZipStorages:
    """Find the storages of a torch zip file by their key."""

    def __init__(self, archive: Zip, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._known: dict[str, Storage] = {}
        self._entries = set(archive.names)
        self._swapped = self._byteorder() == b"big"

    def _byteorder(self) -> bytes:
        name = self._folder + "byteorder"
        return self._archive.entry(name).head(8) if name in self._entries else b"little"

    def __call__(self, identity: Any) -> Storage:
        dtype, key, count = _persistent(identity)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._storage(dtype, key, count)
        if (found.dtype, found.count) != (dtype, count):  # one storage saved under two types
            return self._storage(dtype, key, count)
        return found

    def _storage(self, dtype: DType, key: str, count: int) -> Storage:
        name = f"{self._folder}data/{key}"
        if name not in self._entries:
            name = f"{self._folder}constants/{key}"
        if name not in self._entries:
            raise SourceError(self._archive.path, f"storage {key!r} is missing: the file is damaged")
        if count * dtype.itemsize > self._archive.size(name):
            raise SourceError(self._archive.path, f"storage {key!r} is shorter than its tensors need")
        if self._archive.is_stored(name):
            return Storage(dtype, count, key, self._archive.entry(name), swapped=self._swapped)
        late = LateData(lambda: FileData(self._archive.entry(name), DTYPES["uint8"].storage))
        return Storage(dtype, count, key, late=late, swapped=self._swapped)


def _persistent(identity: Any) -> tuple[DType, str, int]:
    tag, kind, key, _, count = identity[:5]
    if tag != "storage" or not isinstance(key, str) or type(count) is not int or not 0 <= count < 1 << 60:
        raise TypeError("persistent id")
    return storage_dtype(kind), key, count


def load_legacy(window: Window) -> Loaded:
    """Load a file of torch before 1.6: pickles, then the storages one after another."""
    storages: dict[str, Storage] = {}

    def persistent(identity: Any) -> Storage:
        dtype, key, count = _persistent(identity)
        if len(identity) > 5 and identity[5] is not None:
            raise SourceError(window.path, "its storages are views of one another, a form torch no longer writes")
        found = storages.setdefault(key, Storage(dtype, count, key))
        if (found.dtype, found.count) != (dtype, count):
            raise SourceError(window.path, f"storage {key!r} is claimed as two types: the file is damaged")
        return found

    machine = _machine(window, persistent)
    if machine.load() != LEGACY_MAGIC:
        raise SourceError(window.path, "not a torch file")
    machine.load()  # protocol version
    system = machine.load()
    root = machine.load()
    keys = machine.load()
    swapped = isinstance(system, dict) and system.get("little_endian") is False
    _place(window, machine.position, keys, storages, swapped)
    return Loaded(root, list(machine.foreign))


def _place(window: Window, position: int, keys: Any, storages: dict[str, Storage], swapped: bool) -> None:
    if not isinstance(keys, list) or len(set(map(str, keys))) != len(keys):
        raise SourceError(window.path, "the list of its storages is damaged")
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None:
            raise SourceError(window.path, "lists a storage no tensor uses: the file is damaged")
        count = int.from_bytes(window.sub(position, 8).read(0, 8), "little")
        if count != storage.count:
            raise SourceError(window.path, f"storage {key!r} has {count} elements where {storage.count} are claimed")
        size = count * storage.dtype.itemsize
        storage.window, storage.swapped = window.sub(position + 8, size), swapped
        position += 8 + size


def load_plain(window: Window) -> Loaded:
    """Load a pickle that is not torch's: tensors and arrays may be inside all the same."""
    machine = _machine(window, None)
    root = machine.load()
    if machine.position < window.size and root == LEGACY_MAGIC:
        raise SourceError(window.path, "a damaged torch file")
    return Loaded(root, list(machine.foreign))


class _Machine(PickleMachine):
    """Know NumPy arrays beside plain containers: their state comes after the object."""

    def build(self, target: Any, state: Any) -> None:
        if isinstance(target, Array):
            set_state(target, state)
        else:
            super().build(target, state)


def _machine(window: Window, persistent: Callable[[Any], Any] | None) -> PickleMachine:
    handlers: dict[str, Handler] = {**_HANDLERS, "torch.storage._load_from_bytes": _storage_from_bytes}
    if persistent is None:
        return _Machine(window, handlers)
    return _Machine(window, handlers, persistent)


def _storage_from_bytes(args: tuple[Any, ...]) -> Any:
    """Return the storage a plain pickle carries as the bytes of a torch file of its own."""
    (raw,) = args
    if not isinstance(raw, Span):
        raise TypeError("bytes")
    return load_any(raw.window).root


def _new_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for pair in args[0] if args and isinstance(args[0], list) else ():
        made[pair[0] if isinstance(pair[0], (str, int)) else str(type(pair[0]))] = pair[1]
    return made


def _new_list(args: tuple[Any, ...]) -> list[Any]:
    return list(args[0]) if args and isinstance(args[0], (list, tuple)) else []


_HANDLERS: dict[str, Handler] = {
    **TORCH_HANDLERS,
    **NUMPY_HANDLERS,
    "collections.OrderedDict": _new_dict,
    "collections.defaultdict": lambda args: {},
    "collections.Counter": lambda args: dict(args[0]) if args and isinstance(args[0], dict) else {},
    "collections.deque": _new_list,
    "builtins.set": _new_list,
    "builtins.frozenset": _new_list,
    "__builtin__.set": _new_list,
}


def is_leaf(node: Any) -> bool:
    """Tell whether a node of a pickle is a tensor."""
    return isinstance(node, (Tensor, Array))


def as_source(path: str, kind: str, loaded: Loaded, part: str = "", prefix: str = "") -> Source:
    """Choose the model in a loaded object and name its tensors."""
    tree = Tree(path, loaded.root, is_leaf)
    chosen = tree.choose(part)
    others = dict(chosen.others)
    tensors: list[TensorRef] = []
    for name, leaf in tree.leaves(chosen, with_numbers=bool(part)):
        refs = list(_refs(path, prefix + name, leaf))
        if not refs:
            others[name] = "an array of objects or text"
        tensors.extend(refs)
    where = f"{path}::{part}" if part else path
    return Source(where, kind, by_name(path, tensors), chosen.key, others, tuple(loaded.foreign))


def _refs(path: str, name: str, leaf: Any) -> Iterator[TensorRef]:
    if isinstance(leaf, Tensor):
        yield tensor_ref(path, name, leaf)
        for key, value in leaf.parts.items():
            yield from _refs(path, f"{name}.{key}", value)
    elif isinstance(leaf, Array):
        found = array_ref(path, name, leaf)
        if found is not None:
            yield found
    elif isinstance(leaf, (bool, int, float, complex)):
        yield _number(name, leaf)


def _number(name: str, value: bool | int | float | complex) -> TensorRef:
    kinds = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    dtype = DTYPES[kinds[type(value)]]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        dtype, value = DTYPES["float64"], float(value)
    return TensorRef(name, (), dtype, MemoryData(np.array(value).astype(dtype.storage).reshape(())))
