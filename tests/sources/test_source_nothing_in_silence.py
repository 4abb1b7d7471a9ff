"""What a source holds and does not compare is said; what differs in it is never called the same in silence."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import nndiff
from helpers import save
from nndiff.errors import NndiffError
from nndiff.sources import open_source
from nndiff.sources.source import EntryKind
from nndiff.verdict import RelationKind


def notes(result):
    return " ".join(note for side in (result.reference, *result.candidates) for note in side.notes)


@pytest.mark.parametrize("value", [1.0, 3, True, np.float64(2.5), b"state", np.int64(7)])
def test_numbers_and_bytes_beside_tensors_are_compared(tmp_path, value):
    other = b"other" if isinstance(value, bytes) else type(value)(0)
    for name, each in (("a", value), ("b", value), ("c", other)):
        torch.save({"w": torch.ones(2), "extra": each, "nested": {"extra": each}}, tmp_path / f"{name}.pt")
    assert nndiff.compare(tmp_path / "a.pt", tmp_path / "b.pt").verdict == "identical"
    result = nndiff.compare(tmp_path / "a.pt", tmp_path / "c.pt")
    assert {pair.name for pair in result.worst()} == {"extra", "nested.extra"}


def test_counters_of_training_and_texts_are_named_instead(tmp_path):
    torch.save({"w": torch.ones(2), "epoch": 3, "name": "net", "nothing": None}, tmp_path / "a.pt")
    source = nndiff.open_source(tmp_path / "a.pt")
    assert list(source.tensors) == ["w"]
    assert set(source.others) == {"epoch", "name", "nothing"}


class WithExtras(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.fc.weight)
        torch.nn.init.zeros_(self.fc.bias)
        self.register_buffer("rope", torch.ones(3) * factor, persistent=False)
        self.mask = torch.ones(4) * factor


def test_what_a_pickled_module_has_beside_its_state_is_named(tmp_path):
    for name, factor in (("a", 1), ("b", 2)):
        torch.save(torch.nn.Sequential(WithExtras(factor)), tmp_path / f"{name}.pt")
    result = nndiff.compare(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {pair.name for pair in result.pairs} == {"0.fc.weight", "0.fc.bias"}
    assert "0.rope" in notes(result)
    assert "0.mask" in notes(result)


def test_other_files_and_folders_in_a_folder_are_named(tmp_path):
    for side in ("a", "b"):
        (tmp_path / side / "inner").mkdir(parents=True)
        save(tmp_path / side / "model.safetensors", {"w": np.ones(2, np.float32)})
        save(tmp_path / side / "adapter_model.safetensors", {"w": np.ones(2, np.float32)})
    said = notes(nndiff.compare(tmp_path / "a", tmp_path / "b"))
    assert "adapter_model.safetensors" in said
    assert "inner/" in said


def test_folders_inside_a_folder_of_arrays_are_named(tmp_path):
    (tmp_path / "inner").mkdir()
    np.save(tmp_path / "w.npy", np.ones(3))
    assert "inner/" in notes(nndiff.compare(tmp_path, tmp_path))


def test_a_sharded_folder_goes_by_its_own_name(tmp_path):
    save(tmp_path / "model-1.safetensors", {"w": np.ones(2, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1.safetensors"}}')
    assert nndiff.open_source(tmp_path).label == str(tmp_path)


@pytest.mark.parametrize("change", [0, 1])
def test_tied_weights_left_out_on_one_side_are_told(tmp_path, change):
    weight = torch.ones(3, 2)
    torch.save({"embed.weight": weight, "head.weight": weight, "b": torch.ones(3)}, tmp_path / "a.pt")
    torch.save({"embed.weight": weight + change, "b": torch.ones(3)}, tmp_path / "b.pt")
    result = nndiff.compare(tmp_path / "a.pt", tmp_path / "b.pt")
    (tied,) = [pair for pair in result.pairs if pair.related]
    assert (tied.reference_name, tied.candidate_name) == ("head.weight", "embed.weight")
    assert tied.related.relation.kind is RelationKind.TIED
    assert (result.exit_code, tied.verdict.passed) == (change, not change)


def test_nan_in_one_part_of_a_complex_number_does_not_hide_the_other():
    one, other = np.array([complex(np.nan, 1), 1j]), np.array([complex(np.nan, 2), 1j])
    assert nndiff.compare({"a": one}, {"a": one.copy()}).verdict == "identical"
    assert nndiff.compare({"a": one}, {"a": other}).exit_code == 1


def test_nothing_is_no_source():
    with pytest.raises(NndiffError, match="None is not a source"):
        nndiff.open_source(None)


def test_prose_is_not_taken_for_a_pickle(tmp_path):
    (tmp_path / "notes.pt").write_text("These are my notes on the model.\n")
    with pytest.raises(NndiffError, match="not a file of tensors"):
        nndiff.open_source(tmp_path / "notes.pt")


def test_what_holds_tensors_is_known_by_its_kind_and_not_by_its_words(tmp_path: Path) -> None:
    state = {"state_dict": {"w": np.ones(2)}, "optimizer": {"m": np.ones(2)}, "note": "a tensor in a folder"}
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(state))
    source = open_source(path)
    assert source.others["optimizer"].kind is EntryKind.TENSORS
    assert source.others["note"].kind is EntryKind.VALUE
    assert source.side().notes[-1] == (
        "also in the file and not compared: optimizer (1 tensor), 1 entry without tensors"
    )
