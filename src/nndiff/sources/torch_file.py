"""Files that torch.save wrote, zip or legacy, and plain pickles: read without running anything."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nndiff.dtypes import DTYPES, DType
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, TemporaryFile, Window
from nndiff.sources.archives import Zip
from nndiff.sources.arrays import NUMPY_HANDLERS, Array, array_ref, set_state
from nndiff.sources.pickle_nodes import Handler, LongText, Object, Span, add_pairs
from nndiff.sources.pickle_vm import Budget, PickleMachine
from nndiff.sources.source import Source, by_name, shown
from nndiff.sources.torch_objects import TORCH_HANDLERS, Scale, Storage, Tensor, storage_dtype, tensor_ref
from nndiff.sources.tree import Nodes, Part, Tree, is_training, shortened
from nndiff.tensors import FileData, LateData, MemoryData, TensorRef

# the first pickle of a legacy file is this number
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MOST_CLAIMED = 1 << 30  # bytes
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


def open_arranged(path: str, arrange: Callable[[Any], dict[str, Any]]) -> Source:
    """Open a torch file or pickle of any kind; its tensors are named by what `arrange` makes of the object in it."""
    loaded = load_any(Window(RegularFile(path)))
    return as_source(path, "pickle", Loaded(arrange(loaded.root), loaded.foreign))


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
            raise SourceError(self._archive.path, f"storage {shown(key)} is missing: the file is damaged")
        if count * dtype.itemsize > self._archive.size(name):
            raise SourceError(self._archive.path, f"storage {shown(key)} is shorter than its tensors need")
        if self._archive.is_stored(name):
            return Storage(dtype, count, key, self._archive.entry(name), swapped=self._swapped)
        late = LateData(lambda: FileData(self._archive.entry(name), DTYPES["uint8"].storage))
        return Storage(dtype, count, key, late=late, swapped=self._swapped)


def _persistent(identity: Any) -> tuple[DType, str, int]:
    tag, kind, key, _, count = identity[:5]
    if tag != "storage" or not isinstance(key, str) or type(count) is not int or not 0 <= count < 1 << 60:
        raise TypeError("persistent id")
    return storage_dtype(kind), key, count


def load_legacy(window: Window, budget: Budget | None = None) -> Loaded:
    """Load a file of torch before 1.6: pickles, then the storages one after another."""
    storages: dict[str, Storage] = {}

    def persistent(identity: Any) -> Any:
        if isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module":
            return identity[1]  # a class, saved with its source code
        dtype, key, count = _persistent(identity)
        if len(identity) > 5 and identity[5] is not None:
            raise SourceError(window.path, "its storages are views of one another, a form torch no longer writes")
        found = storages.setdefault(key, Storage(dtype, count, key))
        if (found.dtype, found.count) != (dtype, count):
            raise SourceError(window.path, f"storage {shown(key)} is claimed as two types: the file is damaged")
        return found

    machine = _machine(window, persistent, budget)
    if machine.load() != LEGACY_MAGIC:
        raise SourceError(window.path, "not a torch file")
    machine.load()  # protocol version
    system = machine.load()
    root = machine.load()
    keys = machine.load()
    swapped = isinstance(system, dict) and system.get("little_endian") is False
    _place(window, machine.position, keys, storages, swapped)
    if any(storage.window is None for storage in storages.values()):
        raise SourceError(window.path, "some of its storages are missing: the file is damaged")
    return Loaded(root, list(machine.foreign))


def _place(window: Window, position: int, keys: Any, storages: dict[str, Storage], swapped: bool) -> None:
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise SourceError(window.path, "the list of its storages is damaged")
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise SourceError(window.path, "lists a storage no tensor uses: the file is damaged")
        count = int.from_bytes(window.sub(position, 8).read(0, 8), "little")
        if count != storage.count:
            raise SourceError(
                window.path, f"storage {shown(key)} has {count} elements where {storage.count} are claimed"
            )
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


def _machine(window: Window, persistent: Callable[[Any], Any] | None, budget: Budget | None = None) -> PickleMachine:
    handlers = dict(_HANDLERS)
    outermost, budget = budget is None, budget or Budget(window.path)
    if outermost:  # a pickle inside a pickle holds one storage, not further pickles
        bytes_ = _Bytes(window.path, budget)
        handlers |= {"_codecs.encode": bytes_.encoded, "torch.storage._load_from_bytes": bytes_.storage}
    if persistent is None:
        return _Machine(window, handlers, budget=budget)
    return _Machine(window, handlers, persistent, budget)


class _Bytes:
    """Keep the bytes a pickle writes as text, and the storages a plain pickle carries as bytes."""

    def __init__(self, path: str, budget: Budget) -> None:
        self._path = path
        self._budget = budget
        self._file: TemporaryFile | None = None
        self._spans: dict[int, tuple[Any, Span]] = {}
        self._storages: dict[int, tuple[Span, Any]] = {}

    def encoded(self, args: tuple[Any, ...]) -> Any:
        """Return the bytes an old protocol wrote as text; the same text is the same bytes."""
        text, encoding = args[:2]
        if not isinstance(text, (str, LongText)) or encoding not in ("latin1", "latin-1"):
            return Object("_codecs.encode", args)
        _, span = self._spans.get(id(text)) or (text, None)
        if span is None:
            span = self._written(text)
            self._spans[id(text)] = text, span
        return span

    def _written(self, text: str | LongText) -> Span:
        if self._file is None:
            self._file = TemporaryFile(self._path)
        start = self._file.size
        for chunk in [text] if isinstance(text, str) else _decoded(text):
            self._file.append(chunk.encode("latin-1"))
        return Span(Window(self._file, start))

    def storage(self, args: tuple[Any, ...]) -> Any:
        """Return the storage that is there as the bytes of a torch file of its own."""
        (raw,) = args
        if not isinstance(raw, Span) or not is_legacy(raw.window.head(32)):
            raise TypeError("storage")
        _, found = self._storages.get(id(raw)) or (raw, None)
        if found is None:
            found = load_legacy(raw.window, self._budget).root
            self._storages[id(raw)] = raw, found
        return found


def _decoded(text: LongText) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in text.window.chunks():
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _new_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for pair in args[0] if args and isinstance(args[0], list) else ():
        if not isinstance(pair, (list, tuple)):
            raise TypeError("pair")
        add_pairs(made, list(pair[:2]))
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
    "__builtin__.bytes": lambda args: args[0] if args else "",  # how old protocols write no bytes
    "builtins.bytes": lambda args: args[0] if args else "",
    "builtins.bytearray": lambda args: args[0] if args else "",
    "__builtin__.bytearray": lambda args: args[0] if args else "",
}


def is_leaf(node: Any) -> bool:
    """Tell whether a node of a pickle is a tensor."""
    return isinstance(node, (Tensor, Scale)) or (isinstance(node, Array) and not node.scalar)


def is_number(node: Any) -> bool:
    """Tell whether a node is a number, Python's or NumPy's, or plain bytes (an `_extra_state`)."""
    return isinstance(node, (bool, int, float, complex, Span, bytes)) or (isinstance(node, Array) and node.scalar)


def attributes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a tensor carries beside its elements: scales, the attributes of a subclass."""
    for part in node.parts if isinstance(node, Tensor) else ():
        yield from part.items()


def as_source(path: str, kind: str, loaded: Loaded, part: str = "") -> Source:
    """Choose the model in a loaded object and name its tensors."""
    tree = Tree(path, loaded.root, Nodes(is_leaf, is_number, attributes))
    if loaded.root is None or isinstance(loaded.root, str) or is_number(loaded.root):
        raise SourceError(path, f"holds no tensors, only {tree.describe(loaded.root)}")
    chosen = tree.choose(part)
    others = dict(chosen.others)
    tensors: list[TensorRef] = []
    held: dict[object, int] = {}
    others.update(tree.aside(chosen))
    others.update(_plain(tree, chosen))
    for name, leaf in tree.leaves(chosen, "all" if part else "in dicts"):
        if name in others and not is_leaf(leaf):
            continue
        if isinstance(leaf, dict):  # a table of numbers, too large to be a state
            others[name] = tree.describe(leaf)
            continue
        ref = _ref(path, name, leaf)
        if ref is None:
            others[name] = "an array of objects or text"
            continue
        tensors.append(ref)
        held[ref.storage_id] = _held(leaf, ref)
    _check_claims(path, tensors, sum(held.values()))
    where = f"{path}::{part}" if part else path
    return Source(where, kind, by_name(path, tensors), chosen.key, shortened(others), tuple(loaded.foreign))


def _plain(tree: Tree, chosen: Part) -> Iterator[tuple[str, str]]:
    """Yield what stands beside the tensors and is not compared: texts, nothing, the counters of training."""
    for key, value in chosen.node.items() if isinstance(chosen.node, dict) else ():
        number = is_number(value) and not isinstance(value, (Span, bytes))
        if isinstance(key, str) and (value is None or isinstance(value, str) or (number and is_training(key))):
            yield key, tree.describe(value)


def _ref(path: str, name: str, leaf: Any) -> TensorRef | None:
    if isinstance(leaf, Tensor):
        return tensor_ref(path, name, leaf)
    if isinstance(leaf, Span):
        byte = DTYPES["uint8"]
        return TensorRef(name, (leaf.window.size,), byte, FileData(leaf.window, byte.storage))
    if isinstance(leaf, bytes):
        return TensorRef(name, (len(leaf),), DTYPES["uint8"], MemoryData(np.frombuffer(leaf, np.uint8)))
    if isinstance(leaf, Array):
        found = array_ref(path, name, leaf)
        return replace(found, scalar=True) if found and leaf.scalar else found
    return _number(name, leaf.value if isinstance(leaf, Scale) else leaf)


def _held(leaf: Any, ref: TensorRef) -> int:
    """Return the bytes of a tensor's storage."""
    storage = leaf.storage if isinstance(leaf, Tensor) else None
    return storage.count * storage.dtype.itemsize if storage else ref.nbytes


def _check_claims(path: str, tensors: list[TensorRef], held: int) -> None:
    """Refuse a file whose tensors repeat their storages until comparing them would take days."""
    claimed = sum(tensor.nbytes for tensor in tensors if not tensor.missing)
    if claimed > max(64 * held, _MOST_CLAIMED):
        raise UnsafeFileError(path, f"its tensors claim {claimed} bytes by repeating storages of {held}; not read")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number(name: str, value: bool | int | float | complex) -> TensorRef:
    kinds = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    dtype = DTYPES[kinds[type(value)]]
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        dtype, value = DTYPES["float64"], _as_float(value)
    return TensorRef(name, (), dtype, MemoryData(np.array(value).astype(dtype.storage).reshape(())), scalar=True)
