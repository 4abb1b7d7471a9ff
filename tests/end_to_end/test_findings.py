"""Findings of whole comparisons: several candidates, layers of other names, every report."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nndiff
from findings_matrix import INPUT
from nndiff.result import NoteSlug


class Net(nn.Module):
    def __init__(self, p):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.drop = nn.Linear(6, 4), nn.Dropout(p)

    def forward(self, x):
        return self.drop(self.fc(x))


def test_each_of_several_candidates_has_its_note(tmp_path):
    paths = [tmp_path / name for name in ("one", "other", "third")]
    for path, p in zip(paths, (0.1, 0.1, 0.2), strict=True):
        nndiff.record(Net(p), INPUT, path=path, mode="eval")
    (note,) = [note for note in nndiff.compare(*paths).notes if note.slug is NoteSlug.SETTINGS_WITHOUT_EFFECT]
    assert note.text.startswith(f"{paths[2]}: settings that differ")


class Three(nn.Module):
    """Three layers, one after the other."""

    def __init__(self, alike=False):
        super().__init__()
        torch.manual_seed(0)
        self.l1, self.l2, self.l3, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        for layer in (self.l2, self.l3) if alike else ():
            layer.load_state_dict(self.l1.state_dict())
        self.act = nn.Tanh()

    def forward(self, x):
        for layer in (self.l1, self.l2, self.l3):
            x = self.act(layer(x))
        return self.head(x)


class Shared(nn.Module):
    """One layer of another name, called three times."""

    def __init__(self, like):
        super().__init__()
        self.layer, self.act, self.head = copy.deepcopy(like.l1), nn.Tanh(), copy.deepcopy(like.head)

    def forward(self, x):
        for _ in range(3):
            x = self.act(self.layer(x))
        return self.head(x)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("flipped", [False, True], ids=["shared", "apart"])
def test_one_layer_of_another_name_for_several_is_named(flipped, alike):
    models = [Three(alike), Shared(Three(alike))]
    result = nndiff.compare(*models[:: -1 if flipped else 1], inputs=INPUT)
    assert result.exit_code == (0 if alike else 1)
    (finding,) = [finding for finding in result.findings if finding.cause == "called-otherwise"]
    sides = ("reference", "candidate") if flipped else ("candidate", "reference")
    assert finding.evidence == "layer of the {} is called 3 times, instead of l1, l2, l3 of the {}".format(*sides)
    assert finding.harmless is alike
