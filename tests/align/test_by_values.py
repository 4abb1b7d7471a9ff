"""Pairing files by what they hold: renamed, rearranged, fused, cast, changed in places; nothing by luck."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from helpers import Arrays, refs
from nndiff.align import Alignment, align
from nndiff.result import Method, NoteSlug

LAYERS = 12
NAMES = (
    ("transformer.wte", "tok"),
    ("transformer.wpe", "pos"),
    ("transformer.ln_f", "norm"),
    ("transformer.h.", "blocks."),
    ("lm_head", "head"),
    ("ln_1", "norm1"),
    ("ln_2", "norm2"),
    ("attn.c_attn", "qkv"),
    ("attn.c_proj", "proj"),
    ("mlp.c_fc", "fc1"),
    ("mlp.c_proj", "fc2"),
)


@cache
def fresh_gpt2() -> Arrays:
    """Return a GPT-2 as transformers initialises it: many zeros and ones, tied embeddings."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS, n_embd=16, n_head=2, vocab_size=50, n_positions=20, bos_token_id=0, eos_token_id=0
    )
    return {name: value.numpy() for name, value in GPT2LMHeadModel(config).state_dict().items()}


@cache
def trained_gpt2() -> Arrays:
    random = np.random.default_rng(0)
    trained = {}
    for name, value in fresh_gpt2().items():
        trained[name] = value + random.standard_normal(value.shape).astype(np.float32) / 10
    return trained | {"lm_head.weight": trained["transformer.wte.weight"]}


def rename(name: str) -> str:
    for word, replacement in NAMES:
        name = name.replace(word, replacement)
    return name


def port(arrays: Arrays) -> Arrays:
    """Return the same model under other names, its linear layers transposed."""
    ported = {}
    for name, value in arrays.items():
        ported[rename(name)] = value.T.copy() if value.ndim == 2 and ".h." in name else value
    return ported


def split(arrays: Arrays) -> Arrays:
    """Return a port with query, key and value apart."""
    parts = {}
    for name, value in arrays.items():
        pieces = np.split(value, 3) if "qkv" in name else [value]
        for letter, piece in zip("qkv", pieces, strict=False):
            parts[name.replace("qkv", letter) if len(pieces) == 3 else name] = piece
    return parts


def pair(reference: Arrays, candidate: Arrays) -> Alignment:
    return align(refs(reference), refs(candidate), content=True)


def wrong_pairs(alignment: Alignment, rename: Callable[[str], str] = rename) -> list[tuple[str, str]]:
    return [
        (match.reference, match.candidate) for match in alignment.matches if rename(match.reference) != match.candidate
    ]


def count_methods(alignment: Alignment) -> Counter[Method]:
    return Counter(match.method for match in alignment.matches)


def test_a_renamed_and_transposed_model_is_paired_whole() -> None:
    found = pair(trained_gpt2(), port(trained_gpt2()))
    assert count_methods(found) == {Method.VALUES: 4 * LAYERS, Method.CONTENT: 8 * LAYERS + 5}
    assert wrong_pairs(found) == []
    assert all(match.certain for match in found.matches)
    assert (found.only_reference, found.only_candidate, found.notes) == ({}, {}, ())


def test_zeros_and_ones_are_told_apart_by_what_is_around_them() -> None:
    found = pair(fresh_gpt2(), port(fresh_gpt2()))
    assert wrong_pairs(found) == []
    assert len(found.matches) == len(fresh_gpt2())
    guessed = {match.reference for match in found.matches if not match.certain}
    assert guessed == {"transformer.ln_f.weight", "transformer.ln_f.bias"}  # constants at the top: nothing around them


def test_content_is_read_only_if_asked() -> None:
    assert align(refs(trained_gpt2()), refs(port(trained_gpt2()))).matches == ()


@pytest.mark.parametrize("model", [fresh_gpt2, trained_gpt2])
def test_a_changed_tensor_is_found_by_its_place(model: Callable[[], Arrays]) -> None:
    changed = port(model())
    for name in ("blocks.3.qkv.weight", "blocks.3.proj.weight", "blocks.0.fc1.weight", "blocks.11.fc2.weight"):
        changed[name] = changed[name] + 1
    found = pair(model(), changed)
    assert wrong_pairs(found) == []
    blocks = [match for match in found.matches if match.method is Method.BLOCK]
    assert len(blocks) == 4
    assert all(match.certain for match in blocks)


def test_a_tensor_that_changed_in_every_layer_is_guessed() -> None:
    changed = {
        name: value + 1 if "proj.weight" in name or "wte" in name else value
        for name, value in port(trained_gpt2()).items()
    }
    found = pair(trained_gpt2(), changed)
    assert wrong_pairs(found) == []
    blocks = [match for match in found.matches if match.method is Method.BLOCK]
    assert len(blocks) == LAYERS
    assert not any(match.certain for match in blocks)


def test_names_decide_only_between_tensors_of_one_shape_and_block() -> None:
    random = np.random.default_rng(1)
    reference, candidate = {}, {}
    for layer in range(3):
        for name, partner, is_changed in (("wq", "q_proj", 1), ("wk", "k_proj", 0), ("wv", "v_proj", 1)):
            value = random.standard_normal((6, 6))
            reference[f"layers.{layer}.attention.{name}.weight"] = value
            candidate[f"model.layers.{layer}.self_attn.{partner}.weight"] = value + is_changed
    found = pair(reference, candidate)
    partners = {match.reference[-9:]: (match.candidate[-13:], match.certain) for match in found.matches}
    assert partners == {
        "wq.weight": ("q_proj.weight", False),
        "wk.weight": ("k_proj.weight", True),
        "wv.weight": ("v_proj.weight", False),
    }


@pytest.mark.parametrize(
    "move",
    [
        lambda number: number + 1,
        lambda number: LAYERS - 1 - number,
    ],
)
def test_layers_may_be_counted_from_another_number_or_down(move: Callable[[int], int]) -> None:
    def rename_moved(name: str) -> str:
        return re.sub(r"blocks\.(\d+)", lambda found: f"blocks.{move(int(found[1]))}", rename(name))

    moved = {}
    for name, value in fresh_gpt2().items():
        moved[rename_moved(name)] = value
    found = pair(fresh_gpt2(), moved)
    assert len(found.matches) == len(moved)
    assert wrong_pairs(found, rename_moved) == []


@pytest.mark.parametrize(
    "move",
    [
        lambda number: int(sorted(map(str, range(LAYERS)))[number]),
        lambda number: (5 * number + 3) % LAYERS,
    ],
)
def test_layers_in_disorder_are_paired_by_their_numbers(move: Callable[[int], int]) -> None:
    moved = {}
    for name, value in fresh_gpt2().items():
        moved[re.sub(r"blocks\.(\d+)", lambda found: f"blocks.{move(int(found[1]))}", rename(name))] = value
    found = pair(fresh_gpt2(), moved)
    assert len(found.matches) == len(moved)
    assert wrong_pairs(found, rename) == []


@pytest.mark.parametrize(("order", "partners"), [((1, 0), ["1", "0"]), ((1, 0, 2), ["0", "1", "2"])])
def test_disorder_begins_with_three_layers(order: tuple[int, ...], partners: list[str]) -> None:
    random = np.random.default_rng(0)
    layers = [random.standard_normal((6, 6)) for _ in order]
    reference = {f"h.{number}.weight": layer for number, layer in enumerate(layers)}
    candidate = {f"blocks.{number}.w": layer for number, layer in zip(order, layers, strict=True)}
    found = pair(reference, candidate)
    assert [match.candidate.split(".")[1] for match in found.matches] == partners


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("is_stored_back", [False, True])
def test_a_cast_model_is_paired(dtype: str, is_stored_back: bool) -> None:
    import torch

    cast = {}
    for name, value in port(trained_gpt2()).items():
        rounded = torch.from_numpy(value).to(getattr(torch, dtype))
        cast[name] = rounded.float() if is_stored_back else rounded
    for sides in ((trained_gpt2(), cast), (cast, trained_gpt2())):
        found = align(refs(sides[0]), refs(sides[1]), content=True)
        assert count_methods(found)[Method.CAST] >= 11 * LAYERS
        pairs = {tuple(sorted((match.reference, match.candidate))) for match in found.matches}
        assert all(tuple(sorted((name, rename(name)))) in pairs for name in trained_gpt2() if ".h." in name)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("model", [fresh_gpt2, trained_gpt2])
def test_query_key_and_value_are_one_fused_tensor(model: Callable[[], Arrays], turned: bool) -> None:
    sides = model(), split(port(model()))
    found = pair(*(sides[::-1] if turned else sides))
    groups = {}
    for group in found.groups:
        (whole,), parts = (group.candidate, group.reference) if turned else (group.reference, group.candidate)
        groups[whole] = set(parts)
        assert group.method is Method.GROUP
    expected = {}
    for layer in range(LAYERS):
        for leaf in ("weight", "bias"):
            parts = {f"blocks.{layer}.{letter}.{leaf}" for letter in "qkv"}
            expected[f"transformer.h.{layer}.attn.c_attn.{leaf}"] = parts
    assert groups == expected
    names = set(expected) | {part for parts in expected.values() for part in parts}
    assert set(found.only_reference) | set(found.only_candidate) == names  # leftovers until someone proves them


def test_a_group_of_which_a_part_changed_is_found_by_its_place() -> None:
    changed = split(port(trained_gpt2()))
    changed["blocks.5.k.weight"] = changed["blocks.5.k.weight"] * 2
    (group,) = (group for group in pair(trained_gpt2(), changed).groups if group.method is Method.BLOCK)
    assert group.reference == ("transformer.h.5.attn.c_attn.weight",)
    assert set(group.candidate) == {f"blocks.5.{letter}.weight" for letter in "qkv"}


def test_a_fused_model_that_was_cast_is_found() -> None:
    halves = {name: value.astype(np.float16) for name, value in split(port(trained_gpt2())).items()}
    found = pair(trained_gpt2(), halves)
    assert len(found.groups) == 2 * LAYERS
    assert wrong_pairs(found) == []


def test_experts_are_one_stack() -> None:
    random = np.random.default_rng(2)
    reference, candidate = {}, {}
    for layer in range(2):
        for name in ("w1", "w2", "w3"):
            for expert in range(6):
                reference[f"layers.{layer}.experts.{expert}.{name}.weight"] = random.standard_normal((4, 3))
    for layer in range(2):
        w1, w2, w3 = (
            np.stack([reference[f"layers.{layer}.experts.{expert}.{name}.weight"] for expert in range(6)])
            for name in ("w1", "w2", "w3")
        )
        candidate[f"blocks.{layer}.moe.down"] = w2.transpose(0, 2, 1).copy()
        candidate[f"blocks.{layer}.moe.gate_up"] = np.concatenate([w1, w3], axis=1)
    groups = {group.candidate: group.reference for group in pair(reference, candidate).groups}
    for layer in range(2):
        down = {f"layers.{layer}.experts.{expert}.w2.weight" for expert in range(6)}
        assert set(groups[(f"blocks.{layer}.moe.down",)]) == down
        assert len(groups[(f"blocks.{layer}.moe.gate_up",)]) == 12
    assert len(groups) == 4


def test_all_layers_in_one_stack() -> None:
    random = np.random.default_rng(3)
    layers = {f"layers.{layer}.weight": random.standard_normal((3, 5)) for layer in range(11)}
    stack = {"stack": np.stack(list(layers.values()))}
    (group,) = pair(stack, layers).groups
    assert group.candidate == tuple(layers)  # in natural order


def test_names_without_a_word_in_common_need_no_numbers() -> None:
    random = np.random.default_rng(4)
    parts = {
        letter: random.standard_normal((size, 4)) for letter, size in zip("abcdef", (2, 3, 4, 5, 2, 6), strict=True)
    }
    wholes = {
        "two": np.concatenate([parts["a"], parts["d"]]),
        "four": np.concatenate([parts["f"], parts["b"], parts["e"], parts["c"]], axis=0),
    }
    groups = {group.reference: group.candidate for group in pair(wholes, parts).groups}
    assert groups == {("two",): ("a", "d"), ("four",): ("b", "c", "e", "f")}


def test_parts_that_add_up_in_two_ways_are_no_group() -> None:
    part = np.random.default_rng(7).standard_normal(20)
    parts = {"a": part, "b": part, "c": part + 9}
    assert pair({"whole": np.concatenate([part, part + 9])}, parts).groups == ()
    assert pair({"whole": np.concatenate([part, part, part + 9])}, parts).groups != ()


def test_unrelated_models_are_not_paired() -> None:
    random = np.random.default_rng(5)
    other = {rename(name): random.standard_normal(value.shape) for name, value in trained_gpt2().items()}
    found = pair(trained_gpt2(), other)
    assert (found.matches, found.groups) == ((), ())


def test_equal_tensors_without_a_place_are_ambiguous() -> None:
    value = np.arange(6.0)
    found = pair({"a": value, "b": value, "c": value * 2}, {"x": value, "y": value, "z": value * 2})
    assert [(match.reference, match.candidate) for match in found.matches] == [("c", "z")]
    assert found.only_reference["a"].partners == found.only_reference["b"].partners == ("x", "y")
    assert found.only_candidate["x"].partners == ("a", "b")
    (note,) = found.notes
    assert note.slug is NoteSlug.AMBIGUOUS_CONTENT
    assert "a, b and x, y" in note.text


def test_one_constant_on_each_side_is_no_proof() -> None:
    assert pair({"a": np.ones(5)}, {"x": np.ones(5)}).matches == ()
    assert pair({"a": np.array(3)}, {"x": np.array(3)}).matches == ()
    beside = pair({"m.a": np.ones(5), "m.w": np.arange(4.0)}, {"n.x": np.ones(5), "n.y": np.arange(4.0)})
    assert {match.reference: match.certain for match in beside.matches} == {"m.w": True, "m.a": True}


def test_weights_that_are_tied_on_one_side_are_paired_once() -> None:
    once = {name: value for name, value in port(trained_gpt2()).items() if name != "head.weight"}
    found = pair(trained_gpt2(), once)
    assert wrong_pairs(found) == []
    assert list(found.only_reference) == ["lm_head.weight"]
    assert not found.only_candidate


@pytest.mark.parametrize(("values", "is_paired"), [(6, False), (30, True)])
def test_a_few_values_in_another_order_are_no_proof(values: int, is_paired: bool) -> None:
    array = np.arange(300) % values
    shuffled = np.random.default_rng(6).permutation(array)
    assert len(pair({"a": array}, {"x": shuffled}).matches) == is_paired
    assert len(pair({"a": array}, {"x": array}).matches) == 1


def test_content_decides_between_two_prefixes() -> None:
    random = np.random.default_rng(8)
    teacher = {f"layers.{layer}.weight": random.standard_normal((3, 3)) for layer in range(3)}
    both = {}
    for name, value in teacher.items():
        both[f"student.{name}"] = value + 1
        both[f"teacher.{name}"] = value
    found = pair(teacher, both)
    assert {match.candidate for match in found.matches} == {f"teacher.{name}" for name in teacher}
    assert {match.method for match in found.matches} == {Method.PREFIX}
    assert {match.reference for match in pair(both, teacher).matches} == {f"teacher.{name}" for name in teacher}


@pytest.mark.parametrize("is_equal", [False, True])
def test_the_note_on_prefixes_says_what_decides(is_equal: bool) -> None:
    random = np.random.default_rng(9)
    model = {f"layers.{layer}.weight": random.standard_normal((3, 3)) for layer in range(3)}
    both = {}
    for prefix in ("student.", "teacher."):
        for name, value in model.items():
            both[prefix + name] = value if is_equal else random.standard_normal((3, 3))
    for sides in ((model, both), (both, model)):
        (note, *_) = pair(*sides).notes
        assert note.slug is NoteSlug.AMBIGUOUS_PREFIX
        assert "::student after the" in note.text
        assert ("--rename '^student\\.=>'" in note.text) is (sides[1] is both)
