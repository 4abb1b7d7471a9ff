"""Blame and recommendation in every report: facts that stand in for those that blame_layers finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nndiff import result_json
from nndiff.errors import ReportError
from nndiff.facts.modes import BlamedLayer, RecommendedLayers
from nndiff.modes.compare import compare_modes
from nndiff.relations import load_relation
from nndiff.reports import ReportOptions, get_report
from nndiff.result import Comparison


@pytest.fixture
def blamed(tmp_path: Path) -> Comparison:
    random = np.random.default_rng(0)
    for mode in ("fp32", "int4", "<b>|`x`"):
        np.save(tmp_path / f"mode_{mode}_layer_0.npy", random.normal(size=(4, 3)))
    comparison = compare_modes(str(tmp_path), "fp32")
    assert comparison.modes is not None
    layers = (
        BlamedLayer("layers.1.fc", 1e-3, 2e-3, 0.75, ("layers.1.norm",)),
        BlamedLayer("layers.0.fc", 2e-4, 2e-4, 0.25),
    )
    advice = {
        "int4": RecommendedLayers(("layers.1.fc",), 31.5, 30.25, 30.0, "sqnr"),
        "<b>|`x`": RecommendedLayers((), 1e-4, 1e-4, 1e-3, "mse"),
    }
    return replace(comparison, modes=replace(comparison.modes, blame={"int4": layers}, recommend=advice))


def test_blame_and_recommendation_are_told(blamed: Comparison) -> None:
    for name in ("terminal", "md", "html"):
        text = str(get_report(name).render(blamed, ReportOptions(width=100)))
        assert text.index("layers.1.fc") < text.index("layers.0.fc")
        assert "predicted 31.5 dB, verified 30.25 dB" in text
        assert "KEEP = [" in text
        assert "mse 0.001 is met already" in text
    terminal = str(get_report("terminal").render(blamed, ReportOptions(width=100)))
    assert "75.0%" in terminal


def test_names_are_text_wherever_they_stand(blamed: Comparison) -> None:
    assert "<b>" not in str(get_report("html").render(blamed, ReportOptions()))
    for line in str(get_report("md").render(blamed, ReportOptions())).split("\n"):
        assert "<b>|" not in line


def test_the_json_is_the_contract_and_comes_back(blamed: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(result_json.dumps(blamed))
    data = json.loads(path.read_text())
    assert data["kind"] == "modes"
    assert data["blame"]["int4"][0] == {
        "name": "layers.1.fc", "own": 1e-3, "cumulative": 2e-3, "share": 0.75, "together": ["layers.1.norm"],
    }  # fmt: skip
    assert data["recommend"]["int4"] == {
        "keep": ["layers.1.fc"], "predicted": 31.5, "verified": 30.25, "target": 30.0, "metric": "sqnr",
    }  # fmt: skip
    assert set(data["modes"][0]) >= {"mode", "rank", "error", "failed", "output"}
    assert data["pairs"][0]["rating"] == {"mse": "large", "correlation": "needs attention"}
    loaded = result_json.load(path, load_relation)
    assert loaded.modes == blamed.modes
    assert loaded == blamed


@pytest.mark.parametrize("key", ["modes", "blame", "recommend", "rating_limits", "thresholds", "layers"])
@pytest.mark.parametrize("value", [None, 3, [3], {"a": 3}])
def test_damaged_facts_are_refused(blamed: Comparison, tmp_path: Path, key: str, value: object) -> None:
    data = result_json.to_dict(blamed)
    data[key] = value
    path = tmp_path / "result.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ReportError, match="damaged result"):
        result_json.load(path, load_relation)
