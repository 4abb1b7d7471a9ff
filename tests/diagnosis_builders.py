"""Recorded tensors and judged pairs made by hand, and whole models compared without any alignment but by name."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.loss_check import drop_meaningless_gradients
from nndiff.diagnosis.noise import GradientScale, judge_bias_gradients
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.dtypes import from_numpy
from nndiff.findings import Explanation, explain_candidate
from nndiff.metrics import Metrics
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    Finding,
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


# Whole models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Hold two recorded models, compared by name; read as a result is read."""

    pairs: list[Pair]
    leftovers: list[Leftover]
    judgement: Judgement
    explanation: Explanation

    @property
    def first_divergence(self) -> Any:
        return self.explanation.first

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.explanation.findings

    @property
    def notes(self) -> list[str]:
        return [note.text for note in self.explanation.notes]

    @property
    def verdict(self) -> str:
        return self.judgement.outcome.value

    @property
    def exit_code(self) -> int:
        return self.judgement.outcome.exit_code

    @property
    def causes(self) -> set[str]:
        return {finding.cause for finding in self.findings}


def compare(
    reference: Any,
    candidate: Any,
    *,
    inputs: Any = None,
    renames: dict[str, str] | None = None,
    atol: float = ATOL,
    rtol: float = RTOL,
    **options: Any,
) -> Compared:
    """Compare two models or recordings by name; `renames` maps modules to the candidate's, which makes guesses."""
    from nndiff.recording import open_recording
    from nndiff.recording.record import record

    folder = Path(tempfile.mkdtemp())
    sources = []
    for name, side in (("reference", reference), ("candidate", candidate)):
        if inputs is not None:
            side = record(side, inputs, path=folder / name, **options)
        sources.append((open_recording(side) if isinstance(side, (str, Path)) else side).source())
    return compare_sources(*sources, renames=renames or {}, atol=atol, rtol=rtol)


def compare_sources(
    reference: Source, candidate: Source, *, renames: dict[str, str], atol: float = ATOL, rtol: float = RTOL
) -> Compared:
    """Compare two recordings by name, as far as that goes without alignment and relations."""
    sites: list[SitePair] = []
    partners = set()
    leftovers = []
    scales = GradientScale(reference.tensors.values())
    for name, tensor in reference.tensors.items():
        renamed = _rename(tensor.site, renames)
        partner_name = renamed.name if renamed else name
        if partner_name not in candidate.tensors and tensor.site.path == "0":  # a tuple here, a tensor there
            partner_name = replace(renamed or tensor.site, path="").name
        partner = candidate.tensors.get(partner_name)
        if partner is None:
            leftovers.append(make_leftover(tensor, REFERENCE, _get_reason(tensor)))
            continue
        partners.add(partner_name)
        method, scale = Method.CALL if renamed else Method.NAME, scales.of(tensor)
        site = make_pair(
            tensor, partner, scale=scale, order=len(sites), certain=renamed is None, method=method, atol=atol, rtol=rtol
        )
        sites.append(_relate_scale(site))
    for name, tensor in candidate.tensors.items():
        if name not in partners:
            leftovers.append(make_leftover(tensor, CANDIDATE, _get_reason(tensor)))
    judged = judge_bias_gradients(sites)
    sites = [replace(site, pair=pair) for site, pair in zip(sites, judged, strict=True)]
    sites = list(drop_meaningless_gradients(sites, leftovers, reference.meta, candidate.meta))
    judgement = judge(sites, leftovers)
    explanation = explain_candidate(reference, candidate, sites, leftovers, judgement, Rules(), "cand")
    return Compared([site.pair for site in sites], leftovers, judgement, explanation)


def _rename(site: Site, renames: dict[str, str]) -> Site | None:
    """Return the site under the candidate's name of its module; the longest path that is renamed decides."""
    for module in sorted(renames, key=len, reverse=True):
        if site.module == module or site.module.startswith(f"{module}."):
            return replace(site, module=renames[module] + site.module[len(module) :])
    return None


def _get_reason(tensor: TensorRef) -> LeftoverReason:
    if tensor.site.is_final_output:
        return LeftoverReason.EXTRA_OUTPUT
    return LeftoverReason.INNER if tensor.site.is_inside else LeftoverReason.NO_PARTNER


def _relate_scale(site: SitePair) -> SitePair:
    """Prove a factor on every element, as relations do."""
    if not site.is_gradient or site.pair.verdict is not Verdict.DIFFERENT:
        return site
    ours, theirs = (tensor.numpy().astype(np.float64).ravel() for tensor in site.tensors)
    factor = float(ours @ theirs / (ours @ ours)) if ours.any() else 0.0
    if not factor or not np.allclose(theirs / factor, ours, atol=site.pair.atol, rtol=site.pair.rtol):
        return site
    related = Related(FakeRelation(RelationKind.SCALE, f"times {1 / factor:.4g}"), site.pair.stored, False)
    return replace(site, pair=replace(site.pair, related=related))
