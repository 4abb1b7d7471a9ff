"""What the fuzzers share: valid files of every kind, ways to damage them, and the law they must keep."""

from __future__ import annotations

import io
import json
import pickle
import random
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from folders import distributed
from hand_pickles import ARRAY, DTYPE, Call, Name, ops
from numpy_files import npy
from tar_files import tar_of
from torch_files import FOUR, storage, torch_zip, view, zip_of

from nndiff.errors import NndiffError
from nndiff.sources import open_source

_MOST_READ = 1 << 16


def check_law(path: str) -> bool:
    """Open and read; return whether it opened. Anything but an NndiffError is a bug and goes through."""
    try:
        opened = open_source(path)
        opened.side()
        for tensor in list(opened.tensors.values())[:20]:
            if not tensor.missing:
                tensor.read(0, min(tensor.count, _MOST_READ))
                tensor.read(tensor.count // 2, min(tensor.count, tensor.count // 2 + 3))
    except NndiffError:
        return False
    return True


def _torch(**options: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    base = torch.arange(12.0).reshape(3, 4)
    state = {"a.w": base, "a.t": base.t(), "a.h": base[:, 1].half(), "a.b": base.bfloat16(), "u": base.to(torch.uint16)}
    torch.save({"state_dict": state, "epoch": 3, "optimizer": {"s": [base[0]]}, "n": np.arange(3)}, buffer, **options)
    return buffer.getvalue()


def _module() -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), buffer)
    return buffer.getvalue()


def _deflated(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        return zip_of({name: old.read(name) for name in old.namelist()}, zipfile.ZIP_DEFLATED)


def _npz(save: Callable[..., None]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, a=np.arange(6.0).reshape(2, 3), b=np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)))
    return buffer.getvalue()


def _pax() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in (("ü" * 60 + ".pt", _torch()), ("model_config.yaml", b"target: a.B\n")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _distributed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        distributed(Path(folder) / "d", (4,), (4,), {})
        return (Path(folder) / "d" / ".metadata").read_bytes()


@cache
def seeds() -> dict[str, tuple[str, bytes]]:
    """Return a valid file of every kind: {kind: (name of the file, bytes)}."""
    from safetensors.numpy import save

    arrays = {"a.w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.uint8)}
    rich = {"a": np.arange(4.0), "f": np.asfortranarray(np.ones((2, 3))), "s": np.float32(2), "l": [1, (2.5, None)]}
    zipped = _torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "safetensors": ("x.safetensors", save(arrays, {"format": "np"})),
            "torch": ("x.pt", zipped),
            "torch deflated": ("x.pt", _deflated(zipped)),
            "torch legacy": ("x.pt", _torch(_use_new_zipfile_serialization=False)),
            "torch module": ("x.pt", _module()),
            "pickle 0": ("x.pkl", pickle.dumps(rich, 0)),
            "pickle 2": ("x.pkl", pickle.dumps(rich, 2)),
            "pickle 5": ("x.pkl", pickle.dumps(rich, 5)),
            "npy": ("x.npy", npy("'<f4'", "(2, 3)", bytes(24))),
            "npz": ("x.npz", _npz(np.savez)),
            "npz deflated": ("x.npz", _npz(np.savez_compressed)),
            "nemo": ("x.nemo", tar_of({"model_weights.ckpt": zipped, "model_config.yaml": b"target: a.B\n"})),
            "nemo gzip": ("x.nemo", tar_of({"model_weights.ckpt": zipped}, "w:gz")),
            "tar pax": ("x.tar", _pax()),
            "index": ("x.json", json.dumps({"metadata": {}, "weight_map": {"a": "b.safetensors"}}).encode()),
            "distributed": (".metadata", _distributed()),
        }


_NUMBERS = [bytes([each]) * size for each in (0, 0x7F, 0x80, 0xFF) for size in (1, 2, 4, 8)]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes after a few small accidents."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 2:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
        elif kind == 3:
            del out[at : at + chance.choice((1, 2, 4, 100))]
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            number = chance.choice(_NUMBERS)
            out[at : at + len(number)] = number
        else:
            size = chance.choice((1, 4, 30))
            out[at:at] = out[at : at + size]
    return bytes(out)


def damaged_inside(data: bytes, chance: random.Random) -> bytes:
    """Return a zip archive that is sound, one of its entries damaged."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    name = chance.choice([name for name in entries if name.endswith((".pkl", ".npy", "byteorder"))])
    entries[name] = damaged(entries[name], chance)
    return zip_of(entries)


def write(folder: Path, name: str, data: bytes) -> str:
    """Write a file where its kind expects it, and return what to open."""
    if name == ".metadata":
        (folder / "f.distcp").write_bytes(torch_zip(ops(view()), FOUR).ljust(1000, b"\0"))
        (folder / name).write_bytes(data)
        return str(folder)
    (folder / name).write_bytes(data)
    return str(folder / name)


# pickles by their grammar

_GLOBALS = [
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._tensor _rebuild_from_type_v2",
    "torch.storage _load_from_bytes",
    "torch.serialization _get_layout",
    "torch FloatStorage",
    "torch.storage UntypedStorage",
    "torch float32",
    "torch complex32",
    "torch Size",
    "torch sparse_coo",
    "numpy._core.multiarray _reconstruct",
    "numpy._core.multiarray scalar",
    "numpy._core.numeric _frombuffer",
    "numpy dtype",
    "ml_dtypes bfloat16",
    "collections OrderedDict",
    "collections Counter",
    "collections deque",
    "builtins set",
    "builtins bytes",
    "_codecs encode",
    "os system",
]
_TEXTS = [
    "storage",
    "0",
    "cpu",
    "<f4",
    "f4",
    "latin1",
    "F",
    "K",
    "state_dict",
    "_parameters",
    "torch.sparse_csr",
    "é",
    "",
]
_STRUCTURE = [bytes([code]) for code in b"()]}tldeausbR0123Qo." + bytes(range(0x81, 0x95)) + b"\x8f\x90\x91"]


def _opcodes() -> st.SearchStrategy[bytes]:
    names = st.sampled_from(_GLOBALS).map(lambda each: b"c" + each.replace(" ", "\n").encode() + b"\n")
    values = st.one_of(
        st.integers(-3, 300), st.integers(), st.sampled_from(_TEXTS), st.binary(max_size=20), st.floats()
    )
    memo = st.tuples(st.sampled_from([b"q", b"h"]), st.integers(0, 5)).map(lambda each: each[0] + bytes([each[1]]))
    whole = st.sampled_from(
        [
            ops(view()),
            ops(ARRAY),
            ops(storage()),
            bytes(DTYPE),
        ]
    )
    structure = st.sampled_from(_STRUCTURE)
    return st.one_of(names, values.map(ops), memo, memo, structure, structure, structure, whole, st.binary(max_size=3))


def pickles() -> st.SearchStrategy[bytes]:
    """Return pickles made of opcodes that mostly fit together."""
    return st.lists(_opcodes(), max_size=40).map(b"".join)


def trees() -> st.SearchStrategy[Any]:
    """Return values for `hand_pickles.ops`: containers, calls and tensors that lie."""
    numbers = st.one_of(st.integers(-2, 9), st.integers(0, 1 << 70), st.booleans(), st.none(), st.floats(0, 9))
    sizes = st.lists(numbers, max_size=3).map(tuple)
    stores = st.builds(storage, numbers, st.sampled_from(["FloatStorage", "ByteStorage", "Odd"]), st.sampled_from("01"))
    views = st.builds(view, numbers, sizes, sizes, stores)
    arrays = st.builds(
        lambda raw, shape, order, axes: Call(
            Name("numpy._core.numeric", "_frombuffer"), (raw, DTYPE, shape, order, axes)
        ),
        st.binary(max_size=9), sizes, st.sampled_from("CFK"), st.one_of(st.none(), sizes),
    )  # fmt: skip
    names = st.sampled_from(_GLOBALS).map(lambda each: Name(*each.split()))
    leaves = st.one_of(views, arrays, numbers, st.sampled_from(_TEXTS), names, st.just(ARRAY), st.just(view()))
    keys = st.one_of(st.sampled_from([*_TEXTS, "a", "b.c", "optimizer", "model"]), st.integers(0, 3))
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            st.lists(below, max_size=4),
            st.dictionaries(keys, below, max_size=4),
            st.builds(Call, names, st.lists(below, max_size=6).map(tuple)),
            st.lists(below, max_size=3).map(tuple),
        ),
        max_leaves=12,
    )
