"""Map files: written, read back, and refused in one sentence where they are damaged or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversion.map_builders import make_entry, store_map
from helpers import save
from nndiff.commands import main
from nndiff.conversion import ConversionMap, Entry, Missing, MissingReason, is_conversion_map, read_conversion_map
from nndiff.relations.operations import Concatenate, Multiply, Permute, Reshape, Take
from nndiff.verdict import RelationKind


def test_a_map_is_read_back_as_it_was(tmp_path: Path) -> None:
    operations = (Permute((1, 0)), Concatenate(0), Take(0, (2, 0, 1)), Multiply(0.5), Reshape((3, 2)))
    conversion = ConversionMap(
        "left",
        "right\n",
        (
            Entry("b", ("a", "c"), operations, "bfloat16", (3, 2), RelationKind.LAYOUT),
            Entry('"quoted"', ("ü",), (), "float32", (), None, proven=False),
        ),
        (Missing("m", MissingReason.ONE_WAY, "fold"), Missing("mask", MissingReason.COMPUTED)),
        ("left over",),
    )
    path = tmp_path / "map.json"
    path.write_text(conversion.to_text())
    assert is_conversion_map(str(path))
    assert read_conversion_map(str(path)) == conversion
    assert json.loads(conversion.to_text()) == conversion.to_dict()
    assert [missing.blocks for missing in conversion.missing] == [True, False]


HUGE = 1 << 62
DAMAGED: dict[str, Any] = {
    "target": make_entry(target=5),
    "no target": {key: value for key, value in make_entry().items() if key != "target"},
    "sources": make_entry(sources="a"),
    "no source": make_entry(sources=[]),
    "source": make_entry(sources=[["a"]]),
    "dtype": make_entry(dtype="qint8"),
    "dtype type": make_entry(dtype=["float32"]),
    "shape": make_entry(shape="2x3"),
    "negative": make_entry(shape=[-1]),
    "huge": make_entry(shape=[HUGE]),
    "huge product": make_entry(shape=[1 << 30, 1 << 30]),
    "zero and huge": make_entry(shape=[0, HUGE]),
    "float": make_entry(shape=[2.0, 3]),
    "bool": make_entry(shape=[True]),
    "axes": make_entry(shape=[1] * 100),
    "kind": make_entry(kind="magic"),
    "proven": make_entry(proven="yes"),
    "operations": make_entry(operations={}),
    "operation": make_entry(operations=[{"op": "eval", "text": "1"}]),
    "operation type": make_entry(operations=["permute"]),
    "many": make_entry(operations=[{"op": "flatten"}] * 17),
    "axis": make_entry(operations=[{"op": "concatenate", "axis": 1 << 40}]),
    "reshape": make_entry(operations=[{"op": "reshape", "shape": [1 << 40]}]),
    "entry": 7,
    "deep": make_entry(operations=[[[[[]]]]]),
}


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("command", ["convert", "diff"])
def test_a_damaged_entry_is_refused_in_one_sentence(
    tmp_path: Path, entry: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save(tmp_path / "a.safetensors", {"a": np.ones((2, 3), np.float32)})
    path = store_map(tmp_path / "map.json", entry)
    target = str(tmp_path / "b.safetensors")
    words = ["convert", source, "--map", path, "-o", target] if command == "convert" else ["diff", source, source]
    assert main([*words, *(["--map", path] if command == "diff" else [])]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "make it again with nndiff map" in error
    assert not Path(target).exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": "1"},
        {"entries": {}},
        {"entries": None},
        {"missing": [1]},
        {"missing": [{"target": "x", "reason": "because", "text": ""}]},
        {"missing": [{"target": "b", "reason": "shape", "text": ""}]},
        {"missing": [{"target": "x", "reason": "shape"}]},
        {"unused": "a"},
        {"unused": [1]},
        {"reference": "a"},
        {"candidate": {}},
        {"entries": [make_entry(), make_entry()]},
    ],
)
def test_a_damaged_map_is_refused(tmp_path: Path, changes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "a.safetensors", {"a": np.ones((2, 3), np.float32)})
    path = store_map(tmp_path / "map.json", make_entry(), **changes)
    assert main(["convert", source, "--map", path, "-o", str(tmp_path / "b.safetensors")]) == 2
    assert "map.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": "nndiff.map"', b'{"format": "nndiff.map", "format": "nndiff.map"}', b"\xff\xfe",
     b'{"format": "other"}', b'{"a":' * 50_000],
)  # fmt: skip
def test_what_is_no_map_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_bytes(content)
    source = save(tmp_path / "a.safetensors", {"a": np.ones(2, np.float32)})
    words = ["convert", source, "--map", str(tmp_path / "map.json"), "-o", str(tmp_path / "b.safetensors")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_map_of_names_is_still_one(tmp_path: Path) -> None:
    source = save(tmp_path / "a.safetensors", {"a": np.ones(2, np.float32)})
    other = save(tmp_path / "b.safetensors", {"b": np.ones(2, np.float32)})
    (tmp_path / "names.json").write_text('{"a": "b"}')
    (tmp_path / "names.txt").write_text("a => b")
    for name in ("names.json", "names.txt"):
        assert not is_conversion_map(str(tmp_path / name))
        assert main(["diff", source, other, "--map", str(tmp_path / name), "-q"]) == 0
