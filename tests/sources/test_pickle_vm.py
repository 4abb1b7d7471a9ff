"""Pickles too large to be read whole: the same objects, and a clear error when the file is cut."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources import open_source
from nndiff.sources.pickle_vm import PickleMachine

LARGE = 6 << 20  # elements of float32: more bytes than are read of a pickle at once


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_large_pickle_is_read_in_blocks(tmp_path: Path, protocol: int) -> None:
    arrays = {f"layer{number}": np.arange(number, dtype=np.float32) for number in range(1, 600)}
    arrays["large"] = np.arange(LARGE, dtype=np.float32)
    arrays["last"] = np.arange(5.0)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(arrays, protocol))
    opened = open_source(tmp_path / "x.pkl")
    assert list(opened.tensors) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(opened.tensors[name].numpy(), array)


def test_a_large_pickle_that_is_cut_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps([bytes(4 * LARGE), *range(100_000)]))
    machine = PickleMachine(Window(RegularFile(str(path))), {})
    os.truncate(path, 4 * LARGE + 1000)
    with pytest.raises(SourceError, match="became shorter while it was being read"):
        machine.load()
