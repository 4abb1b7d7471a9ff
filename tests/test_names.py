"""Names: order, patterns, safe printing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nndiff.dtypes import DTYPES
from nndiff.errors import UsageError
from nndiff.names import looks_trainable, matches, natural_key, parse_groups, selected
from nndiff.text import counted, listed, plural, printable


def test_layer_nine_comes_before_layer_ten():
    names = ["layers.10.w", "layers.9.w", "layers.1.w", "layers.w", "head"]
    assert sorted(names, key=natural_key) == ["head", "layers.1.w", "layers.9.w", "layers.10.w", "layers.w"]


@given(st.lists(st.text(max_size=20)))
def test_any_names_can_be_sorted(names):
    assert sorted(sorted(names, key=natural_key)) == sorted(names)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*.bias", "a.b.bias", True),
        ("*.bias", "a.b.weight", False),
        ("encoder.layers.1", "encoder.layers.1.w", True),
        ("encoder.layers.1", "encoder.layers.10.w", False),
        ("encoder", "encoder", True),
        ("encoder.layers.1", "encoder.layers.1:output", True),
        ("encoder.layers.1", "encoder.layers.1@2:output.0", True),
        ("encoder.layers.1", "encoder.layers.10:output", False),
        (r"re:layers\.[0-3]\.", "x.layers.2.w", True),
        (r"re:^layers", "x.layers.2.w", False),
        ("a[0-1]", "a1", True),
        ("*.norm", "layers.0.norm:output", True),
        ("*.norm", "layers.0.norm@2:output.0", True),
        ("*.norm", "layers.0.norm:grad_output#1", True),
        ("*.norm", "layers.0.norm.weight:param_grad", True),
        ("*.weight", "layers.0.norm.weight:param_grad", True),
        ("*.norm", "layers.0.norm.inner:output", False),
        ("*.norm", "layers.0.norms:output", False),
        ("re:norm$", "layers.0.norm@1:output", True),
        ("re:norm:output$", "layers.0.norm:output", True),
        (r"re:^(?!.*grad)", "fc:grad_output", False),
        (r"re:^[^:]*$", "fc:output", False),
        ("relu@2", "relu%402:output", True),
        ("*kernel", "dense/kernel:0", False),
    ],
)
def test_patterns(pattern, name, expected):
    assert matches(name, pattern) is expected


def test_include_and_exclude_see_through_wrappers():
    assert selected("module.encoder.w", ["encoder"], [])
    assert not selected("module.encoder.w", [], ["encoder"])
    assert selected("anything", [], [])


def test_a_bad_regex_is_a_usage_error():
    with pytest.raises(UsageError, match="regular expression"):
        matches("x", "re:(")


@pytest.mark.parametrize("specs", [["head"], ["=x"], ["a=b", "a=c"]])
def test_bad_groups_are_refused(specs):
    with pytest.raises(UsageError, match="--group"):
        parse_groups(specs)


@given(st.text())
def test_printable_text_has_no_control_characters(text):
    assert all(char.isprintable() for char in printable(text))


def test_printable_keeps_letters_and_shows_what_it_took_out():
    assert printable("a\x1b[31mб\u202e\n") == "a\\x1b[31mб\\u202e\\n"
    assert printable("x" * 50, 10) == "x" * 9 + "…"


def test_buffers_do_not_look_trainable():
    assert looks_trainable("a.weight", DTYPES["bfloat16"])
    assert not looks_trainable("bn.running_mean", DTYPES["float32"])
    assert not looks_trainable("ids", DTYPES["int64"])


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 tensors"), (1, "1 tensor"), (2, "2 tensors"), (1234, "1,234 tensors")]
)
def test_words_agree_with_their_number(number, said):
    assert plural(number, "tensor") == said


def test_counted_and_listed():
    assert counted(["fc"], "module") == "1 module (fc)"
    assert counted(["fc", "act"], "module") == "2 modules (fc first)"
    assert listed(list("abc")) == "a, b, c"
    assert listed(list("abcdef")) == "a, b, c, d, e, ..."
