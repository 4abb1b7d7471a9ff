"""Torch files, zip and legacy, that lie about what they hold."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

from cases import CASES, Case, Make, case
from hand_pickles import DAMAGED, PROTO, Call, Name, Outside, Raw, laughs, ops, pickled


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


IMPOSSIBLE = "tensor 'w' has a negative or impossible shape, stride or offset"
BEYOND = "tensor 'w' reaches beyond its storage of 16 bytes"
_TORCH: dict[str, tuple[str | None, Any]] = {
    "offset_beyond": (BEYOND, view(offset=1)),
    "offset_far_beyond": (BEYOND, view(offset=1 << 61)),
    "offset_negative": (IMPOSSIBLE, view(offset=-1)),
    "offset_none": (IMPOSSIBLE, view(offset=None)),
    "offset_true": (IMPOSSIBLE, view(offset=True)),
    "stride_beyond": (BEYOND, view(strides=(2,))),
    "stride_negative": (IMPOSSIBLE, view(offset=3, strides=(-1,))),
    "stride_huge": (IMPOSSIBLE, view(strides=(1 << 100,))),
    "stride_of_one_element_huge": (None, view(shape=(1, 2), strides=((1 << 61) + 1, 2))),
    "strides_missing": ("has 2 axes and 1 strides", view(shape=(2, 2))),
    "shape_beyond": (BEYOND, view(shape=(5,))),
    "shape_negative": (IMPOSSIBLE, view(shape=(-4,))),
    "shape_huge": (IMPOSSIBLE, view(shape=(1 << 100,), strides=(0,))),
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
        IMPOSSIBLE,
        Call(
            Name("torch._utils", "_rebuild_meta_tensor_no_storage"),
            (Name("torch", "float32"), (1 << 100,), (1,), False),
        ),
    ),
    "meta_negative": (
        IMPOSSIBLE,
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
