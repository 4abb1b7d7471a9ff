"""The page that documents the format is executed, and knows what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nndiff.recording import open_recording
from nndiff.recording.format.digests import PART
from nndiff.recording.format.events import LINKS, SLOTS, Content
from nndiff.recording.format.layout import FORMAT, KEEP_LEVELS, VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "recording-format.md").read_text()


def test_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/recording-format.md", "exec"), {})
    found = open_recording("jax.nnrec")
    assert np.array_equal(found.source().tensors["encoder.0@1:output"].numpy(), np.zeros((2, 3)))


def test_it_names_what_there_is() -> None:
    for word in (*SLOTS, *LINKS, *KEEP_LEVELS, *(content.value for content in Content), FORMAT):
        assert f"`{word}`" in PAGE or f'"{word}"' in PAGE, word
    assert f"version {VERSION}" in PAGE.splitlines()[0]
    assert f"{PART:,}" in PAGE
