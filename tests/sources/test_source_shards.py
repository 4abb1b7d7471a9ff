"""Several files that together are one: a quoted pattern as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers import Arrays, nndiff, save
from nndiff.align import align
from nndiff.errors import SourceError
from nndiff.result import Method
from nndiff.sources import open_source

RANKS = 11


@pytest.fixture
def whole() -> Arrays:
    random = np.random.default_rng(0)
    return {
        "column.weight": random.standard_normal((2 * RANKS, 6)).astype(np.float32),
        "row.weight": random.standard_normal((6, 3 * RANKS)).astype(np.float32),
        "norm.weight": random.standard_normal(6).astype(np.float32),
    }


def split_among_ranks(folder: Path, whole: Arrays, change: float = 0.0) -> str:
    for rank in range(RANKS):
        parts = {
            "column.weight": np.split(whole["column.weight"], RANKS)[rank] + np.float32(change),
            "row.weight": np.split(whole["row.weight"], RANKS, axis=1)[rank],
            "norm.weight": whole["norm.weight"],
        }
        save(folder / f"rank{rank}.safetensors", parts | {f"only.{rank}": np.arange(rank + 1)})
    return str(folder / "rank*.safetensors")


def test_replicas_are_kept_once_and_shards_are_numbered_in_natural_order(tmp_path, whole) -> None:
    source = open_source(split_among_ranks(tmp_path, whole))
    assert source.notes == ("11 files read as one; 2 tensors split among them",)
    np.testing.assert_array_equal(source.tensors["norm.weight"].numpy(), whole["norm.weight"])
    for rank in range(RANKS):
        shard = source.tensors[f"column.weight[{rank}]"].numpy()
        np.testing.assert_array_equal(shard, np.split(whole["column.weight"], RANKS)[rank])
        assert f"only.{rank}" in source.tensors
    assert len(source.tensors) == 1 + 2 * RANKS + RANKS


@pytest.mark.parametrize("content", [False, True])
def test_shards_are_one_group_even_if_their_values_changed(tmp_path, whole, content) -> None:
    candidate = open_source(split_among_ranks(tmp_path, whole, change=1.0)).tensors
    reference = open_source(whole).tensors
    for sides in ((reference, candidate), (candidate, reference)):
        found = align(*sides, content=content)
        groups = {min(group.reference, group.candidate, key=len): group for group in found.groups}
        assert set(groups) == {("column.weight",), ("row.weight",)}
        assert {group.method for group in found.groups} == {Method.NAME}
        expected = {f"column.weight[{rank}]" for rank in range(RANKS)}
        assert set(max(groups[("column.weight",)].reference, groups[("column.weight",)].candidate, key=len)) == expected


def test_shards_of_another_name_are_found_by_their_values(tmp_path, whole) -> None:
    renamed = {"x": whole["column.weight"], "y": whole["row.weight"].T.copy(), "z": whole["norm.weight"]}
    found = align(open_source(renamed).tensors, open_source(split_among_ranks(tmp_path, whole)).tensors, content=True)
    assert [group.reference for group in found.groups] == [("x",), ("y",)]
    assert {group.method for group in found.groups} == {Method.GROUP}
    assert [(match.reference, match.candidate) for match in found.matches] == [("z", "norm.weight")]


def test_layers_that_every_stage_counts_from_zero_are_found_by_content(tmp_path) -> None:
    random = np.random.default_rng(1)
    layers = [random.standard_normal((4, 5)) for _ in range(6)]
    for stage in range(2):
        save(tmp_path / f"stage{stage}.safetensors", {f"l.{index}.w": layers[3 * stage + index] for index in range(3)})
    reference = open_source({f"l.{index}.w": layer for index, layer in enumerate(layers)}).tensors
    found = align(reference, open_source(str(tmp_path / "stage*.safetensors")).tensors, content=True)
    expected = {f"l.{index}.w": f"l.{index % 3}.w[{index // 3}]" for index in range(6)}
    assert {match.reference: match.candidate for match in found.matches} == expected


def test_a_pattern_is_given_on_the_command_line(tmp_path, whole) -> None:
    path = save(tmp_path / "whole.safetensors", whole)
    done = nndiff("diff", path, split_among_ranks(tmp_path, whole), "--dry-run")
    assert "column.weight <- column.weight[0] + column.weight[1]" in done.stdout
    missing = nndiff("diff", path, str(tmp_path / "shard*.safetensors"))
    assert missing.returncode == 2
    assert "no file matches this pattern" in missing.stderr


def test_files_are_refused_that_are_no_shards(tmp_path) -> None:
    (tmp_path / "rank0").mkdir()
    with pytest.raises(SourceError, match="matches the folder"):
        open_source(str(tmp_path / "rank*"))
    save(tmp_path / "a0.safetensors", {"w": np.ones(2), "w[1]": np.ones(2)})
    save(tmp_path / "a1.safetensors", {"w": np.zeros(2)})
    with pytest.raises(SourceError, match="holds both"):
        open_source(str(tmp_path / "a*.safetensors"))
    save(tmp_path / "b[1].safetensors", {"w": np.ones(2)})
    assert open_source(str(tmp_path / "b[1].safetensors")).kind == "safetensors"
