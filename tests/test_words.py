"""One of a thing is one thing."""

from __future__ import annotations

import pytest

from nndiff.words import counted, listed, plural


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 tensors"), (1, "1 tensor"), (2, "2 tensors"), (1234, "1,234 tensors")]
)
def test_plural(number, said):
    assert plural(number, "tensor") == said


def test_counted_and_listed():
    assert counted(["fc"], "module") == "1 module (fc)"
    assert counted(["fc", "act"], "module") == "2 modules (fc first)"
    assert listed(list("abc")) == "a, b, c"
    assert listed(list("abcdef")) == "a, b, c, d, e, ..."
