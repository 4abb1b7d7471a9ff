"""Pairing files by name: every pair says how it was found, nothing is paired twice, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import tensors
from nndiff.align import Hint, align
from nndiff.names import strip_wrappers
from nndiff.result import Method, NoteSlug


def how(alignment) -> dict[str, tuple[str, str]]:
    return {match.reference: (match.candidate, match.method) for match in alignment.matches}


def test_equal_names_pair_by_name():
    assert how(align(tensors(a=(1,), b=(2,)), tensors(b=(2,), a=(1,)))) == {
        "a": ("a", Method.NAME),
        "b": ("b", Method.NAME),
    }


@pytest.mark.parametrize(
    "wrapped",
    [
        "module.enc.w",
        "_orig_mod.enc.w",
        "model.enc.w",
        "_forward_module.enc.w",
        "_fsdp_wrapped_module.enc.w",
        "base_model.model.enc.w",
        "module.model._orig_mod.enc.w",
        "enc._orig_mod.w",
        "_fsdp_wrapped_module.enc._fsdp_wrapped_module.w",
        "base_model.model.model.enc.w",
    ],
)
def test_wrapper_prefixes_are_seen_through(wrapped):
    assert strip_wrappers(wrapped) == "enc.w"
    both = tensors(enc__w=(2, 3), other=(1,))
    assert how(align(both, {wrapped: both["enc.w"], "other": both["other"]}))["enc.w"] == (wrapped, Method.PREFIX)
    assert how(align({wrapped: both["enc.w"], "other": both["other"]}, both))[wrapped] == ("enc.w", Method.PREFIX)


def test_an_exact_name_comes_before_a_stripped_one():
    found = align(tensors(model__w=(1,), w=(1,)), tensors(w=(1,), model__w=(1,)))
    assert how(found) == {"model.w": ("model.w", Method.NAME), "w": ("w", Method.NAME)}


def test_a_prefix_that_stands_for_two_names_decides_nothing():
    found = align(tensors(w=(1,)), tensors(model__w=(1,), module__w=(1,)))
    assert how(found) == {}
    assert set(found.only_reference) == {"w"}
    assert set(found.only_candidate) == {"model.w", "module.w"}


def test_one_unknown_prefix_pairs_all_that_is_left():
    found = align(tensors(a__w=(2,), a__b=(3,)), tensors(backbone__a__w=(2,), backbone__a__b=(3,)))
    assert how(found) == {
        "a.w": ("backbone.a.w", Method.PREFIX),
        "a.b": ("backbone.a.b", Method.PREFIX),
    }


def test_an_unknown_prefix_is_not_guessed_when_a_shape_disagrees():
    found = align(tensors(a__w=(2,), a__b=(3,)), tensors(backbone__a__w=(2,), backbone__a__b=(4,)))
    assert how(found) == {}


def test_two_prefixes_that_do_as_well_are_noted_and_not_used():
    short = tensors(w=(2,), b=(3,))
    long = tensors(x__w=(2,), x__b=(3,), y__w=(2,), y__b=(3,))
    found = align(short, long)
    assert how(found) == {}
    assert [note.slug for note in found.notes] == [NoteSlug.AMBIGUOUS_PREFIX]


def test_the_only_tensor_of_each_side_is_paired_only_where_files_give_no_names():
    reference, candidate = tensors(encoder__weight=(2,)), tensors(decoder__bias=(2,))
    assert how(align(reference, candidate)) == {}
    assert how(align(reference, candidate, nameless=True)) == {"encoder.weight": ("decoder.bias", Method.ONLY)}
    assert how(align(reference, tensors(decoder__bias=(3,)), nameless=True)) == {}


def test_a_leftover_that_shares_memory_with_a_paired_tensor_says_so():
    embedding = tensors(w=(4, 2))["w"]
    tied = replace(embedding, storage_id="memory")
    found = align({"embedding": tied, "head": tied, "head.T": replace(tied, shape=(2, 4))}, {"embedding": embedding})
    assert found.only_reference["head"] == Hint(same_as="embedding")
    assert found.only_reference["head.T"] == Hint()


def test_a_close_name_of_another_shape_tells_that_shape():
    found = align(tensors(layer__weight=(2, 3)), tensors(layer__weigth=(3, 2)))
    assert found.only_reference["layer.weight"] == Hint(near="layer.weigth", near_shape=(3, 2))


def test_leftovers_of_both_sides_carry_hints():
    found = align(
        tensors(encoder__layer__weight=(3,), alone=(5, 7), q=(2,)),
        tensors(encoder__layer__weigth=(3,), quite_different=(5, 7), z=(9,)),
    )
    assert found.only_reference["encoder.layer.weight"] == Hint(near="encoder.layer.weigth")
    assert found.only_reference["alone"] == Hint(near="quite_different")
    assert found.only_reference["q"] == Hint()
    assert set(found.only_candidate) == {"encoder.layer.weigth", "quite_different", "z"}


@pytest.mark.parametrize(("name", "is_close"), [("encoder__layers__9__fc", True), ("decoder__blk__9__fc", False)])
def test_a_name_is_close_if_most_of_its_letters_are_the_same(name, is_close):
    # two of one shape on each side: the shape says nothing
    found = align(tensors(encoder__layers__0__norm=(3,), z=(3,)), tensors(**{name: (3,), "q": (3,)}))
    hint = Hint(near=name.replace("__", ".")) if is_close else Hint()
    assert found.only_reference["encoder.layers.0.norm"] == hint


_NAMES = st.sets(
    st.lists(st.sampled_from(["model", "module", "_orig_mod", "a", "b", "0"]), min_size=1, max_size=4).map(".".join),
    max_size=8,
)


@given(_NAMES, _NAMES)
def test_every_name_is_paired_once_or_left_over(left, right):
    zeros = tensors(x=(1,))["x"]
    found = align(dict.fromkeys(left, zeros), dict.fromkeys(right, zeros))
    assert sorted([match.reference for match in found.matches] + list(found.only_reference)) == sorted(left)
    assert sorted([match.candidate for match in found.matches] + list(found.only_candidate)) == sorted(right)
    for match in found.matches:
        assert match.certain
        if match.method is Method.NAME:
            assert match.reference == match.candidate
        else:
            assert match.method is Method.PREFIX
            longer, shorter = sorted((match.reference, match.candidate), key=len, reverse=True)
            assert strip_wrappers(longer) == strip_wrappers(shorter) or longer.endswith(f".{shorter}")
    assert left & right <= {match.reference for match in found.matches}
