"""Files damaged at random and pickles made at random: they open, or one of our errors says why not.

A few seconds of it run with every test. NNDIFF_FUZZ=20000 runs that many examples of each.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import distributed
from fuzzing import check_law, damaged, damaged_inside, pickles, seeds, trees, write
from hand_pickles import PROTO, ops
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors_files import entry, safetensors
from torch_files import FOUR, legacy, torch_zip

EXAMPLES = int(os.environ.get("NNDIFF_FUZZ", "0"))
few = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,  # the same examples every day; new ones when asked for
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    database=None,
)
KINDS = [
    "safetensors", "torch", "torch deflated", "torch legacy", "torch module", "pickle 0", "pickle 2", "pickle 5",
    "npy", "npz", "npz deflated", "nemo", "nemo gzip", "tar pax", "index", "distributed",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def test_every_kind_has_a_seed_that_opens(tmp_path: Path) -> None:
    assert list(seeds()) == KINDS
    for number, (kind, (name, data)) in enumerate(seeds().items()):
        (tmp_path / str(number)).mkdir()
        opens = check_law(write(tmp_path / str(number), name, data))
        assert opens == (kind != "index"), kind  # whose shard is missing


ACCIDENTS = [(kind, damaged) for kind in KINDS]
ACCIDENTS += [(kind, damaged_inside) for kind in ("torch", "torch module", "npz")]


@pytest.mark.parametrize(("kind", "accident"), ACCIDENTS)
def test_damaged_files(kind: str, accident: Callable[[bytes, random.Random], bytes], folder: Path) -> None:
    name, data = seeds()[kind]
    place = folder / f"{kind} {accident.__name__}"
    place.mkdir()
    chance = random.Random(os.environ.get("NNDIFF_FUZZ_SEED", kind))
    for _ in range(EXAMPLES or 60):
        broken = accident(data, chance)
        where = write(place, name, broken)
        try:
            check_law(where)
        except BaseException:
            print(f"the file that broke the law: {broken!r}")  # noqa: T201
            raise


@few
@given(body=pickles())
def test_pickles_of_random_opcodes(folder: Path, body: bytes) -> None:
    (folder / "x.pkl").write_bytes(PROTO + body + b".")
    check_law(str(folder / "x.pkl"))


@few
@given(value=trees(), old=st.booleans())
def test_torch_files_of_random_objects(folder: Path, value: Any, old: bool) -> None:
    body = ops(value)
    storages = struct.pack("<q", 4) + FOUR["0"]
    data = legacy(body, ["0"], storages) if old else torch_zip(body, FOUR)
    (folder / "x.pt").write_bytes(data)
    check_law(str(folder / "x.pt"))
    check_law(str(folder / "x.pt") + "::a")


@few
@given(size=trees(), chunk=trees(), offset=trees())
def test_distributed_metadata_of_random_objects(folder: Path, size: Any, chunk: Any, offset: Any) -> None:
    import shutil

    place = folder / "dcp"
    shutil.rmtree(place, ignore_errors=True)
    distributed(place, size, chunk, {}, offset)
    check_law(str(place))


@few
@given(st.data())
def test_safetensors_headers_of_random_json(folder: Path, data: st.DataObject) -> None:
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.floats(), st.sampled_from(["F32", "U8", "F4", "x"])),
        lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(max_size=3), below, max_size=2)),
        max_leaves=6,
    )
    sizes = st.one_of(st.lists(st.integers(0, 8), max_size=3), values)
    entries = st.one_of(st.builds(entry, st.sampled_from(["F32", "U8", "F4", "I64"]), sizes, sizes), values)
    head = data.draw(st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "é"]), entries, max_size=3))
    (folder / "x.safetensors").write_bytes(safetensors(head, bytes(16)))
    check_law(str(folder / "x.safetensors"))


def test_the_law_can_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that finds nothing must be able to find something."""
    import fuzzing

    def broken(path: str) -> Any:
        raise KeyError(path)

    monkeypatch.setattr(fuzzing, "open_source", broken)
    with pytest.raises(KeyError):
        check_law(str(tmp_path))
