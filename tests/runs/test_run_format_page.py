"""The page that documents the format of runs is executed, and knows what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nndiff.runs import capture, states
from nndiff.runs.batch import MOST_SAMPLES, fingerprint_batch
from nndiff.runs.files import DESCRIPTION, FORMAT, KEEP_LEVELS, LAYOUTS, LOCK, STEPS, VERSION, name_state
from nndiff.runs.reader import open_run
from nndiff.runs.run import TensorKind
from nndiff.stats.sketches import STATISTICS

PAGE = (Path(__file__).parents[2] / "docs" / "run-format.md").read_text()


def test_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/run-format.md", "exec"), {})
    assert [step.has_tensors for step in open_run("runs/ours").steps] == [True, False, True, False]


def test_it_names_what_there_is() -> None:
    words = [*KEEP_LEVELS, *(kind.value for kind in TensorKind), DESCRIPTION, STEPS, LAYOUTS, LOCK, name_state(0)]
    words += [states.STATISTICS, states.DIGESTS, states.SKETCHES, states.HOMES, *STATISTICS[:5]]
    for word in words:
        assert f"`{word}`" in PAGE, word
    assert f'"{FORMAT}"' in PAGE
    assert f"version {VERSION}" in PAGE.splitlines()[0]
    for number in (capture.WEIGHT_BUDGET, capture.GRADIENT_BUDGET, capture.BUFFER_BUDGET, MOST_SAMPLES):
        assert f"{number:,}" in PAGE
    assert capture.STATE_BUDGET == capture.GRADIENT_BUDGET


def test_fingerprints_of_batches_are_made_as_it_says() -> None:
    import hashlib

    import xxhash

    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = [xxhash.xxh3_128(row.tobytes().ljust(256, b"\0")).intdigest() & (1 << 64) - 1 for row in array]
    samples = b"".join(row.to_bytes(8, "little") for row in rows)
    digest = hashlib.blake2b(b"float32 [3, 4]\0" + samples, digest_size=16).hexdigest()
    (part,) = fingerprint_batch(array)
    assert (part.samples, part.digest) == (samples, digest)
