"""Maps and checkpoints that the tests of conversions share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from helpers import Arrays
from nndiff.comparison import run_plans
from nndiff.conversion import ConversionMap, convert_source
from nndiff.conversion.pairs import build_map
from nndiff.plan import PairingRules, Plan, plan_comparison
from nndiff.result import Rules
from nndiff.sources import Source, open_source
from nndiff.tolerance import Tolerance


def make_map(reference: Any, candidate: Any, rules: PairingRules | None = None) -> tuple[ConversionMap, Plan]:
    """Return the map between two sources, and the plan of their comparison."""
    plans = plan_comparison(reference, [candidate], rules or PairingRules())
    comparison = run_plans(plans, Tolerance(1e-5, 1e-5), Rules(), {})
    plan = plans[0]
    return build_map(plan.reference, plan.candidate, comparison.pairs, comparison.leftovers), plan


def read_raw(source: Source) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of every tensor."""
    raw = {}
    for name, tensor in source.tensors.items():
        raw[name] = tensor.dtype.name, tensor.shape, np.ascontiguousarray(tensor.read(0, tensor.count)).tobytes()
    return raw


def assert_leads(conversion: ConversionMap, reference: Any, candidate: Any) -> None:
    """Check that a map makes the candidate's tensors of the reference's, bit for bit."""
    expected = read_raw(open_source(candidate))
    made = read_raw(convert_source(open_source(reference), conversion))
    assert made == {name: expected[name] for name in made}


def make_entry(**changes: Any) -> dict[str, Any]:
    """Return a stored entry that copies `a` to `b`, with changes."""
    entry = {"target": "b", "sources": ["a"], "operations": [], "dtype": "float32", "shape": [2, 3]}
    return {**entry, "kind": None, "proven": True, **changes}


def store_map(path: Path, *entries: Any, **changes: Any) -> str:
    """Write a map of these entries, with changes to its other fields; return its path."""
    data = {
        "format": "nndiff.map",
        "version": 1,
        "reference": {"label": "a"},
        "candidate": {"label": "b"},
        "entries": list(entries),
        "missing": [],
        "unused": [],
        **changes,
    }
    path.write_text(json.dumps(data))
    return str(path)


def draw(seed: int, **shapes: tuple[int, ...]) -> Arrays:
    """Return random arrays by name."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
