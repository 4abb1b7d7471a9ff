"""A real NeMo file against a real Lightning checkpoint of the same model two steps later."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import pytest
import torch

from helpers import diff_json

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEMO, LIGHTNING = FIXTURES / "tiny_nest.nemo", FIXTURES / "tiny_nest_pl.ckpt"


class _Anything:
    """Stand in for classes that are not installed, so that torch itself can read the file."""

    def __init__(self, *args, **kwargs): ...

    def __setstate__(self, state): ...

    def __hash__(self):
        return id(self)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return _Anything


class _Pickle:
    Unpickler = _Unpickler
    load = staticmethod(pickle.load)


@pytest.fixture(scope="module")
def truth():
    with tarfile.open(NEMO) as archive:
        member = next(name for name in archive.getnames() if name.endswith("model_weights.ckpt"))
        reference = torch.load(io.BytesIO(archive.extractfile(member).read()), weights_only=True)
    candidate = torch.load(LIGHTNING, pickle_module=_Pickle, weights_only=False)["state_dict"]
    return reference, candidate


def test_every_tensor_is_paired_and_measured_as_torch_does_in_float64(truth):
    reference, candidate = truth
    status, data = diff_json(NEMO, LIGHTNING)
    assert status == 1
    assert data["totals"]["pairs"] == 99 == len(reference)
    assert data["only_reference"] == data["only_candidate"] == []
    assert data["reference"]["trainable"] == 240_976
    different = set()
    for pair in data["pairs"]:
        ref, cand = (side[pair["name"]].double() for side in (reference, candidate))
        metrics = pair["metrics"]
        assert metrics["max_abs"] == (cand - ref).abs().max().item()
        assert metrics["unequal"] == (cand != ref).sum().item()
        if ref.numel() > 1:
            assert metrics["ref_std"] == pytest.approx(ref.std(correction=0).item(), rel=1e-12, abs=1e-300)
            assert metrics["l2"] == pytest.approx((cand - ref).norm().item(), rel=1e-12)
        close = torch.allclose(cand, ref, atol=1e-5, rtol=1e-5 if reference[pair["name"]].is_floating_point() else 0)
        assert (pair["verdict"] in ("identical", "close")) == close
        if not close:
            different.add(pair["name"])
    assert len(different) == data["totals"]["different"] > 0


def test_the_optimiser_is_another_part_of_the_file():
    status, data = diff_json(f"{LIGHTNING}::optimizer_states", f"{LIGHTNING}::optimizer_states")
    assert status == 0
    assert data["totals"]["identical"] >= 264
