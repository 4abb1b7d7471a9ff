"""Hostile files: one function per case, each writing one file or folder.

    python tests/hostile/generate.py FOLDER

writes them all, with a payload that would create FOLDER/canary if anything ever ran it. A case
says which sentence must answer it; a case without one must open, and nothing else may happen.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import socket
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def garbage(size: int) -> bytes:
    """Return bytes without meaning, the same every time: what is said of them depends on what they are."""
    return random.Random(size).randbytes(size)


@dataclass(frozen=True)
class Case:
    """Know how a hostile file is made and what must be said of it."""

    name: str
    make: Callable[[Path, str], Any]
    suffix: str
    trouble: str | None  # a pattern of the message; None: it opens, and nothing happens
    part: str = ""
    heavy: bool = False  # takes seconds

    def write(self, folder: Path, canary: Path) -> str:
        """Write the file and return what to open."""
        path = folder / f"{self.name}{self.suffix}"
        made = self.make(path, f"touch {canary}")
        if isinstance(made, bytes):
            path.write_bytes(made)
        return f"{path}::{self.part}" if self.part else str(path)


CASES: dict[str, Case] = {}

Make = Callable[[Path, str], Any]


def case(suffix: str, trouble: str | None = None, part: str = "", heavy: bool = False) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[make.__name__] = Case(make.__name__, make, suffix, trouble, part, heavy)
        return make

    return register


# writing pickles by hand

PROTO = b"\x80\x04"
DAMAGED = "its pickle is damaged or not a pickle at all"
STEPS = "its pickle takes more than .* steps; not read"


class Raw(bytes):
    """Be opcodes already."""


@dataclass(frozen=True)
class Name:
    module: str
    name: str


@dataclass(frozen=True)
class Call:
    function: Any
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Outside:
    identity: Any


def ops(value: Any) -> bytes:
    """Return the opcodes that make a value."""
    if isinstance(value, Raw):
        return bytes(value)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8b" + struct.pack("<I", len(data)) + data
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    return _container(value)


def _container(value: Any) -> bytes:
    if isinstance(value, tuple):
        return b"(" + b"".join(map(ops, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(ops, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(ops(key) + ops(each) for key, each in value.items()) + b"u"
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return ops(value.function) + ops(value.args) + b"R"
    assert isinstance(value, Outside)
    return ops(value.identity) + b"Q"


def pickled(value: Any) -> bytes:
    return PROTO + ops(value) + b"."


SYSTEM = Name("os", "system")
# an array of one byte: something that holds a tensor
DTYPE = Raw(ops(Call(Name("numpy", "dtype"), ("u1", False, True))) + ops((3, "|", None, None, None, -1, -1, 0)) + b"b")
ARRAY = Call(Name("numpy._core.numeric", "_frombuffer"), (b"\1", DTYPE, (1,), "C"))


# payloads, by every opcode that could run one


@case(".pkl")
def payload_global_reduce(path: Path, payload: str) -> Any:
    return pickled(Call(SYSTEM, (payload,)))


@case(".pkl")
def payload_protocol_0(path: Path, payload: str) -> Any:
    return f"cos\nsystem\n(S'{payload}'\ntR.".encode()


@case(".pkl")
def payload_stack_global(path: Path, payload: str) -> Any:
    return PROTO + ops("posix") + ops("system") + b"\x93" + ops((payload,)) + b"R."


@case(".pkl")
def payload_inst(path: Path, payload: str) -> Any:
    return PROTO + f"(S'{payload}'\nios\nsystem\n.".encode()


@case(".pkl")
def payload_obj(path: Path, payload: str) -> Any:
    return PROTO + b"(" + ops(SYSTEM) + ops(payload) + b"o."


@case(".pkl")
def payload_newobj(path: Path, payload: str) -> Any:
    return PROTO + ops(Name("builtins", "eval")) + ops((f"__import__('os').system({payload!r})",)) + b"\x81."


@case(".pkl")
def payload_newobj_ex(path: Path, payload: str) -> Any:
    return PROTO + ops(Name("subprocess", "Popen")) + ops((payload,)) + ops({"shell": True}) + b"\x92."


@case(".pkl")
def payload_exec(path: Path, payload: str) -> Any:
    return pickled(Call(Name("builtins", "exec"), (f"import os; os.system({payload!r})",)))


@case(".pkl")
def payload_getattr_chain(path: Path, payload: str) -> Any:
    imported = Call(Name("builtins", "__import__"), ("os",))
    return pickled(Call(Call(Name("builtins", "getattr"), (imported, "system")), (payload,)))


@case(".pkl")
def payload_dotted_name(path: Path, payload: str) -> Any:
    return PROTO + ops("os") + ops("path.os.system") + b"\x93" + ops((payload,)) + b"R."


@case(".pkl")
def payload_build_setstate(path: Path, payload: str) -> Any:
    made = ops(Name("builtins", "object")) + b")\x81"
    return PROTO + made + ops({"__setstate__": SYSTEM}) + b"b" + ops(payload) + b"b."


@case(".pkl")
def payload_build_pollutes_nndiff(path: Path, payload: str) -> Any:
    return PROTO + ops(Name("nndiff.errors", "SourceError")) + ops((None, {"exit_code": 0})) + b"b."


@case(".pkl")
def payload_build_pollutes_builtins(path: Path, payload: str) -> Any:
    return PROTO + ops(Name("builtins", "__dict__")) + ops({"len": SYSTEM}) + b"b" + ops({"len": SYSTEM}) + b"b."


@case(".pkl")
def payload_setitem_on_a_global(path: Path, payload: str) -> Any:
    return PROTO + ops(Call(Name("os", "environ.copy"), ())) + ops("PATH") + ops(payload) + b"s."


@case(".pkl")
def payload_append_calls_extend(path: Path, payload: str) -> Any:
    return PROTO + ops(Call(Name("os", "popen"), (payload,))) + b"(" + ops(payload) + b"e" + ops(payload) + b"a."


@case(".pkl")
def payload_of_a_real_reduce(path: Path, payload: str) -> Any:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (payload,), {"state": 1}, iter([1]), iter([("a", 1)])

    return pickle.dumps({"w": Evil()})


@case(".pkl")
def payload_as_a_key(path: Path, payload: str) -> Any:
    return pickled({Raw(ops(Call(SYSTEM, (payload,)))): 1})


@case(".pkl")
def payload_persid(path: Path, payload: str) -> Any:
    return PROTO + f"P{payload}\n.".encode()


@case(".pkl")
def payload_binpersid(path: Path, payload: str) -> Any:
    return pickled(Outside(Call(SYSTEM, (payload,))))


@case(".pkl", DAMAGED)
def payload_ext1(path: Path, payload: str) -> Any:
    return PROTO + b"\x82\x01."


@case(".pkl", DAMAGED)
def payload_ext2(path: Path, payload: str) -> Any:
    return PROTO + b"\x83\x01\x00."


@case(".pkl", DAMAGED)
def payload_ext4(path: Path, payload: str) -> Any:
    return PROTO + b"\x84\x01\x00\x00\x00."


@case(".pkl", DAMAGED)
def payload_out_of_band_buffers(path: Path, payload: str) -> Any:
    return PROTO + b"\x97\x98."


@case(".pkl")
def payload_in_an_ordered_dict(path: Path, payload: str) -> Any:
    return pickled(Call(Name("collections", "OrderedDict"), ([[Call(SYSTEM, (payload,)), Call(SYSTEM, (payload,))]],)))


@case(".pkl")
def payload_in_a_subclass_of_tensor(path: Path, payload: str) -> Any:
    return pickled(Call(Name("torch._tensor", "_rebuild_from_type_v2"), (SYSTEM, SYSTEM, (payload,), {})))


@case(".pkl", DAMAGED)
def payload_in_the_bytes_of_a_storage(path: Path, payload: str) -> Any:
    return pickled(Call(Name("torch.storage", "_load_from_bytes"), (pickled(Call(SYSTEM, (payload,))),)))


@case(".pkl")
def payload_by_codecs(path: Path, payload: str) -> Any:
    return pickled(Call(Name("_codecs", "encode"), (payload, "idna")))


@case(".pt")
def payload_in_a_torch_zip(path: Path, payload: str) -> Any:
    return torch_zip(ops(Call(SYSTEM, (payload,))))


@case(".pt", DAMAGED)
def payload_as_a_storage_class(path: Path, payload: str) -> Any:
    return torch_zip(ops(Outside(("storage", Call(SYSTEM, (payload,)), "0", "cpu", 1))), {"0": b"1234"})


@case(".pt")
def payload_in_a_legacy_file(path: Path, payload: str) -> Any:
    return legacy(ops(Call(SYSTEM, (payload,))))


@case(".nemo")
def payload_in_a_nemo_file(path: Path, payload: str) -> Any:
    return tar_of({"model_weights.ckpt": torch_zip(ops(Call(SYSTEM, (payload,))))})


@case(".npy", "is of '|O', not of numbers; pickled objects are not read")
def payload_in_an_object_array(path: Path, payload: str) -> Any:
    return npy("'|O'", "(1,)", pickled(Call(SYSTEM, (payload,))))


@case(".npz")
def payload_in_an_npz(path: Path, payload: str) -> Any:
    return zip_of({"a.npy": npy("'|O'", "(1,)", pickled(Call(SYSTEM, (payload,))))})


@case(".npy", "the header of the .npy file is damaged")
def payload_in_an_npy_header(path: Path, payload: str) -> Any:
    return npy(f"__import__('os').system({payload!r})", "(1,)", b"")


@case("", "whose .metadata is damaged")
def payload_in_distributed_metadata(path: Path, payload: str) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(pickled(Call(SYSTEM, (payload,))))


# pickles that claim, nest and repeat


@case(".pkl", DAMAGED)
def pickle_of_nothing_but_stop(path: Path, payload: str) -> Any:
    return PROTO + b"."


@case(".pkl", DAMAGED)
def pickle_without_stop(path: Path, payload: str) -> Any:
    return PROTO + b"]" * 100


@case(".pkl", DAMAGED)
def pickle_of_a_missing_memo(path: Path, payload: str) -> Any:
    return PROTO + b"h\x07."


@case(".pkl", DAMAGED)
def pickle_of_a_negative_memo(path: Path, payload: str) -> Any:
    return PROTO + b"g-1\n."


@case(".pkl")
def pickle_of_a_huge_memo_index(path: Path, payload: str) -> Any:
    return PROTO + b"Nr\xff\xff\xff\xff" + b"p" + b"9" * 4000 + b"\n0j\xff\xff\xff\xff."


@case(".pkl", DAMAGED)
def pickle_of_a_lone_mark(path: Path, payload: str) -> Any:
    return PROTO + b"(((." + b"."


@case(".pkl", DAMAGED)
def pickle_that_appends_to_a_number(path: Path, payload: str) -> Any:
    return PROTO + b"NNa."


@case(".pkl", "claims bytes")
def pickle_lies_binbytes8(path: Path, payload: str) -> Any:
    return PROTO + b"\x8e" + struct.pack("<Q", 1 << 62) + b"."


@case(".pkl", "claims bytes")
def pickle_lies_bytearray8(path: Path, payload: str) -> Any:
    return PROTO + b"\x96" + struct.pack("<Q", (1 << 64) - 1) + b"."


@case(".pkl", "claims bytes")
def pickle_lies_binunicode8(path: Path, payload: str) -> Any:
    return PROTO + b"\x8d" + struct.pack("<Q", 1 << 40) + b"."


@case(".pkl", DAMAGED)
def pickle_lies_short_text(path: Path, payload: str) -> Any:
    return PROTO + b"\x8c\xff."


@case(".pkl", "claims bytes")
def pickle_lies_binstring(path: Path, payload: str) -> Any:
    return PROTO + b"T" + struct.pack("<i", -1) + b"."


@case(".pkl", DAMAGED)
def pickle_lies_long4(path: Path, payload: str) -> Any:
    return PROTO + b"\x8b" + struct.pack("<I", 0x7FFFFFFF) + b"."


@case(".pkl", DAMAGED)
def pickle_lies_frame(path: Path, payload: str) -> Any:
    return PROTO + b"\x95" + struct.pack("<Q", 1 << 63) + b"0."


@case(".pkl", DAMAGED)
def pickle_of_a_long_number_as_text(path: Path, payload: str) -> Any:
    return PROTO + b"L" + b"9" * 60_000 + b"L\n."


@case(".pkl", None, part="n")
def pickle_of_numbers_no_float_holds(path: Path, payload: str) -> Any:
    return pickled({"n": {"a": 1 << 30_000, "b": -(1 << 30_000), "c": 1 << 70, (1 << 20_000): 3}})


@case(".pkl", DAMAGED)
def pickle_of_bad_utf8(path: Path, payload: str) -> Any:
    return PROTO + b"X\x02\x00\x00\x00\xff\xff."


@case(".pkl", DAMAGED)
def pickle_of_unknown_opcodes(path: Path, payload: str) -> Any:
    return PROTO + bytes(range(0xA0, 0xFF)) + b"."


@case(".pkl", DAMAGED)
def pickle_with_a_strange_escape(path: Path, payload: str) -> Any:
    return PROTO + b"S'\\d\\q\\x'\n."


@case(".pkl", STEPS, heavy=True)
def pickle_of_ten_million_steps(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"]" * 10_000_000 + b"e."


@case(".pkl", heavy=True)
def pickle_of_as_many_lists_as_are_read(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"]" * 1_490_000 + b"e."


@case(".pkl", STEPS, heavy=True)
def pickle_of_many_objects(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"(ia\nb\n" * 2_000_000 + b"e."


@case(".pkl", STEPS, heavy=True)
def pickle_of_many_empty_bytes(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"C\0" * 3_000_000 + b"e."


@case(".pkl", "bytes of text and numbers; not read")
def pickle_of_much_text(path: Path, payload: str) -> Any:
    text = ("a" * 1_000_000 + "\U0001f600").encode()
    return PROTO + b"](" + (b"X" + struct.pack("<I", len(text)) + text) * 80 + b"e."


@case(".pkl", "bytes of text and numbers; not read")
def pickle_of_many_large_numbers(path: Path, payload: str) -> Any:
    return PROTO + b"](" + (b"\x8b" + struct.pack("<I", 4096) + b"\x7f" * 4096) * 20_000 + b"e."


@case(".pkl", heavy=True)
def pickle_of_a_deep_list(path: Path, payload: str) -> Any:
    return PROTO + b"]" * 1_000_000 + b"a" * 999_999 + b"."


@case(".pkl", "is nested deeper than 200 levels; not read", heavy=True)
def pickle_of_a_deep_list_with_a_tensor(path: Path, payload: str) -> Any:
    return PROTO + b"]" * 200_000 + ops(ARRAY) + b"a" * 200_000 + b"."


@case(".pkl", heavy=True)
def pickle_of_a_deep_tuple(path: Path, payload: str) -> Any:
    return PROTO + b")" + b"\x85" * 300_000 + b"."


@case(".pkl", heavy=True)
def pickle_of_a_deep_dict(path: Path, payload: str) -> Any:
    return PROTO + b"}" + b"K\x01}" * 200_000 + b"s" * 200_000 + b"."


@case(".pkl", heavy=True)
def pickle_of_a_deep_key(path: Path, payload: str) -> Any:
    return PROTO + b"})" + b"\x85" * 300_000 + b"Ns."


@case(".pkl", heavy=True)
def pickle_of_deep_objects(path: Path, payload: str) -> Any:
    return PROTO + b"ca\nb\n\x940" + b"h\x00" * 150_000 + b")" + b"R\x85" * 150_000 + b"."


@case(".pkl")
def pickle_inside_pickle_inside_pickle(path: Path, payload: str) -> Any:
    inner = legacy(ops(1))
    for _ in range(200):
        inner = legacy(ops(Call(Name("torch.storage", "_load_from_bytes"), (inner,))))
    return pickled(Call(Name("torch.storage", "_load_from_bytes"), (inner,)))


@case(".pkl")
def pickle_that_holds_itself(path: Path, payload: str) -> Any:
    knot = b"}\x94" + ops("self") + b"h\x00s" + ops("list") + b"]\x94h\x01as"
    return PROTO + knot + ops("w") + ops(ARRAY) + b"s."


def laughs(levels: int, bottom: Any, width: int = 2) -> bytes:
    """Return a tree of 2**levels leaves in a few bytes: every list holds the one below, again and again."""
    made = ops(bottom) + b"\x94"
    for level in range(levels):
        made += b"](" + (b"h" + bytes([level])) * width + b"e\x94"
    return PROTO + b"(" + made + b"1" + b"h" + bytes([levels]) + b"."


@case(".pkl")
def pickle_of_a_billion_laughs(path: Path, payload: str) -> Any:
    return laughs(200, 1)


@case(".pkl", "more names of tensors than any model has|steps to look through", heavy=True)
def pickle_of_a_billion_tensors(path: Path, payload: str) -> Any:
    return laughs(60, ARRAY)


@case(".pkl", "more names of tensors than any model has|steps to look through", part="0", heavy=True)
def pickle_of_a_billion_numbers(path: Path, payload: str) -> Any:
    return laughs(60, 1)


@case(".pkl", "steps to look through; not read", heavy=True)
def pickle_of_endless_paths(path: Path, payload: str) -> Any:
    """Thirty lists that all hold each other and the root: more paths than atoms, and no end to any."""
    lists = b"".join(b"]\x94" for _ in range(30))
    each = b"".join(b"h" + bytes([number]) for number in range(30))
    filled = b"".join(b"h" + bytes([number]) + b"(" + each + b"e0" for number in range(1, 30))
    return PROTO + b"(" + lists + b"1" + filled + b"h\x00(" + each + ops(ARRAY) + b"e."


@case(".pkl", "more names of tensors than any model has")
def pickle_of_endless_names(path: Path, payload: str) -> Any:
    return pickled({"x" * 900_000: [ARRAY] * 2000})


@case(".pkl")
def pickle_of_a_long_key_above_many_lists(path: Path, payload: str) -> Any:
    return PROTO + b"}" + ops("x" * 900_000) + b"](" + b"]Na" * 100_000 + b"es" + ops("w") + ops(ARRAY) + b"s."


@case(".pkl", "more names of tensors than any model has")
def pickle_of_modules_with_endless_names(path: Path, payload: str) -> Any:
    state = {"_parameters": {}, **{f"t{number}": Raw(b"h\x00") for number in range(100)}}
    module = ops(Name("a", "M")) + b")\x81" + ops(state) + b"b"
    inside = b"}(" + ops("y" * 900_000) + module + b"u"
    return PROTO + ops(ARRAY) + b"\x940" + inside + b"."


@case(".pkl", heavy=True)
def pickle_of_numbers_with_one_hash(path: Path, payload: str) -> Any:
    keys = b"".join(ops(number * ((1 << 61) - 1)) + b"N" for number in range(1, 200_000))
    return PROTO + b"}(" + keys + b"u."


@case(".pkl", heavy=True)
def pickle_that_hashes_a_long_tuple_again_and_again(path: Path, payload: str) -> Any:
    return PROTO + b"(" + b"N" * 500_000 + b"t\x940}" + b"h\x00Ns" * 200_000 + b"."


@case(".pkl", STEPS, heavy=True)
def pickle_that_copies_a_long_list_again_and_again(path: Path, payload: str) -> Any:
    long = b"](" + b"N" * 500_000 + b"e\x85\x940"
    return PROTO + b"(" + long + b"cbuiltins\nset\n\x940" + b"h\x01h\x00R" * 300_000 + b"l."


@case(".pkl", "takes more than|names more than")
def pickle_of_many_classes(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"".join(b"ca\nb%d\n" % number for number in range(50_000)) + b"e."


@case(".pkl", DAMAGED)
def pickle_of_a_class_with_a_long_name(path: Path, payload: str) -> Any:
    return PROTO + ops("m" * 900_000) + ops("n" * 900_000) + b"\x93."


@case(".pkl", None)
def pickle_that_encodes_a_text_again_and_again(path: Path, payload: str) -> Any:
    text = ops("a" * 1_000_000) + ops("latin1") + b"\x86\x940"
    return PROTO + b"(" + text + b"c_codecs\nencode\n\x940" + b"h\x01h\x00R" * 100_000 + b"l."


@case(".pkl", "array 'a' needs .* bytes, the pickle holds 1")
def pickle_of_an_array_that_claims_more(path: Path, payload: str) -> Any:
    return pickled({"a": Call(Name("numpy._core.numeric", "_frombuffer"), (b"\1", DTYPE, (1 << 40,), "C"))})


@case(".pkl", DAMAGED)
def pickle_of_an_array_with_wrong_axes(path: Path, payload: str) -> Any:
    return pickled(Call(Name("numpy._core.numeric", "_frombuffer"), (b"\1", DTYPE, (1,), "K", (7,))))


@case(".pkl", DAMAGED)
def pickle_of_an_array_of_a_thousand_axes(path: Path, payload: str) -> Any:
    return pickled(Call(Name("numpy._core.numeric", "_frombuffer"), (b"\1", DTYPE, (1,) * 1000, "C")))


@case(".pkl", "holds two tensors of the name 'a.b'")
def pickle_of_two_tensors_of_one_name(path: Path, payload: str) -> Any:
    return pickled({"a": {"b": ARRAY}, "a.b": ARRAY})


# torch files


def zip_of(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def torch_zip(body: bytes, storages: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    entries = {"x/data.pkl": PROTO + body + b".", "x/byteorder": b"little", "x/version": b"3\n"}
    entries |= {f"x/data/{key}": data for key, data in (storages or {}).items()}
    return zip_of(entries, compression)


def legacy(body: bytes, keys: Any = (), storages: bytes = b"") -> bytes:
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = (ops(1001), ops(system), body, ops(list(keys)))
    return magic + b"".join(PROTO + part + b"." for part in parts) + storages


def storage(count: Any = 4, kind: str = "FloatStorage", key: Any = "0") -> Outside:
    return Outside(("storage", Name("torch", kind), key, "cpu", count))


def view(offset: Any = 0, shape: Any = (4,), strides: Any = (1,), held: Any = None) -> Call:
    args = (held or storage(), offset, shape, strides, False, Call(Name("collections", "OrderedDict"), ()))
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), args)


FOUR = {"0": struct.pack("<4f", 1, 2, 3, 4)}


def torch_case(trouble: str | None, tensor: Any, storages: dict[str, bytes] = FOUR) -> Make:
    def make(path: Path, payload: str) -> Any:
        return torch_zip(ops({"w": tensor}), storages)

    return make


SENSELESS = "tensor 'w' has a negative or senseless shape, stride or offset"
BEYOND = "tensor 'w' reaches beyond its storage of 16 bytes"
_TORCH: dict[str, tuple[str | None, Any]] = {
    "offset_beyond": (BEYOND, view(offset=1)),
    "offset_far_beyond": (BEYOND, view(offset=1 << 61)),
    "offset_negative": (SENSELESS, view(offset=-1)),
    "offset_none": (SENSELESS, view(offset=None)),
    "offset_true": (SENSELESS, view(offset=True)),
    "stride_beyond": (BEYOND, view(strides=(2,))),
    "stride_negative": (SENSELESS, view(offset=3, strides=(-1,))),
    "stride_huge": (SENSELESS, view(strides=(1 << 100,))),
    "stride_of_one_element_huge": (None, view(shape=(1, 2), strides=((1 << 61) + 1, 2))),
    "strides_missing": ("has 2 axes and 1 strides", view(shape=(2, 2))),
    "shape_beyond": (BEYOND, view(shape=(5,))),
    "shape_negative": (SENSELESS, view(shape=(-4,))),
    "shape_huge": (SENSELESS, view(shape=(1 << 100,), strides=(0,))),
    "shape_of_floats": (DAMAGED, view(shape=(4.0,))),
    "shape_of_bools": (DAMAGED, view(shape=(True,))),
    "shape_of_text": (DAMAGED, view(shape="4")),
    "shape_of_a_hundred_axes": ("has 100 axes; more than", view(shape=(1,) * 100, strides=(1,) * 100)),
    "shape_of_endless_axes": (DAMAGED, view(shape=(1,) * 50_000, strides=(1,))),
    "shape_overflows": (
        "tensor 'w' reaches beyond|claims .* elements",
        view(shape=(1 << 32, 1 << 32), strides=(0, 0)),
    ),
    "expanded_to_a_trillion": (
        "claims 1000000000000 elements by repeating a storage of 4; not read",
        view(shape=(10**12,), strides=(0,)),
    ),
    "expanded_many_times": (
        "its tensors claim .* bytes by repeating storages",
        [view(shape=(10**7,), strides=(0,)) for _ in range(1000)],
    ),
    "storage_missing": ("storage '9' is missing: the file is damaged", view(held=storage(key="9"))),
    "storage_shorter": ("storage '0' is shorter than its tensors need", view(held=storage(5), shape=(5,))),
    "storage_of_impossible_size": (DAMAGED, view(held=storage(1 << 62))),
    "storage_of_large_size": ("storage '0' is shorter than its tensors need", view(held=storage(1 << 59))),
    "storage_of_negative_size": (DAMAGED, view(held=storage(-1))),
    "storage_outside": ("storage '../../x' is missing", view(held=storage(key="../../x"))),
    "storage_key_with_escapes": (r"storage '\\x1b\[2J' is missing", view(held=storage(key="\x1b[2J"))),
    "storage_key_is_a_number": (DAMAGED, view(held=storage(key=0))),
    "storage_kind_unknown": ("holds a storage of torch.OddStorage", view(held=storage(kind="OddStorage"))),
    "storage_is_no_storage": (DAMAGED, view(held=[1, 2])),
    "dtype_unknown": (
        "holds elements of torch.odd, which nndiff does not read",
        Call(Name("torch._utils", "_rebuild_tensor_v3"), (storage(), 0, (4,), (1,), False, {}, Name("torch", "odd"))),
    ),
    "dtype_larger_than_storage": (
        BEYOND,
        Call(
            Name("torch._utils", "_rebuild_tensor_v3"),
            (storage(16, "ByteStorage"), 0, (4,), (1,), False, {}, Name("torch", "float64")),
        ),
    ),
    "rebuild_without_arguments": (DAMAGED, Call(Name("torch._utils", "_rebuild_tensor_v2"), ())),
    "quantiser_wrong": (
        DAMAGED,
        Call(Name("torch._utils", "_rebuild_qtensor"), (storage(), 0, (4,), (1,), 7, False, {})),
    ),
    "sparse_without_layout": (DAMAGED, Call(Name("torch._utils", "_rebuild_sparse_tensor"), ([1], (1, 2)))),
    "meta_huge": (
        SENSELESS,
        Call(
            Name("torch._utils", "_rebuild_meta_tensor_no_storage"),
            (Name("torch", "float32"), (1 << 100,), (1,), False),
        ),
    ),
    "meta_negative": (
        SENSELESS,
        Call(Name("torch._utils", "_rebuild_meta_tensor_no_storage"), (Name("torch", "float32"), (-1,), (1,), False)),
    ),
    "not_a_tuple_of_arguments": (DAMAGED, Raw(ops(Name("torch._utils", "_rebuild_tensor_v2")) + ops([1]) + b"R")),
    "persistent_id_wrong": (DAMAGED, Outside(("storage",))),
    "persistent_id_of_text": (DAMAGED, Outside("storage")),
}
for _name, (_trouble, _tensor) in _TORCH.items():
    _made = torch_case(_trouble, _tensor)
    CASES[f"torch_{_name}"] = Case(f"torch_{_name}", _made, ".pt", _trouble)


@case(".pt", "more names of tensors|steps to look through", heavy=True)
def torch_tensors_that_are_attributes_of_tensors(path: Path, payload: str) -> Any:
    body = b"(}\x94"
    for number in range(40):
        inner = (storage(), 0, (4,), (1,), False, {})
        state = Raw(b"h" + bytes([number]))
        rebuild = (Name("torch._utils", "_rebuild_tensor_v2"), Name("a", "B"), inner, state)
        tensor = Call(Name("torch._tensor", "_rebuild_from_type_v2"), rebuild)
        body += ops({"a": tensor, "b": tensor}) + b"\x94"
    return torch_zip(body + b"1h" + bytes([40]), FOUR)


@case(".pt")
def torch_tensor_that_is_its_own_attribute(path: Path, payload: str) -> Any:
    inner = (storage(), 0, (4,), (1,), False, {})
    rebuild = (Name("torch._utils", "_rebuild_tensor_v2"), Name("a", "B"), inner, Raw(b"h\x00"))
    tensor = ops(Call(Name("torch._tensor", "_rebuild_from_type_v2"), rebuild))
    return torch_zip(b"}\x94" + ops("self") + tensor + b"s", FOUR)


@case(".pt", "holds 2 entries data.pkl where a torch file has one")
def torch_with_two_pickles(path: Path, payload: str) -> Any:
    return zip_of({"a/data.pkl": pickled(1), "b/data.pkl": pickled(2)})


@case(".pt", "the list of its storages is damaged")
def legacy_with_storages_that_are_no_names(path: Path, payload: str) -> Any:
    deep = Raw(laughs(60, 1)[2:-1])
    return legacy(ops({"w": view()}), [deep])


@case(".pt", "some of its storages are missing")
def legacy_without_its_storages(path: Path, payload: str) -> Any:
    return legacy(ops({"w": view()}))


@case(".pt", "has 9 elements where 4 are claimed")
def legacy_with_a_storage_of_another_size(path: Path, payload: str) -> Any:
    return legacy(ops({"w": view()}), ["0"], struct.pack("<q", 9) + FOUR["0"])


@case(".pt", "claims bytes")
def legacy_truncated(path: Path, payload: str) -> Any:
    return legacy(ops({"w": view()}), ["0"], struct.pack("<q", 4) + FOUR["0"][:7])


# zip archives


def patched(data: bytes, *changes: tuple[bytes, int, bytes]) -> bytes:
    """Return the bytes with something written at an offset from the last place a mark stands."""
    out = bytearray(data)
    for mark, offset, new in changes:
        at = out.rindex(mark) + offset
        out[at : at + len(new)] = new
    return bytes(out)


GOOD_ZIP = torch_zip(ops({"w": view()}), FOUR)
ENTRY, END = b"PK\x01\x02", b"PK\x05\x06"


@case(".pt", "a bomb; not unpacked", heavy=True)
def zip_bomb_in_the_pickle(path: Path, payload: str) -> Any:
    return zip_of({"x/data.pkl": b"\0" * (260 << 20)}, zipfile.ZIP_DEFLATED)


@case(".pt", "a bomb; not unpacked", heavy=True)
def zip_bomb_in_the_storages(path: Path, payload: str) -> Any:
    body = ops([view(held=storage(100 << 20, key=str(number)), shape=(100 << 20,)) for number in range(5)])
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = b"".join(packed.compress(b"\0" * (1 << 20)) for _ in range(400)) + packed.flush()
    return claimed_zip(
        {"x/data.pkl": (pickled_body(body), None)} | {f"x/data/{n}": (zeros, 400 << 20) for n in range(5)}
    )


def pickled_body(body: bytes) -> bytes:
    return PROTO + body + b"."


def claimed_zip(entries: dict[str, tuple[bytes, int | None]]) -> bytes:
    """Return a zip of entries that are compressed already, with the size each claims (None: stored)."""
    out, directory = b"", b""
    for name, (data, size) in entries.items():
        raw, method = name.encode(), 0 if size is None else 8
        fields = struct.pack("<HHHHHIII", 20, 0, method, 0, 0, zlib.crc32(data), len(data), size or len(data))
        directory += ENTRY + b"\x14\0" + fields + struct.pack("<HHHHHII", len(raw), 0, 0, 0, 0, 0, len(out)) + raw
        out += b"PK\x03\x04" + fields + struct.pack("<HH", len(raw), 0) + raw + data
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(out), 0)
    return out + directory + END + end


@case(".npz", "unpacks to more than 200 bytes; not unpacked")
def zip_bomb_that_claims_to_be_small(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packed.compress(npy("'<f4'", "(4,)", b"\0" * (20 << 20))) + packed.flush()
    return claimed_zip({"w.npy": (zeros, 200)})


@case(".npz", "a bomb; not unpacked", heavy=True)
def zip_bomb_of_arrays(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packed.compress(npy("'<f4'", f"({50 << 20},)", b"\0" * (200 << 20))) + packed.flush()
    return claimed_zip({f"a{number}.npy": (zeros, (200 << 20) + 128) for number in range(60)})


@case(".npz", "unpacks to .* bytes where .* are claimed|compressed data that is damaged")
def zip_entry_that_is_truncated(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packed.compress(npy("'<f4'", "(4000,)", garbage(16000))) + packed.flush()
    return claimed_zip({"large.npy": (data[:-500], 16000 + 128)})


@case(".npz", "does not fit its checksum")
def zip_entry_with_a_wrong_checksum(path: Path, payload: str) -> Any:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    array = npy("'<f4'", "(4,)", b"\0" * 16)
    return claimed_zip({"w.npy": (packed.compress(array) + packed.flush(), len(array))})


@case(".pt", "overlaps the one before it; not read")
def zip_of_overlapping_entries(path: Path, payload: str) -> Any:
    entries = {"x/data.pkl": pickled([]), **{f"x/data/{number}": b"1234" for number in range(10)}}
    data = bytearray(zip_of(entries))
    at = data.index(ENTRY)
    first = struct.unpack_from("<I", data, data.index(ENTRY, at + 4) + 42)[0]
    while (at := data.find(ENTRY, at + 4)) >= 0:
        struct.pack_into("<I", data, at + 42, first)
    return bytes(data)


@case(".pt", "claims a zip directory of .* bytes; not read|damaged or truncated")
def zip_with_a_huge_directory(path: Path, payload: str) -> None:
    with path.open("wb") as file:
        file.write(GOOD_ZIP[:100])
        file.truncate(3 << 30)
        file.seek(3 << 30)
        wide = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, (3 << 30) - 100, 100)
        file.write(b"PK\x06\x06" + wide + b"PK\x06\x07" + struct.pack("<IQI", 0, 3 << 30, 1))
        file.write(END + struct.pack("<HHHHIIH", 0, 0, 1, 1, 46, 100, 0))


@case(".pt", "holds two entries of the name", heavy=True)
def zip_of_many_entries_of_one_name(path: Path, payload: str) -> Any:
    entry = ENTRY + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 170_000
    count = struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    return b"PK\x03\x04" + directory + END + count


@case(".pt", "holds two entries of the name 'x/data.pkl'")
def zip_with_duplicate_names(path: Path, payload: str) -> Any:
    entries: dict[str, tuple[bytes, int | None]] = {"x/data.pkl": (pickled(1), None), "x/data.pkm": (pickled(2), None)}
    return claimed_zip(entries).replace(b".pkm", b".pkl")


@case(".pt", "is encrypted")
def zip_that_is_encrypted(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = -1
    while (at := data.find(ENTRY, at + 1)) >= 0:
        data[at + 8] |= 1
    return bytes(data)


@case(".pt", "is compressed in a way that is not supported")
def zip_of_an_unknown_method(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = -1
    while (at := data.find(ENTRY, at + 1)) >= 0:
        data[at + 10] = 99
    return bytes(data)


@case(".pt", "damaged or truncated")
def zip_truncated(path: Path, payload: str) -> Any:
    return GOOD_ZIP[: len(GOOD_ZIP) // 2]


@case(".pt", "damaged or truncated|does not begin where the directory says")
def zip_directory_elsewhere(path: Path, payload: str) -> Any:
    return patched(GOOD_ZIP, (END, 16, struct.pack("<I", 7)))


@case(".pt", "damaged or truncated|claims bytes|claims a zip directory")
def zip_directory_too_large(path: Path, payload: str) -> Any:
    return patched(GOOD_ZIP, (END, 12, struct.pack("<I", 0xFFFFFFF0)))


@case(".pt", "claims two sizes|claims bytes|overlaps")
def zip_entry_too_large(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = data.index(ENTRY)
    data[at + 20 : at + 28] = struct.pack("<II", 1 << 31, 1 << 31)
    return bytes(data)


@case(".pt", "does not begin where the directory says|overlaps|claims bytes|damaged or truncated")
def zip_entry_elsewhere(path: Path, payload: str) -> Any:
    data = bytearray(GOOD_ZIP)
    at = data.index(ENTRY)
    data[at + 42 : at + 46] = struct.pack("<I", 5)
    return bytes(data)


@case(".pt", "damaged or truncated|claims bytes|does not begin|claims two sizes|overlaps")
def zip64_entry_that_lies(path: Path, payload: str) -> Any:
    data = bytearray(zip_of({"x/data.pkl": pickled(1)}))
    at = data.index(ENTRY)
    extra = struct.pack("<HHQQQ", 1, 24, 1 << 63, 1 << 63, 1 << 63)
    data[at + 20 : at + 28] = b"\xff" * 8
    data[at + 42 : at + 46] = b"\xff" * 4
    data[at + 30 : at + 32] = struct.pack("<H", len(extra))
    name = at + 46 + len("x/data.pkl")
    data[name:name] = extra
    return patched(bytes(data), (END, 12, struct.pack("<I", 46 + 10 + len(extra))))


@case(".pt", "damaged or truncated|claims bytes|claims a zip directory")
def zip64_end_that_lies(path: Path, payload: str) -> Any:
    data = zip_of({"x/data.pkl": pickled(1)})
    end = data.rindex(END)
    wide = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, 1 << 60, 1 << 61)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1)
    return data[:end] + wide + locator + data[end:]


@case(".pt", "a zip archive without tensors; it holds '../../etc/passwd', '/etc/shadow'")
def zip_with_paths_that_lead_away(path: Path, payload: str) -> Any:
    return zip_of({"../../etc/passwd": b"x", "/etc/shadow": b"x"})


@case(".pt")
def zip_of_a_torch_file_in_a_folder_above(path: Path, payload: str) -> Any:
    return zip_of({"../../x/data.pkl": pickled({"w": view()}), "../../x/data/0": FOUR["0"]})


@case(".pt", "a zip archive without tensors; it holds nothing")
def zip_empty(path: Path, payload: str) -> Any:
    return zip_of({})


@case(".pt", "a zip archive that is damaged or truncated")
def zip_signature_alone(path: Path, payload: str) -> Any:
    return b"PK\x03\x04"


# tar archives


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def header(name: bytes = b"a.ckpt", size: bytes = b"00000000001", kind: bytes = b"0") -> bytes:
    raw = bytearray(512)
    raw[: len(name)] = name
    raw[124 : 124 + len(size)] = size
    raw[156:157] = kind
    raw[257:265] = b"ustar\x0000"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


@case(".nemo", "unpacks to more than .* bytes; not unpacked", heavy=True)
def tar_gzip_bomb(path: Path, payload: str) -> None:
    with gzip.open(path, "wb", 1) as file:
        file.write(header(size=b"37777777777"))
        for _ in range(260):
            file.write(b"\0" * (1 << 20))


@case(".nemo", "compressed data that is damaged or truncated|truncated")
def tar_gzip_truncated(path: Path, payload: str) -> Any:
    return tar_of({"model_weights.ckpt": garbage(5000)}, "w:gz")[:2000]


@case(".nemo", "compressed data that is damaged or truncated")
def tar_gzip_of_garbage(path: Path, payload: str) -> Any:
    return b"\x1f\x8b\x08\x00" + garbage(100)


@case(".nemo", "not a tar archive")
def tar_gzip_of_nothing(path: Path, payload: str) -> Any:
    return gzip.compress(b"")


@case(".nemo", "a tar archive that is damaged or truncated|not a tar archive")
def tar_gzip_of_text(path: Path, payload: str) -> Any:
    return gzip.compress(b"hello, world\n" * 100)


@case(".nemo", "a tar archive whose member ends at byte .*: truncated")
def tar_size_beyond(path: Path, payload: str) -> Any:
    return header(size=b"77777777777") + b"\0" * 1024


@case(".nemo", "a tar archive whose member ends at byte")
def tar_size_binary_huge(path: Path, payload: str) -> Any:
    return header(size=b"\x80" + b"\x7f" * 11) + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_size_negative(path: Path, payload: str) -> Any:
    return header(size=b"\xff" * 12) + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_size_of_text(path: Path, payload: str) -> Any:
    return header(size=b"hello") + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_checksum_wrong(path: Path, payload: str) -> Any:
    return header().replace(b"a.ckpt", b"b.ckpt") + b"\0" * 1024


@case(".nemo", "has a tar header of .* bytes; not read|ends at byte")
def tar_pax_huge(path: Path, payload: str) -> Any:
    return header(b"p", b"%011o" % (2 << 20), b"x") + b"1" * (2 << 20) + header() + b"\0" * 1024


@case(".nemo", "damaged or truncated")
def tar_pax_of_digits(path: Path, payload: str) -> Any:
    """The standard library takes time that grows with the square of these digits."""
    return (header(b"p", b"%011o" % 65024, b"x") + b"1" * 65024) * 20 + header() + b"\0" * 1024


@case(".nemo", "damaged or truncated|without weights")
def tar_pax_that_lies(path: Path, payload: str) -> Any:
    text = b"999999 path=/etc/passwd\n"
    return header(b"p", b"%011o" % len(text), b"x") + text.ljust(512, b"\0") + header() + b"\0" * 1024


@case(".nemo", "has a tar header of .* bytes; not read")
def tar_long_name_huge(path: Path, payload: str) -> Any:
    return header(b"n", b"%011o" % (2 << 20), b"L") + b"n" * (2 << 20) + header() + b"\0" * 1024


@case(".nemo", "holds more than 100000 members; not read", heavy=True)
def tar_of_many_members(path: Path, payload: str) -> Any:
    return gzip.compress(header(b"d", b"0", b"5") * 150_000, 1)


@case(".nemo", "holds two members of the name 'a.ckpt'")
def tar_with_duplicate_names(path: Path, payload: str) -> Any:
    return (header() + b"x".ljust(512, b"\0")) * 2 + b"\0" * 1024


@case(".nemo", "a tar archive without weights; it holds '../../etc/passwd', '/etc/shadow'")
def tar_with_paths_that_lead_away(path: Path, payload: str) -> Any:
    return tar_of({"../../etc/passwd": b"x", "/etc/shadow": b"x"})


@case(".nemo", "a tar archive without weights; it holds nothing")
def tar_of_links_devices_and_sparse_files(path: Path, payload: str) -> Any:
    kinds = b"123456SDVM"
    links = b"".join(header(b"model_weights.ckpt", b"0", kinds[at : at + 1]) for at in range(len(kinds)))
    return links + b"\0" * 1024


@case(".nemo", "a tar archive without weights")
def tar_with_a_sparse_pax_member(path: Path, payload: str) -> Any:
    records = b"".join(
        b"%d %s\n" % (len(each) + 4, each) for each in (b"GNU.sparse.major=1", b"GNU.sparse.name=a.ckpt")
    )
    return header(b"p", b"%011o" % len(records), b"x") + records.ljust(512, b"\0") + header() + b"x".ljust(1536, b"\0")


@case(".nemo", "its pickle is damaged|a damaged torch file|truncated or damaged")
def tar_with_weights_of_garbage(path: Path, payload: str) -> Any:
    return tar_of({"model_weights.ckpt": garbage(1000)})


# safetensors


def safetensors(head: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def shaped(axis: bytes) -> bytes:
    return safetensors(b'{"w":{"dtype":"F32","shape":[' + axis + b'],"data_offsets":[0,4]}}', b"1234")


TWICE = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
ESCAPES = "\x1b[2J\x07\n<script>"
NOT_WHOLE = "tensor 'w' has sizes that are not whole numbers of zero or more"
_SAFETENSORS: dict[str, tuple[str | None, bytes]] = {
    "header_longer_than_the_file": (
        "claims a header of 1000 bytes in a file of",
        safetensors({"w": entry()}, b"1234", 1000),
    ),
    "header_of_all_memory": (
        "claims a header of .* bytes in a file of",
        safetensors({"w": entry()}, b"1234", (1 << 64) - 1),
    ),
    "header_missing": ("too short to be a safetensors file", b"\x08\0\0\0"),
    "header_cut": ("claims a header of", safetensors({"w": entry()}, b"1234")[:30]),
    "header_not_json": ("has a safetensors header that is not valid JSON", safetensors(b"{hello", b"1234")),
    "header_not_utf8": ("has a safetensors header that is not valid JSON", safetensors(b'{"\xff\xfe": 1}', b"1234")),
    "header_is_a_list": ("claims a header of|not a JSON object|knows", safetensors(b"[1, 2, 3]", b"1234")),
    "header_deep": ("not valid JSON", safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    "header_of_many_values": (
        "has a safetensors header of more than .* values; not read",
        safetensors(b'{"a":[' + b"{}," * 2_000_000 + b"{}]}"),
    ),
    "header_of_large_numbers": ("not valid JSON|not whole numbers", shaped(b"9" * 5000)),
    "header_of_infinity": (NOT_WHOLE, shaped(b"Infinity")),
    "entry_is_a_list": ("the header entry of 'w' is not a tensor", safetensors({"w": [1, 2]})),
    "entry_is_text": ("the header entry of 'w' is not a tensor", safetensors({"w": "hello"})),
    "entry_without_dtype": ("the header entry of 'w' is not a tensor", safetensors({"w": {"shape": [1]}})),
    "entry_with_three_offsets": (
        "the header entry of 'w' is not a tensor",
        safetensors({"w": entry(offsets=(0, 2, 4))}, b"1234"),
    ),
    "dtype_unknown": ("tensor 'w' has the unknown dtype 'F7'", safetensors({"w": entry("F7")}, b"1234")),
    "dtype_is_a_list": ("tensor 'w' has the unknown dtype a list", safetensors({"w": entry(["F32"])}, b"1234")),
    "offsets_reversed": ("needs 4 bytes and claims -4", safetensors({"w": entry(offsets=(4, 0))}, b"1234")),
    "offsets_beyond": (
        "ends at byte 8 of 4: the file is truncated",
        safetensors({"w": entry(offsets=(4, 8))}, b"1234"),
    ),
    "offsets_negative": (NOT_WHOLE, safetensors({"w": entry(offsets=(-4, 0))}, b"1234")),
    "offsets_of_floats": (NOT_WHOLE, safetensors({"w": entry(offsets=(0.0, 4.0))}, b"1234")),
    "offsets_of_bools": (NOT_WHOLE, safetensors({"w": entry("U8", offsets=(False, True))}, b"1234")),
    "offsets_of_text": (NOT_WHOLE, safetensors({"w": entry(offsets="04")}, b"1234")),
    "offsets_huge": (NOT_WHOLE, safetensors({"w": entry(offsets=(1 << 70, (1 << 70) + 4))}, b"1234")),
    "offsets_overlap": (
        "tensor 'v' overlaps the one before it",
        safetensors({"w": entry(), "v": entry(offsets=(2, 6))}, b"123456"),
    ),
    "offsets_shared": (
        "overlaps the one before it",
        safetensors({f"w{number}": entry() for number in range(1000)}, b"1234"),
    ),
    "shape_larger": ("needs 8 bytes and claims 4", safetensors({"w": entry(shape=(2,))}, b"1234")),
    "shape_negative": (NOT_WHOLE, safetensors({"w": entry(shape=(-1,))}, b"1234")),
    "shape_of_floats": (NOT_WHOLE, safetensors({"w": entry(shape=(1.0,))}, b"1234")),
    "shape_of_bools": (NOT_WHOLE, safetensors({"w": entry(shape=(True,))}, b"1234")),
    "shape_overflows": (
        "needs .* bytes and claims 4",
        safetensors({"w": entry(shape=(1 << 62, 1 << 62, 4))}, b"1234"),
    ),
    "shape_overflows_to_zero": (
        "needs .* bytes and claims 0",
        safetensors({"w": entry(shape=(1 << 32, 1 << 32), offsets=(0, 0))}),
    ),
    "shape_of_many_axes": ("axes; more than .* are not read", safetensors({"w": entry(shape=(1,) * 100_000)}, b"1234")),
    "shape_of_many_large_axes": (
        "axes; more than .* are not read",
        safetensors({"w": entry(shape=((1 << 62),) * 60_000)}, b"1234"),
    ),
    "names_twice": (
        "holds two entries of the name 'w'",
        safetensors(TWICE, b"12"),
    ),
    "name_very_long": ("is not a tensor", safetensors({"n" * 3_000_000: 1})),
    "name_with_escapes": (r"entry of '\\x1b\[2J\\x07\\n<script>' is not a tensor", safetensors({ESCAPES: 1})),
    "metadata_is_a_list": ("the metadata of its header is not an object", safetensors({"__metadata__": [1]})),
    "metadata_of_numbers": (None, safetensors({"__metadata__": {"a": 1, "b": {"c": []}}, "w": entry()}, b"1234")),
    "packed_bits": ("does not fill whole bytes", safetensors({"w": entry("F4", (3,), (0, 2))}, b"12")),
}
for _name, (_trouble, _data) in _SAFETENSORS.items():
    CASES[f"safetensors_{_name}"] = Case(
        f"safetensors_{_name}", lambda path, payload, data=_data: data, ".safetensors", _trouble
    )


@case(".safetensors")
def names_with_escapes_and_script_tags(path: Path, payload: str) -> Any:
    names = [
        "\x1b[2J\x1b]0;owned\x07",
        "<script>alert(1)</script>",
        "a\r\nb",
        "\u202egnp.exe",
        "[red]x[/red]",
        "\ud800",
    ]
    head = {name: entry(offsets=(4 * at, 4 * at + 4)) for at, name in enumerate(names)}
    return safetensors({"__metadata__": {"\x1b[31m": "\x1b[2J"}, **head}, b"\0" * 4 * len(names))


# NumPy


def npy(descr: str, shape: str, body: bytes, version: int = 1, fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


HEADER = "the header of the .npy file is damaged"
SHAPE = "the header of the .npy file gives a senseless shape or order"
_NPY: dict[str, tuple[str | None, bytes]] = {
    "shape_larger": ("array 'npy_shape_larger' needs 400 bytes, the file holds 4", npy("'<f4'", "(100,)", b"1234")),
    "shape_of_all_memory": ("needs .* bytes, the file holds 4", npy("'<f4'", "(1152921504606846976,)", b"1234")),
    "shape_overflows": ("needs .* bytes, the file holds 4", npy("'<f4'", "(4611686018427387903, 4)", b"1234")),
    "shape_negative": (SHAPE, npy("'<f4'", "(-1,)", b"1234")),
    "shape_of_floats": (SHAPE, npy("'<f4'", "(1.0,)", b"1234")),
    "shape_of_many_axes": (SHAPE, npy("'<f4'", "(" + "1," * 1000 + ")", b"1234")),
    "shape_is_a_number": (SHAPE, npy("'<f4'", "4", b"1234")),
    "shape_is_code": (HEADER, npy("'<f4'", "(exit(),)", b"1234")),
    "order_is_text": (SHAPE, npy("'<f4'", "(1,)", b"1234", fortran="'yes'")),
    "dtype_none": ("not of numbers", npy("None", "(1,)", b"12345678")),
    "dtype_records": ("not of numbers", npy("[('a', '<f4'), ('b', 'O')]", "(1,)", b"1234")),
    "dtype_of_subarrays": ("not of numbers", npy("'(1000000000,)f4'", "(1,)", b"1234")),
    "dtype_of_many_fields": ("not of numbers", npy("'f4," + "f4," * 2000 + "'", "(1,)", b"1234")),
    "dtype_odd_size": ("not of numbers", npy("'<f3'", "(1,)", b"1234")),
    "dtype_text": ("not of numbers", npy("'<U1000'", "(1,)", b"1234")),
    "dtype_with_escapes": (r"'\\x1b\[2J'", npy(r"'\x1b[2J'", "(1,)", b"1234")),
    "escape_unknown": ("not of numbers", npy(r"'\d\q'", "(1,)", b"1234")),
    "header_longer_than_the_file": ("claims a .npy header of", npy("'<f4'", "(1,)", b"")[:40]),
    "header_huge": ("claims a .npy header of", npy("'<f4'", "(1,)" + " " * 200_000, b"1234", 2)),
    "header_deep": (HEADER, npy("(" * 4000 + ")" * 4000, "(1,)", b"1234")),
    "header_of_signs": (HEADER, npy("-" * 9000 + "1", "(1,)", b"1234")),
    "header_of_sums": (HEADER, npy("1" + "+1" * 4000, "(1,)", b"1234")),
    "header_of_attributes": (HEADER, npy("a" + ".a" * 4000, "(1,)", b"1234")),
    "header_of_nulls": (HEADER, b"\x93NUMPY\x01\x00\x20\x00" + b"\0" * 32),
    "header_is_a_list": (HEADER, b"\x93NUMPY\x01\x00\x09\x00" + b"[1, 2, 3]" + b"12345"),
    "cut": ("not a .npy file, or a truncated one", b"\x93NUMPY\x01"),
}
for _name, (_trouble, _data) in _NPY.items():
    CASES[f"npy_{_name}"] = Case(f"npy_{_name}", lambda path, payload, data=_data: data, ".npy", _trouble)


# folders and their indexes


def indexed(path: Path, weight_map: Any) -> None:
    path.mkdir()
    (path / "a.safetensors").write_bytes(safetensors({"w": entry()}, b"1234"))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


_INDEX: dict[str, tuple[str, Any]] = {
    "of_a_file_above": ("names a shard outside its own folder: '../../etc/passwd'", {"w": "../../etc/passwd"}),
    "of_an_absolute_path": ("names a shard outside its own folder: '/etc/passwd'", {"w": "/etc/passwd"}),
    "of_a_windows_path": ("names a shard outside its own folder", {"w": "..\\x"}),
    "of_a_null_byte": ("names a shard outside its own folder", {"w": "a\0b"}),
    "of_the_folder_itself": ("names a shard outside its own folder", {"w": "."}),
    "of_a_missing_shard": ("b.safetensors: no such file or directory", {"w": "b.safetensors"}),
    "of_itself": ("names an index as a shard", {"w": "model.safetensors.index.json"}),
    "of_a_number": ("its weight_map does not name a shard for every tensor", {"w": 1}),
    "of_nothing": ("its weight_map does not name a shard for every tensor", {}),
    "that_is_a_list": (r"it has no weight_map", ["w"]),
    "that_is_wrong": ("says that 'a.safetensors' holds 'v', and it does not", {"v": "a.safetensors"}),
    "of_a_long_name": ("names a shard outside its own folder", {"w": "a" * 10_000}),
    "with_escapes": (r"'\\x1b\[2J/x'", {"w": "\x1b[2J/x"}),
}
for _name, (_trouble, _map) in _INDEX.items():
    CASES[f"index_{_name}"] = Case(
        f"index_{_name}", lambda path, payload, found=_map: indexed(path, found), "", _trouble
    )


@case(".json", "that is not valid JSON")
def index_deep(path: Path, payload: str) -> Any:
    return b'{"weight_map":' * 50_000


@case(".json", "bytes; more than .* are not read")
def index_huge(path: Path, payload: str) -> Any:
    return b'{"weight_map":' + b" " * (40 << 20) + b"{}}"


@case("", "a folder without any file nndiff can read")
def folder_empty(path: Path, payload: str) -> None:
    path.mkdir()


@case("", "x.npy: not a regular file but a named pipe")
def folder_with_a_pipe(path: Path, payload: str) -> None:
    path.mkdir()
    os.mkfifo(path / "x.npy")


@case("", "x.npy: not a regular file but a folder")
def folder_with_a_folder(path: Path, payload: str) -> None:
    (path / "x.npy").mkdir(parents=True)


@case("", "too many levels of symbolic links")
def folder_with_a_link_to_itself(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "x.npy").symlink_to("x.npy")


@case("", "both hold 'x'")
def folder_with_two_arrays_of_one_name(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "x.npy").write_bytes(npy("'<f4'", "(1,)", b"1234"))
    (path / "x.pt").write_bytes(torch_zip(ops(view()), FOUR))


@case("", "(?s)bad.*: (empty|not a)")
def folder_with_escapes_in_a_name(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "bad\x1b[2J\n.npy").write_bytes(b"")


@case("", "its pickle is damaged|whose .metadata is damaged")
def folder_with_metadata_of_garbage(path: Path, payload: str) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(garbage(100))


def distributed(path: Path, size: Any, chunk: Any, place: dict[str, Any], offset: Any = (0,), held: Any = None) -> None:
    """Write metadata as torch does, and say anything in it."""
    made = "torch.distributed.checkpoint.metadata"

    def node(name: str, state: Any) -> Raw:
        return Raw(ops(Name(made, name)) + b")\x81" + ops(state) + b"b")

    chunks = [node("ChunkStorageMetadata", {"offsets": offset, "sizes": chunk})]
    properties = node("TensorProperties", (Name("torch", "float32"), None, False, None, False))
    tensor = node("TensorStorageMetadata", {"properties": properties, "size": size, "chunks": chunks})
    index = node("MetadataIndex", {"fqn": "w", "offset": offset, "index": 0})
    info = node("_StorageInfo", {"relative_path": "f.distcp", "offset": 0, "length": 1000, **place})
    path.mkdir()
    (path / "f.distcp").write_bytes(torch_zip(ops(held or view()), FOUR).ljust(1000, b"\0"))
    state = {"state_dict_metadata": {"w": tensor}, "storage_data": {index: info}}
    (path / ".metadata").write_bytes(pickled(node("Metadata", state)))


_DISTRIBUTED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "of_a_file_above": ("names a file outside its own folder", ((4,), (4,), {"relative_path": "../x"})),
    "of_an_absolute_path": ("names a file outside its own folder", ((4,), (4,), {"relative_path": "/etc/passwd"})),
    "of_a_missing_file": ("no such file or directory", ((4,), (4,), {"relative_path": "missing"})),
    "place_beyond": ("claims bytes", ((4,), (4,), {"offset": 1 << 60})),
    "place_negative": ("claims bytes", ((4,), (4,), {"offset": -8})),
    "place_of_text": ("gives 'w' no place", ((4,), (4,), {"offset": "x"})),
    "size_of_a_terabyte": ("too short for its", ((1 << 38,), (1 << 38,), {})),
    "chunk_of_another_shape": ("has another shape or dtype", ((4,), (4,), {}, (0,), view(shape=(2,)))),
    "chunk_that_is_no_tensor": ("is not a tensor", ((4,), (4,), {}, (0,), [view()])),
    "size_of_text": ("senseless shape", ("four", (4,), {})),
    "size_of_many_axes": ("senseless shape", ((1 << 59,) * 100_000, (4,), {})),
    "chunk_beyond": ("missing or does not fit", ((4,), (5,), {})),
    "chunk_missing": ("missing or does not fit|do not make up", ((4,), (4,), {}, (1,))),
    "offset_of_numbers": ("senseless shape", ((4,), (4,), {}, 7)),
    "offset_deep": ("senseless shape", ((4,), (4,), {}, Raw(b")" + b"\x85" * 100_000))),
}
for _name, (_trouble, _arguments) in _DISTRIBUTED.items():
    CASES[f"distributed_{_name}"] = Case(
        f"distributed_{_name}", lambda path, payload, given=_arguments: distributed(path, *given), "", _trouble
    )


# what is no file of tensors at all


@case(".safetensors", "empty|too short")
def file_empty(path: Path, payload: str) -> Any:
    return b""


@case(".pt", "empty")
def file_empty_torch(path: Path, payload: str) -> Any:
    return b""


@case(".pt", "not a file of tensors that nndiff knows")
def file_of_text_named_pt(path: Path, payload: str) -> Any:
    return b"hello, world\n" * 50


@case(".txt", "not a file of tensors that nndiff knows")
def file_of_text(path: Path, payload: str) -> Any:
    return b"hello, world\n" * 50


@case(".gguf", "a GGUF file, which nndiff does not read")
def file_of_another_kind(path: Path, payload: str) -> Any:
    return b"GGUF" + b"\0" * 100


@case(".bin", "not a file of tensors that nndiff knows")
def file_of_noise(path: Path, payload: str) -> Any:
    return bytes((number * 73 + 41) % 251 for number in range(5000))


@case(".pt", "not a regular file but a named pipe")
def file_is_a_pipe(path: Path, payload: str) -> None:
    os.mkfifo(path)


@case(".pt", "not a regular file but a socket")
def file_is_a_socket(path: Path, payload: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


@case(".pt", "not a regular file but a device")
def file_is_a_device(path: Path, payload: str) -> None:
    path.symlink_to("/dev/zero")


@case(".pt", "too many levels of symbolic links")
def file_is_a_loop(path: Path, payload: str) -> None:
    path.symlink_to(path.name)


@case(".pt", "no such file or directory")
def file_is_a_link_to_nothing(path: Path, payload: str) -> None:
    path.symlink_to("nothing")


@case(".pt", "no such file or directory")
def file_is_missing(path: Path, payload: str) -> None:
    pass


@case(".pt", "no such file or directory", part="key")
def file_is_missing_with_a_part(path: Path, payload: str) -> None:
    pass


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for each in CASES.values():
        each.write(folder, folder / "canary")


if __name__ == "__main__":
    main()
