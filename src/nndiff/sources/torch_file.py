"""Files that torch.save wrote, zip or legacy, and plain pickles: read without running anything."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, NamedTuple

from nndiff.dtypes import DTYPES, DType
from nndiff.errors import SourceError
from nndiff.files import RegularFile, TemporaryFile, Window
from nndiff.sources.archives import Zip
from nndiff.sources.arrays import NUMPY_HANDLERS, Array
from nndiff.sources.pickle_nodes import Handler, Loaded, LongText, Object, Persistent, Span, add_pairs
from nndiff.sources.pickle_vm import Budget, PickleMachine
from nndiff.sources.pickled_source import build_source
from nndiff.sources.source import Source, quote_name
from nndiff.sources.torch_objects import TORCH_HANDLERS, Storage, parse_storage_class
from nndiff.tensors import FileData, LateData

# the first pickle of a legacy file is this number
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_HEAD = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_HEAD_SIZE = 32  # bytes that tell the formats apart


def open_torch_zip(path: str, archive: Zip, part_key: str = "") -> Source:
    """Open a zip file of torch.save or torch.jit.save."""
    is_script = any(name.endswith("/constants.pkl") for name in archive.names)
    return build_source(path, "torchscript" if is_script else "torch", load_zip(archive), part_key)


def open_pickle(path: str, part_key: str = "") -> Source:
    """Open a legacy torch file or a plain pickle."""
    window = Window(RegularFile(path))
    if is_legacy(window.head(_HEAD_SIZE)):
        return build_source(path, "torch legacy", load_legacy(window), part_key)
    return build_source(path, "pickle", load_plain(window), part_key)


def is_legacy(head: bytes) -> bool:
    """Return True if a file begins as torch's format before 1.6 does."""
    return head[:1] == b"\x80" and head[2:].startswith(_LEGACY_HEAD)


def load_any(window: Window) -> Loaded:
    """Load torch bytes of any of the formats."""
    head = window.head(_HEAD_SIZE)
    if head[:4] == b"PK\x03\x04":
        return load_zip(Zip(window))
    return load_legacy(window) if is_legacy(head) else load_plain(window)


class _StorageId(NamedTuple):
    """Name a storage as the pickle of a torch file does."""

    dtype: DType
    key: str
    elements: int


def _parse_storage_id(identity: Any) -> _StorageId:
    tag, kind, key, _, count = identity[:5]
    if tag != "storage" or not isinstance(key, str) or type(count) is not int or not 0 <= count < 1 << 60:
        raise TypeError("persistent id")
    return _StorageId(parse_storage_class(kind), key, count)


# zip files


def load_zip(archive: Zip) -> Loaded:
    """Load the object of a torch zip file."""
    pickles = [name for name in archive.names if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise SourceError(archive.path, f"holds {len(pickles)} entries data.pkl where a torch file has one")
    storages = _ZipStorages(archive, pickles[0].removesuffix("data.pkl"))
    machine = _start_machine(archive.entry(pickles[0]), storages.find_storage)
    return Loaded(machine.load(), list(machine.foreign))


class _ZipStorages:
    """Find the storages of a torch zip file by their key."""

    def __init__(self, archive: Zip, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._storages: dict[str, Storage] = {}
        self._entries = set(archive.names)
        byteorder = f"{folder}byteorder"
        self._swapped = byteorder in self._entries and archive.entry(byteorder).head(8) == b"big"

    def find_storage(self, identity: Any) -> Storage:
        """Return the storage of a persistent id; the same one every time."""
        wanted = _parse_storage_id(identity)
        storage = self._storages.get(wanted.key)
        if storage is None:
            storage = self._storages[wanted.key] = self._open_storage(wanted)
        if (storage.dtype, storage.count) != (wanted.dtype, wanted.elements):  # one storage saved under two types
            return self._open_storage(wanted)
        return storage

    def _open_storage(self, wanted: _StorageId) -> Storage:
        archive, (dtype, key, count) = self._archive, wanted
        name = f"{self._folder}data/{key}"
        if name not in self._entries:
            name = f"{self._folder}constants/{key}"
        if name not in self._entries:
            raise SourceError(archive.path, f"storage {quote_name(key)} is missing: the file is damaged")
        if count * dtype.itemsize > archive.size(name):
            raise SourceError(archive.path, f"storage {quote_name(key)} is shorter than its tensors need")
        if archive.is_stored(name):
            return Storage(dtype, count, key, archive.entry(name), swapped=self._swapped)
        late = LateData(lambda: FileData(archive.entry(name), DTYPES["uint8"].storage))
        return Storage(dtype, count, key, late=late, swapped=self._swapped)


# legacy files and plain pickles


def load_legacy(window: Window, budget: Budget | None = None) -> Loaded:
    """Load a file of torch before 1.6: pickles, then the storages one after another."""
    storages: dict[str, Storage] = {}

    def find_storage(identity: Any) -> Any:
        if isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module":
            return identity[1]  # a class, saved with its source code
        dtype, key, count = _parse_storage_id(identity)
        if len(identity) > 5 and identity[5] is not None:
            raise SourceError(window.path, "its storages are views of one another, a form torch no longer writes")
        storage = storages.setdefault(key, Storage(dtype, count, key))
        if (storage.dtype, storage.count) != (dtype, count):
            raise SourceError(window.path, f"storage {quote_name(key)} is claimed as two types: the file is damaged")
        return storage

    machine = _start_machine(window, find_storage, budget)
    if machine.load() != LEGACY_MAGIC:
        raise SourceError(window.path, "not a torch file")
    machine.load()  # protocol version
    system = machine.load()
    root = machine.load()
    keys = machine.load()
    is_big_endian = isinstance(system, dict) and system.get("little_endian") is False
    _locate_storages(window, machine.position, keys, storages, is_big_endian)
    if any(storage.window is None for storage in storages.values()):
        raise SourceError(window.path, "some of its storages are missing: the file is damaged")
    return Loaded(root, list(machine.foreign))


def _locate_storages(window: Window, position: int, keys: Any, storages: dict[str, Storage], swapped: bool) -> None:
    """Give each storage its bytes: they follow the pickles in the order of the keys, each after its count."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise SourceError(window.path, "the list of its storages is damaged")
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise SourceError(window.path, "lists a storage no tensor uses: the file is damaged")
        count = int.from_bytes(window.sub(position, 8).read(0, 8), "little")
        if count != storage.count:
            raise SourceError(
                window.path, f"storage {quote_name(key)} has {count} elements where {storage.count} are claimed"
            )
        size = count * storage.dtype.itemsize
        storage.window, storage.swapped = window.sub(position + 8, size), swapped
        position += 8 + size


def load_plain(window: Window) -> Loaded:
    """Load a pickle that is not torch's: tensors and arrays may be inside all the same."""
    machine = _start_machine(window)
    root = machine.load()
    if machine.position < window.size and root == LEGACY_MAGIC:
        raise SourceError(window.path, "a damaged torch file")
    return Loaded(root, list(machine.foreign))


# the machine, with the classes of torch and NumPy


class _TensorMachine(PickleMachine):
    """Know NumPy arrays beside plain containers: their state comes after the object."""

    def build(self, target: Any, state: Any) -> None:
        if isinstance(target, Array):
            target.set_state(state)
        else:
            super().build(target, state)


def _start_machine(
    window: Window, find_storage: Callable[[Any], Any] = Persistent, budget: Budget | None = None
) -> PickleMachine:
    handlers = dict(_HANDLERS)
    if budget is None:  # a pickle inside a pickle holds one storage, not further pickles
        budget = Budget(window.path)
        inner_bytes = _InnerBytes(window.path, budget)
        handlers["_codecs.encode"] = inner_bytes.encode_text
        handlers["torch.storage._load_from_bytes"] = inner_bytes.load_storage
    return _TensorMachine(window, handlers, find_storage, budget)


class _InnerBytes:
    """Store the bytes a pickle writes as text, and load the storages a plain pickle carries as bytes."""

    def __init__(self, path: str, budget: Budget) -> None:
        self._path = path
        self._budget = budget
        self._file: TemporaryFile | None = None
        # by the id of the text or span, which is stored with the result so that the id stays its own
        self._spans: dict[int, tuple[str | LongText, Span]] = {}
        self._storages: dict[int, tuple[Span, Any]] = {}

    def encode_text(self, args: tuple[Any, ...]) -> Any:
        """Return the bytes an old protocol wrote as text; the same text is the same bytes."""
        text, encoding = args[:2]
        if not isinstance(text, (str, LongText)) or encoding not in ("latin1", "latin-1"):
            return Object("_codecs.encode", args)
        if id(text) not in self._spans:
            if self._file is None:
                self._file = TemporaryFile(self._path)
            start = self._file.size
            if isinstance(text, str):
                self._file.append(text.encode("latin-1"))
            else:
                decoder = codecs.getincrementaldecoder("utf-8")()
                for chunk in text.window.chunks():
                    self._file.append(decoder.decode(chunk).encode("latin-1"))
                self._file.append(decoder.decode(b"", final=True).encode("latin-1"))
            self._spans[id(text)] = text, Span(Window(self._file, start))
        return self._spans[id(text)][1]

    def load_storage(self, args: tuple[Any, ...]) -> Any:
        """Return the storage that a pickle carries as the bytes of a torch file of its own."""
        (raw,) = args
        if not isinstance(raw, Span) or not is_legacy(raw.window.head(_HEAD_SIZE)):
            raise TypeError("storage")
        if id(raw) not in self._storages:
            self._storages[id(raw)] = raw, load_legacy(raw.window, self._budget).root
        return self._storages[id(raw)][1]


def _make_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for pair in args[0] if args and isinstance(args[0], list) else ():
        if not isinstance(pair, (list, tuple)):
            raise TypeError("pair")
        add_pairs(entries, list(pair[:2]))
    return entries


def _make_list(args: tuple[Any, ...]) -> list[Any]:
    return list(args[0]) if args and isinstance(args[0], (list, tuple)) else []


def _make_bytes(args: tuple[Any, ...]) -> Any:
    return args[0] if args else ""  # how old protocols write no bytes


_HANDLERS: dict[str, Handler] = {
    **TORCH_HANDLERS,
    **NUMPY_HANDLERS,
    "collections.OrderedDict": _make_dict,
    "collections.defaultdict": lambda args: {},
    "collections.Counter": lambda args: dict(args[0]) if args and isinstance(args[0], dict) else {},
    "collections.deque": _make_list,
    "builtins.set": _make_list,
    "builtins.frozenset": _make_list,
    "__builtin__.set": _make_list,
    "__builtin__.bytes": _make_bytes,
    "builtins.bytes": _make_bytes,
    "builtins.bytearray": _make_bytes,
    "__builtin__.bytearray": _make_bytes,
}
