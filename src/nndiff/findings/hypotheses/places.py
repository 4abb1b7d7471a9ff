"""Which places a mask leaves open, as causality, window and padding, and how two masks differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Proof

Array = NDArray[Any]


@dataclass(frozen=True)
class Places:
    """Hold open places as a rule: what a query sees ahead and behind, and which keys and queries are padding."""

    ahead: int | None  # positions ahead that are open; None: all
    behind: int | None  # positions back that are open, the own one included; None: all
    keys: Array = field(compare=False)  # [batch, keys]: open to anybody
    queries: Array = field(compare=False)  # [batch, queries]: see anything


def rebuild_places(places: Places) -> Array:
    """Return the open places of a rule: [batch, queries, keys]."""
    queries, length = places.queries.shape[1], places.keys.shape[1]
    behind = (np.arange(queries) + length - queries)[:, None] - np.arange(length)[None]
    opened = np.ones(behind.shape, bool)
    if places.ahead is not None:
        opened &= behind >= -places.ahead
    if places.behind is not None:
        opened &= behind < places.behind
    return np.asarray(opened[None] & places.keys[:, None] & places.queries[:, :, None])


def fit_places(opened: Array) -> Places | None:
    """Return the rule that gives open places [batch, queries, keys] exactly; None if none does."""
    _, queries, length = opened.shape
    behind = (np.arange(queries) + length - queries)[:, None] - np.arange(length)[None]
    seen = opened.any(0)
    if not seen.any():
        return None
    keys, seeing = np.asarray(opened.any(1)), np.asarray(opened.any(2))
    every_key, every_query = np.ones_like(keys), np.ones_like(seeing)
    ahead, back = int(-behind[seen].min()), int(behind[seen].max()) + 1
    limits: tuple[tuple[int | None, int | None], ...] = ((None, None), (ahead, None), (ahead, back))
    for most_ahead, most_behind in limits:
        # keys that nobody may see because of causality or window are not padding, nor queries without such keys
        reachable = rebuild_places(Places(most_ahead, most_behind, every_key, every_query)).any(1)
        places = Places(most_ahead, most_behind, keys | ~reachable, every_query)
        places = replace(places, queries=seeing | ~rebuild_places(places).any(2))
        if np.array_equal(rebuild_places(places), opened):
            return places
    return None


def describe_places(reference: Places, candidate: Places) -> Proof | None:
    """Return in what two rules differ."""
    found: list[tuple[Cause, str, str]] = []
    if reference.ahead != candidate.ahead:
        found.append((Cause.CAUSAL_MASK, *_describe_causality(reference.ahead, candidate.ahead)))
    if reference.behind != candidate.behind:
        ours, theirs = (
            "all earlier positions" if places.behind is None else f"{places.behind} positions, its own included"
            for places in (reference, candidate)
        )
        repair = "set the sliding window of the candidate to " + (str(reference.behind) if reference.behind else "none")
        found.append((Cause.SLIDING_WINDOW, f"a query sees {theirs} in the candidate, {ours} in the reference", repair))
    if not (np.array_equal(reference.keys, candidate.keys) and np.array_equal(reference.queries, candidate.queries)):
        said = _describe_padding(reference, candidate)
        if said is None:
            return None
        found.append((Cause.PADDING_MASK, *said))
    if not found:
        return None
    evidence = "; ".join(text for _, text, _ in found)
    return Proof(found[0][0], evidence, "; ".join(repair for _, _, repair in found))


def _describe_causality(reference: int | None, candidate: int | None) -> tuple[str, str]:
    if candidate is None:
        return "the candidate has no causal mask", "apply the causal mask in the candidate"
    if reference is None:
        return "the candidate applies a causal mask, the reference none", "remove the causal mask from the candidate"
    shift = candidate - reference
    where = "ahead" if shift > 0 else "back"
    text = f"the causal mask of the candidate is shifted by {abs(shift)} {where}"
    return text, f"start the causal mask at diagonal {reference + 1}, not {candidate + 1}"


def _describe_padding(reference: Places, candidate: Places) -> tuple[str, str] | None:
    if candidate.keys.all() and candidate.queries.all():
        return "the candidate ignores the padding mask", "apply the padding mask in the candidate"
    if np.array_equal(candidate.keys, reference.keys):
        if candidate.queries.all():
            return "the candidate masks padded keys alone, the reference padded queries too", "mask padded queries too"
        if reference.queries.all():
            return "the candidate masks padded queries too, the reference padded keys alone", "mask padded keys alone"
    elif np.array_equal(candidate.keys, ~reference.keys):
        return "the candidate inverts the padding mask", "invert the padding mask in the candidate"
    elif reference.keys.all():
        return "the candidate masks keys that the reference leaves open", "do not mask these keys"
    return None
