"""Payloads, by every opcode that could run one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from cases import case
from hand_pickles import DAMAGED, PROTO, SYSTEM, Call, Name, Outside, Raw, ops, pickled
from numpy_files import npy
from tar_files import tar_of
from torch_files import legacy, torch_zip, zip_of


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


@case(".npy", "has elements of '.O', not numbers; pickled objects are not read")
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
