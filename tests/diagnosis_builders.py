"""Recorded tensors and judged pairs made by hand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.dtypes import from_numpy
from nndiff.findings import Explanation, explain_candidate
from nndiff.metrics import Metrics
from nndiff.result import (
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Pair,
    Related,
    Rules,
)
from nndiff.sources.source import Source
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import Link, MemoryData, NoData, Site, Slot, Stats, TensorRef, Trace
from nndiff.verdict import Outcome, RelationKind, Verdict

ATOL = RTOL = 1e-5


@dataclass(frozen=True)
class FakeRelation:
    """Stand for a proven relation."""

    kind: RelationKind
    text: str = ""
    operations: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[RelationKind, ...]:
        return (self.kind,)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "reference": [], "candidate": [{"op": name} for name in self.operations]}


def measure(reference: TensorRef, candidate: TensorRef, atol: float = ATOL, rtol: float = RTOL) -> Metrics:
    return next(iter(get_engine().measure([Job(reference, candidate, atol, rtol)])))


def take_stats(array: NDArray[Any]) -> Stats:
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return Stats(array.size, array.size, *(float("nan"),) * 6)
    return Stats(
        array.size, int(array.size - finite.size), float(finite.mean()), float(finite.std()), float(finite.min()),
        float(finite.max()), float(np.abs(finite).max()), float(np.sqrt((finite**2).sum())),
    )  # fmt: skip


def make_tensor(
    values: Any,
    module: str = "",
    slot: Slot = Slot.OUTPUT,
    order: int = 0,
    *,
    inputs: tuple[Any, ...] = (),
    kept: bool = True,
    call: int = 0,
    path: str = "",
    tensor: str = "",
    cls: str = "",
    **trace: Any,
) -> TensorRef:
    """Return a recorded tensor; `inputs` are orders of earlier events, or links."""
    array = np.asarray(values)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    links = []
    for number, given in enumerate(inputs):
        links.append(given if isinstance(given, Link) else Link(str(number), "same", given))
    site = Site(module, slot, call, path, tensor, cls)
    facts = {"digest": hashlib.sha1(array.tobytes()).hexdigest(), "stats": take_stats(array), **trace}
    dtype = from_numpy(array.dtype)
    data = MemoryData(array.view(dtype.storage)) if kept else NoData("not kept")
    return TensorRef(
        site.name, array.shape, dtype, data, site=site,
        trace=Trace(order, inputs=tuple(links), **facts),
    )  # fmt: skip


def make_pair(
    reference: TensorRef,
    candidate: TensorRef,
    *,
    certain: bool = True,
    method: Method = Method.NAME,
    order: int | None = None,
    scale: float = 1.0,
    relation: FakeRelation | None = None,
    accepted: bool = True,
    label: str = "cand",
    atol: float = ATOL,
    rtol: float = RTOL,
) -> SitePair:
    """Return a judged pair; a relation is taken for proven."""
    atol, stored = atol * scale, None
    if reference.shape != candidate.shape:
        verdict = Verdict.SHAPE
    elif reference.trace.digest == candidate.trace.digest and (reference.missing or candidate.missing):
        verdict = Verdict.IDENTICAL
    elif reference.missing or candidate.missing:
        verdict = Verdict.NOT_COMPARED
    else:
        stored = measure(reference, candidate, atol, rtol)
        verdict = Verdict.CLOSE if stored.unequal or reference.dtype != candidate.dtype else Verdict.IDENTICAL
        if stored.nonfinite_unequal:
            verdict = Verdict.NOT_FINITE
        elif stored.mismatched:
            verdict = Verdict.DIFFERENT
    related = None
    if relation is not None:
        related = Related(relation, measure(reference, reference), accepted)
        verdict = Verdict.CLOSE if accepted else verdict
    pair = Pair(
        label, reference.name, candidate.name, method, certain, verdict, (reference.shape, candidate.shape),
        (reference.dtype.name, candidate.dtype.name), reference.trace.order if order is None else order,
        stored, atol, rtol, scale, (reference.site, candidate.site), related,
    )  # fmt: skip
    return SitePair(pair, reference, candidate)


def make_leftover(tensor: TensorRef, side: str, reason: LeftoverReason) -> Leftover:
    return Leftover("cand", side, tensor.name, tensor.shape, tensor.dtype.name, reason, tensor.site)


def make_source(tensors: Any = (), **meta: Any) -> Source:
    return Source("source", "recording", {tensor.name: tensor for tensor in tensors}, meta=meta)


def make_modules(**modules: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a module tree as recordings hold it; `__` in a name stands for a dot."""
    return [{"name": name.replace("__", "."), **facts} for name, facts in modules.items()]


def judge(pairs: list[SitePair], leftovers: list[Leftover]) -> Judgement:
    deciding = [site.pair.verdict for site in pairs if site.pair.decides]
    if not deciding:
        return Judgement(Outcome.NOTHING)
    if any(leftover.counts for leftover in leftovers) or not all(verdict.passed for verdict in deciding):
        return Judgement(Outcome.DIFFERENT)
    return Judgement(Outcome.IDENTICAL if set(deciding) == {Verdict.IDENTICAL} else Outcome.CLOSE)


def explain(
    pairs: list[SitePair],
    leftovers: list[Leftover] | None = None,
    reference_meta: dict[str, Any] | None = None,
    candidate_meta: dict[str, Any] | None = None,
    extra_tensors: tuple[list[TensorRef], list[TensorRef]] = ((), ()),  # type: ignore[assignment]
    outcome: Outcome | None = None,
    rules: Rules | None = None,
    **options: Any,
) -> Explanation:
    """Explain pairs made by hand."""
    leftovers = leftovers or []
    reference = make_source([*(site.reference for site in pairs), *extra_tensors[0]], **(reference_meta or {}))
    candidate = make_source([*(site.candidate for site in pairs), *extra_tensors[1]], **(candidate_meta or {}))
    judgement = Judgement(outcome) if outcome else judge(pairs, leftovers)
    return explain_candidate(reference, candidate, pairs, leftovers, judgement, rules or Rules(), "cand", **options)
