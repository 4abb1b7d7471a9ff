"""Pickles that claim, nest and repeat."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from cases import case
from hand_pickles import ARRAY, DAMAGED, DTYPE, PROTO, STEPS, Call, Name, Raw, laughs, ops, pickled
from torch_files import legacy


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
    return PROTO + b"]r\xff\xff\xff\xff" + b"p" + b"9" * 4000 + b"\n0j\xff\xff\xff\xff."


@case(".pkl", "a pickle of protocol 99; nndiff reads protocols up to 5")
def pickle_of_protocol_99(path: Path, payload: str) -> Any:
    return b"\x80\x63" + pickled({"w": ARRAY})[2:]


@case(".pkl", "a pickle of protocol 6; nndiff reads protocols up to 5")
def pickle_that_turns_to_protocol_6(path: Path, payload: str) -> Any:
    return PROTO + b"\x80\x06" + pickled({"w": ARRAY})[2:]


@case(".pkl", "holds no tensors, only 7")
def pickle_of_the_number_7(path: Path, payload: str) -> Any:
    return pickled(7)


@case(".pkl", "holds no tensors, only 'hello'")
def pickle_of_a_text(path: Path, payload: str) -> Any:
    return pickled("hello")


@case(".pkl", "rebuilds a tensor from a value of type str: the file is damaged")
def pickle_of_a_parameter_made_of_text(path: Path, payload: str) -> Any:
    return pickled({"w": Call(Name("torch._utils", "_rebuild_parameter"), ("text", True, {}))})


@case(".pkl", "rebuilds a tensor from a value of type int: the file is damaged")
def pickle_of_a_parameter_with_state_made_of_a_number(path: Path, payload: str) -> Any:
    return pickled({"w": Call(Name("torch._utils", "_rebuild_parameter_with_state"), (7, True, {}, {}))})


@case(".pkl", "rebuilds a tensor from a value of type tuple: the file is damaged")
def pickle_of_a_device_tensor_made_of_a_tuple(path: Path, payload: str) -> Any:
    function = Name("torch._utils", "_rebuild_device_tensor_from_numpy")
    return pickled({"w": Call(function, ((1, 2), "float32", "xla", False))})


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


@case(".pkl", "bytes of text and numbers; not read", heavy=True)
def pickle_of_much_text(path: Path, payload: str) -> Any:
    text = ("a" * 1_000_000 + "\U0001f600").encode()
    return PROTO + b"](" + (b"X" + struct.pack("<I", len(text)) + text) * 80 + b"e."


@case(".pkl", "bytes of text and numbers; not read", heavy=True)
def pickle_of_many_large_numbers(path: Path, payload: str) -> Any:
    return PROTO + b"](" + (b"\x8b" + struct.pack("<I", 4096) + b"\x7f" * 4096) * 20_000 + b"e."


@case(".pkl", heavy=True)
def pickle_of_a_deep_list(path: Path, payload: str) -> Any:
    return PROTO + b"]" * 200_000 + b"a" * 199_999 + b"."


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


@case(".pkl", "more names of tensors than any model has", heavy=True)
def pickle_of_endless_names(path: Path, payload: str) -> Any:
    return pickled({"x" * 900_000: [ARRAY] * 2000})


@case(".pkl", heavy=True)
def pickle_of_a_long_key_above_many_lists(path: Path, payload: str) -> Any:
    return PROTO + b"}" + ops("x" * 900_000) + b"](" + b"]Na" * 100_000 + b"es" + ops("w") + ops(ARRAY) + b"s."


@case(".pkl", "more names of tensors than any model has", heavy=True)
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


@case(".pkl", "takes more than|names more than", heavy=True)
def pickle_of_many_classes(path: Path, payload: str) -> Any:
    return PROTO + b"](" + b"".join(b"ca\nb%d\n" % number for number in range(50_000)) + b"e."


@case(".pkl", DAMAGED)
def pickle_of_a_class_with_a_long_name(path: Path, payload: str) -> Any:
    return PROTO + ops("m" * 900_000) + ops("n" * 900_000) + b"\x93."


@case(".pkl", None, heavy=True)
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


@case(".pkl", "holds two tensors named 'a.b'")
def pickle_of_two_tensors_of_one_name(path: Path, payload: str) -> Any:
    return pickled({"a": {"b": ARRAY}, "a.b": ARRAY})
