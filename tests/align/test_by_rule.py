"""The user's rules: they come first, and rules that mean nothing are refused or noted."""

from __future__ import annotations

import pytest

from helpers import tensors
from nndiff.align import Rename, align, read_map
from nndiff.errors import AlignmentError, UsageError
from nndiff.result import Method, NoteSlug


def how(alignment) -> dict[str, tuple[str, str]]:
    return {match.reference: (match.candidate, match.method) for match in alignment.matches}


def test_rename_rules_apply_in_turn_and_are_named():
    rules = [Rename.parse(r"^enc\.=>encoder."), Rename.parse(r"\.w$=>.weight")]
    found = align(tensors(encoder__weight=(1,), x=(1,)), tensors(enc__w=(1,), x=(1,)), rules)
    assert how(found) == {"encoder.weight": ("enc.w", Method.RENAME), "x": ("x", Method.NAME)}


def test_rename_rules_see_through_wrappers():
    found = align(tensors(encoder__w=(1,)), tensors(module__enc__w=(1,)), [Rename.parse(r"^enc\.=>encoder.")])
    assert how(found) == {"encoder.w": ("module.enc.w", Method.RENAME)}


def test_a_rule_that_changes_nothing_is_said():
    found = align(tensors(a=(1,)), tensors(a=(1,)), [Rename.parse("zzz=>y")])
    assert [note.slug for note in found.notes] == [NoteSlug.RULE_WITHOUT_EFFECT]
    assert "zzz" in found.notes[0].text


def test_rules_that_make_two_names_one_are_refused():
    with pytest.raises(AlignmentError, match="turn both 'b1' and 'b2' into 'a'"):
        align(tensors(a=(1,)), tensors(b1=(1,), b2=(1,)), [Rename.parse("b.=>a")])


@pytest.mark.parametrize("text", ["no arrow", "=>x", "(=>x", r"a=>\2", r"(a)=>\g<nope>"])
def test_bad_rules_are_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match="--rename"):
        Rename.parse(text)


def test_a_map_comes_first(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("# ref => cand\na => b\nb => a  # crossed\n")
    found = align(tensors(a=(1,), b=(1,), c=(1,)), tensors(a=(1,), b=(1,), c=(1,)), mapping=read_map(str(file)))
    assert how(found) == {"a": ("b", Method.MAP), "b": ("a", Method.MAP), "c": ("c", Method.NAME)}


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


def test_a_map_of_unknown_names_says_what_was_meant():
    with pytest.raises(AlignmentError, match=r"'layer1.w'.*did you mean 'layer1.weight'"):
        align(tensors(layer1__weight=(1,)), tensors(b=(1,)), mapping={"layer1.w": "b"})


def test_a_map_of_modules_maps_all_that_is_inside():
    reference = tensors(enc__0__weight=(1,), enc__0__bias=(1,), enc__1__weight=(1,), encoded=(1,))
    candidate = tensors(e__first__weight=(1,), e__first__bias=(1,), e__1__weight=(1,), encoded=(1,))
    found = align(reference, candidate, mapping={"enc": "e", "enc.0": "e.first"})
    assert how(found) == {
        "enc.0.weight": ("e.first.weight", Method.MAP),
        "enc.0.bias": ("e.first.bias", Method.MAP),
        "enc.1.weight": ("e.1.weight", Method.MAP),
        "encoded": ("encoded", Method.NAME),
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


def test_a_number_sign_inside_a_name_is_no_comment(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("act@1:output#2 => relu:output # the second call\n")
    assert read_map(str(file)) == {"act@1:output#2": "relu:output"}


def test_a_map_of_modules_maps_all_their_calls():
    reference = {"act:output": tensors(x=(1,))["x"], "act@1:output": tensors(x=(1,))["x"]}
    candidate = {name.replace("act", "relu"): tensor for name, tensor in reference.items()}
    found = align(reference, candidate, mapping={"act": "relu"})
    assert how(found) == {name: (name.replace("act", "relu"), Method.MAP) for name in reference}
