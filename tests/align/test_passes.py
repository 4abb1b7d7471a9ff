"""Pairing in passes: every pair says how it was found, nothing is paired twice, nothing is lost."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import tensors
from nndiff.align import Rename, align, read_map
from nndiff.errors import AlignmentError, UsageError
from nndiff.names import strip_wrappers


def how(alignment) -> dict[str, tuple[str, str]]:
    return {match.reference: (match.candidate, match.matched_by) for match in alignment.matches}


def test_equal_names_pair_by_name():
    assert how(align(tensors(a=(1,), b=(2,)), tensors(b=(2,), a=(1,)))) == {"a": ("a", "name"), "b": ("b", "name")}


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
    assert how(align(both, {wrapped: both["enc.w"], "other": both["other"]}))["enc.w"] == (wrapped, "prefix")
    assert how(align({wrapped: both["enc.w"], "other": both["other"]}, both))[wrapped] == ("enc.w", "prefix")


def test_an_exact_name_comes_before_a_stripped_one():
    found = align(tensors(model__w=(1,), w=(1,)), tensors(w=(1,), model__w=(1,)))
    assert how(found) == {"model.w": ("model.w", "name"), "w": ("w", "name")}


def test_a_prefix_that_stands_for_two_names_decides_nothing():
    found = align(tensors(w=(1,)), tensors(model__w=(1,), module__w=(1,)))
    assert how(found) == {}
    assert set(found.only_reference) == {"w"}
    assert set(found.only_candidate) == {"model.w", "module.w"}


def test_one_unknown_prefix_pairs_all_that_is_left():
    found = align(tensors(a__w=(2,), a__b=(3,)), tensors(backbone__a__w=(2,), backbone__a__b=(3,)))
    assert how(found) == {
        "a.w": ("backbone.a.w", "prefix backbone."),
        "a.b": ("backbone.a.b", "prefix backbone."),
    }


def test_an_unknown_prefix_is_not_guessed_when_a_shape_disagrees():
    found = align(tensors(a__w=(2,), a__b=(3,)), tensors(backbone__a__w=(2,), backbone__a__b=(4,)))
    assert how(found) == {}


def test_rename_rules_apply_in_turn_and_are_named():
    rules = [Rename.parse(r"^enc\.=>encoder."), Rename.parse(r"\.w$=>.weight")]
    found = align(tensors(encoder__weight=(1,), x=(1,)), tensors(enc__w=(1,), x=(1,)), rules)
    assert how(found) == {"encoder.weight": ("enc.w", "rename"), "x": ("x", "name")}


def test_rename_rules_see_through_wrappers():
    found = align(tensors(encoder__w=(1,)), tensors(module__enc__w=(1,)), [Rename.parse(r"^enc\.=>encoder.")])
    assert how(found) == {"encoder.w": ("module.enc.w", "rename")}


def test_a_rule_that_changes_nothing_is_said():
    found = align(tensors(a=(1,)), tensors(a=(1,)), [Rename.parse("zzz=>y")])
    assert "zzz" in found.notes[0]


def test_rules_that_make_two_names_one_are_refused():
    with pytest.raises(AlignmentError, match="make one name"):
        align(tensors(a=(1,)), tensors(b1=(1,), b2=(1,)), [Rename.parse("b.=>a")])


@pytest.mark.parametrize("text", ["no arrow", "=>x", "(=>x", r"a=>\2", r"(a)=>\g<nope>"])
def test_bad_rules_are_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match="--rename"):
        Rename.parse(text)


def test_a_map_comes_first(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("# ref => cand\na => b\nb => a  # crossed\n")
    found = align(tensors(a=(1,), b=(1,), c=(1,)), tensors(a=(1,), b=(1,), c=(1,)), mapping=read_map(str(file)))
    assert how(found) == {"a": ("b", "map"), "b": ("a", "map"), "c": ("c", "name")}


def test_a_map_may_be_json(tmp_path):
    file = tmp_path / "map.json"
    file.write_text('{"a": "b"}')
    assert read_map(str(file)) == {"a": "b"}


@pytest.mark.parametrize("text", ["a => b => c", "a b c", "a => x\na => y", "{", '{"a": 1}'])
def test_a_bad_map_is_refused(tmp_path, text):
    file = tmp_path / "map"
    file.write_text(text)
    with pytest.raises(AlignmentError, match="map"):
        read_map(str(file))


def test_a_map_that_is_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "map")
    with pytest.raises(AlignmentError, match="map: not a regular file"):
        read_map(str(tmp_path / "map"))


def test_a_map_of_unknown_names_says_what_was_meant():
    with pytest.raises(AlignmentError, match=r"'layer1.w'.*did you mean 'layer1.weight'"):
        align(tensors(layer1__weight=(1,)), tensors(b=(1,)), mapping={"layer1.w": "b"})


def test_a_map_of_modules_maps_all_that_is_inside():
    reference = tensors(enc__0__weight=(1,), enc__0__bias=(1,), enc__1__weight=(1,), encoded=(1,))
    candidate = tensors(e__first__weight=(1,), e__first__bias=(1,), e__1__weight=(1,), encoded=(1,))
    found = align(reference, candidate, mapping={"enc": "e", "enc.0": "e.first"})
    assert how(found) == {
        "enc.0.weight": ("e.first.weight", "map"),
        "enc.0.bias": ("e.first.bias", "map"),
        "enc.1.weight": ("e.1.weight", "map"),
        "encoded": ("encoded", "name"),
    }


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"a": "c"}, "nothing inside them goes by the same names"),
        ({"x": "c"}, "'x', which the reference does not have"),
        ({"a": "x"}, "'a', which the reference does not have|'x', which the candidate does not have"),
        ({"a.w": "c.v", "b.w": "c.v"}, "to two of the reference's"),
    ],
)
def test_a_map_of_modules_that_says_nothing_is_refused(mapping, said):
    with pytest.raises(AlignmentError, match=said):
        align(tensors(a__w=(1,), b__w=(1,)), tensors(c__v=(1,)), mapping=mapping)


def test_calls_have_numbers_in_a_map(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("act#2:output => relu:output # the second call\n")
    assert read_map(str(file)) == {"act#2:output": "relu:output"}


def test_leftovers_of_both_sides_carry_hints():
    found = align(
        tensors(encoder__layer__weight=(3,), alone=(5, 7), q=(2,)),
        tensors(encoder__layer__weigth=(3,), quite_different=(5, 7), z=(9,)),
    )
    assert "'encoder.layer.weigth'" in found.only_reference["encoder.layer.weight"]
    assert "only other one of its shape" in found.only_reference["alone"]
    assert found.only_reference["q"] == ""
    assert set(found.only_candidate) == {"encoder.layer.weigth", "quite_different", "z"}


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
        if match.matched_by == "name":
            assert match.reference == match.candidate
        elif match.matched_by == "prefix":
            assert strip_wrappers(match.reference) == strip_wrappers(match.candidate)
    assert left & right <= {match.reference for match in found.matches}
