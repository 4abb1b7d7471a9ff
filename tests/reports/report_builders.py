"""Results built by hand, so that reports are tested without one file being read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    SIDES,
    Comparison,
    Finding,
    FirstDivergence,
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
    Related,
    Side,
)
from nndiff.tensors import Slot
from nndiff.tolerance import Tolerance
from nndiff.verdict import EXTRA_OUTPUTS, Judge, Outcome, RelationKind, Verdict

HOSTILE = {
    "escape": "evil\x1b[31mred\x1b]0;title\x07",
    "script": "<script>document.title='pwned'</script>",
    "attribute": "\" onmouseover=\"document.title='pwned'\" x='",
    "end of script": "</script></style><img src=x onerror=document.title='pwned'>",
    "comment": "<!--<script>",
    "pipe": "a|b||c",
    "backtick": "a`b``c",
    "link": "[click](javascript:alert(1)) ![x](http://example.invalid/x.png)",
    "mention": "@everyone #1 *bold* _it_",
    "newline": "one\ntwo\r\nthree",
    "markup": "[red]not red[/red] [link=x]y",
    "override": "abc\u202edef",
    "surrogate": "half \ud800 pair",
    "nul": "a\x00b\uffff",
    "formula": '=HYPERLINK("http://example.invalid")',
    "long": "layer." * 1700 + "weight",
    "wide": "编码器.层.0.权重",
    "empty": "",
    "cdata": "]]>&amp;&#0;",
    "braces": "{body} {0} %s",
}


def metrics(count: int = 1000, bad: int = 0, apart: float = 0.0, **more: object) -> Metrics:
    """Return plausible numbers: `bad` elements out, the worst by `apart`."""
    values: dict[str, object] = {
        "count": count,
        "unequal": count // 2 if apart else 0,
        "mismatched": bad,
        "nonfinite_ref": 0,
        "nonfinite_cand": 0,
        "nonfinite_unequal": 0,
        "max_abs": apart,
        "max_abs_index": (1, 2),
        "max_rel": apart * 40,
        "mean_abs": apart / 10,
        "mse": apart**2 / 50,
        "rmse": apart / 7,
        "rel_mse": apart / 900,
        "rel_mae": apart / 30,
        "l2": apart * 4,
        "rel_l2": apart / 2,
        "cosine": 1 - apart / 3,
        "correlation": 1 - apart / 3,
        "sqnr_db": 40.5 if apart else math.inf,
        "p50": apart / 20,
        "p90": apart / 5,
        "p95": apart / 4,
        "p99": apart / 2,
        "ref_mean": 0.001,
        "ref_std": 0.02,
        "ref_min": -0.3,
        "ref_max": 0.31,
        "cand_mean": 0.0011,
        "cand_std": 0.021,
        "cand_min": -0.29,
        "cand_max": 0.33,
        "diff_mean": apart / 100,
        "diff_std": apart / 8,
        "needed_tolerance": apart / 1.25,
        "envelope": tuple(max(0.0, apart - rtol * 0.25) for rtol in ENVELOPE_RTOLS),
    }
    return Metrics(**{**values, **more})  # type: ignore[arg-type]


@dataclass(frozen=True)
class NamedRelation:
    """Stand for a relation: a kind and its text."""

    text: str = "permute(1, 0)"
    kind: RelationKind = RelationKind.LAYOUT

    @property
    def kinds(self) -> tuple[RelationKind, ...]:
        return (self.kind,)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "text": self.text}


def load_relation(data: dict[str, Any]) -> NamedRelation:
    """Return such a relation from its plain data."""
    if not isinstance(data["text"], str):
        raise TypeError("text")
    return NamedRelation(data["text"], RelationKind(data["kind"]))


def pair(name: str, verdict: Verdict = Verdict.IDENTICAL, apart: float = 0.0, **more: object) -> Pair:
    """Return a pair of the same name on both sides; `metrics` are its numbers as stored, `note` the text of a note."""
    bad = 451 if verdict is Verdict.DIFFERENT else 0
    values: dict[str, object] = {
        "candidate": "cand.ckpt",
        "reference_name": name,
        "candidate_name": name,
        "method": Method.NAME,
        "certain": True,
        "verdict": verdict,
        "shape": ((25, 40), (25, 40)),
        "dtype": ("float32", "float32"),
        "order": 0,
        "stored": more.pop("metrics", metrics(bad=bad, apart=apart)),
        "atol": 1e-5,
        "rtol": 1e-5,
    }
    if "note" in more:
        values["notes"] = (Note(NoteSlug.NOT_KEPT, str(more.pop("note"))),)
    return Pair(**{**values, **more})  # type: ignore[arg-type]


def related(accepted: bool, apart: float = 1e-7, **more: Any) -> Related:
    """Return a proven relation with the numbers after it."""
    return Related(NamedRelation(**more), metrics(apart=apart), accepted)


def leftover(side: str, name: str, **more: object) -> Leftover:
    """Return a tensor without a partner."""
    values: dict[str, object] = {
        "candidate": "cand.ckpt",
        "side": side,
        "name": name,
        "shape": (8192, 16),
        "dtype": "float32",
        "reason": LeftoverReason.NO_PARTNER,
    }
    return Leftover(**{**values, **more})  # type: ignore[arg-type]


def side(label: str = "cand.ckpt", kind: str = "torch zip", tensors: int = 8, **more: object) -> Side:
    """Return a side with plausible counts."""
    values: dict[str, object] = {"elements": 1_234_567, "trainable": 1_200_000, "nbytes": 4_938_268}
    return Side(label, kind, tensors, **{**values, **more})  # type: ignore[arg-type]


def comparison(*pairs: Pair, **more: object) -> Comparison:
    """Return a comparison of ref.nemo with cand.ckpt, judged."""
    values: dict[str, object] = {
        "kind": "checkpoint",
        "reference": side("ref.nemo", "nemo"),
        "candidates": (side(),),
        "tolerance": Tolerance(),
        "pairs": tuple(pairs),
        "judgements": {},
    }
    return judged(Comparison(**{**values, **more}))  # type: ignore[arg-type]


def judged(result: Comparison) -> Comparison:
    """Return the comparison with the judgements that its pairs and leftovers call for."""
    judgements = {}
    for candidate in result.candidates:
        label = candidate.label
        everything = result.rules.judge is Judge.ALL
        counting = [each for each in result.pairs_of(label) if each.decides and (everything or each.is_outside)]
        inside = [each for each in counting if each.is_inside and each.slot is Slot.OUTPUT]
        alone = any(counts_alone(each, result) for each in result.leftovers_of(label))
        outcome = judge(counting)
        if outcome is not Outcome.NOTHING and (alone or result.cut_off_sides(label) or result.unread_outputs(label)):
            outcome = Outcome.DIFFERENT
        judgements[label] = Judgement(
            outcome,
            judge([each for each in counting if each.is_outside]) if result.kind == "recording" else None,
            len(inside),
            sum(not each.verdict.passed for each in inside),
        )
    return replace(result, judgements=judgements)


def counts_alone(item: Leftover, result: Comparison) -> bool:
    """Return True if having no partner is a difference."""
    everything = result.rules.judge is Judge.ALL
    if item.reason is LeftoverReason.EXTRA_OUTPUT:
        return everything and EXTRA_OUTPUTS not in result.rules.accept
    inside = item.site is not None and bool(item.site.module)
    return item.counts and (everything or not inside)


def judge(pairs: list[Pair]) -> Outcome:
    """Return the outcome of pairs that decide."""
    measured = [each for each in pairs if not each.is_input and (each.metrics is None or each.metrics.count)]
    if not measured or all(each.verdict is Verdict.NOT_COMPARED for each in measured):
        return Outcome.NOTHING
    if not all(each.verdict.passed for each in pairs):
        return Outcome.DIFFERENT
    return Outcome.IDENTICAL if all(each.verdict is Verdict.IDENTICAL for each in pairs) else Outcome.CLOSE


def divergence(candidate: str = "cand.ckpt", name: str = "encoder.layers.2.linear", **more: object) -> FirstDivergence:
    """Return a first divergence of which little is known."""
    values: dict[str, object] = {
        "candidate_name": name,
        "order": 17,
        "slot": None,
        "reason": PartingReason.FIRST_OUT,
        "verdict": Verdict.DIFFERENT,
        "max_abs": 0.25,
    }
    return FirstDivergence(candidate=candidate, name=name, **{**values, **more})  # type: ignore[arg-type]


def mixed() -> Comparison:
    """Return one with everything: every verdict, relations, leftovers, groups, findings, notes, a divergence."""
    nans = metrics(nonfinite_ref=3, nonfinite_cand=3)
    broken = metrics(
        bad=4, apart=0.5, nonfinite_ref=0, nonfinite_cand=4, nonfinite_unequal=4, needed_tolerance=math.inf
    )
    renamed = {"candidate_name": "_orig_mod.decoder.embed.weight", "method": Method.PREFIX, "shape": ((), ())}
    swapped = ((512, 80), (80, 512))
    pairs = [
        pair("encoder.layers.9.linear.weight", Verdict.DIFFERENT, 3.125e-3),
        pair("encoder.layers.10.linear.weight", Verdict.DIFFERENT, 3.125e-3),
        pair("encoder.layers.2.linear.weight", Verdict.DIFFERENT, 0.25),
        pair(
            "encoder.layers.0.norm.weight",
            Verdict.CLOSE,
            2e-6,
            dtype=("float32", "bfloat16"),
            related=related(True, 2e-6, text="cast(float32)", kind=RelationKind.CAST),
        ),
        pair("encoder.pos_enc.pe", metrics=nans),
        pair("decoder.out.bias", Verdict.NOT_FINITE, metrics=broken),
        pair("decoder.out.weight", Verdict.SHAPE, shape=swapped, metrics=None, related=related(False)),
        pair("decoder.meta", Verdict.NOT_COMPARED, metrics=None, note="has no data: on the meta device"),
        pair("decoder.embed.weight", **renamed),
    ]
    return comparison(
        *(replace(each, order=order) for order, each in enumerate(pairs)),
        candidates=(side(notes=("optimizer_states were not compared",)),),
        leftovers=(
            leftover(REFERENCE, "quantizer.codebook", near="codebook", near_shape=(4096, 16)),
            leftover(CANDIDATE, "codebook", shape=(4096, 16), near="quantizer.codebook"),
            leftover(CANDIDATE, "decoder.tied.weight", same_as="_orig_mod.decoder.embed.weight"),
        ),
        findings=(
            Finding("transposed", ("decoder.out.weight",), "equal after .T", "transpose it when loading", 0.98),
            Finding("cast", ("encoder.layers.0.norm.weight",), "rounds to the same", "", 1.0, harmless=True),
        ),
        first_divergences={"cand.ckpt": divergence()},
        groups={"encoder": "encoder.*", "head": "head.*"},
        notes=(Note(NoteSlug.LEFT_OUT, "3 tensors were left out by --exclude"),),
    )


def same() -> Comparison:
    """Return one where all is identical."""
    return comparison(pair("a.weight"), pair("a.bias"))


def close() -> Comparison:
    """Return one within tolerance."""
    return comparison(pair("a.weight", Verdict.CLOSE, 3e-6), pair("a.bias"))


def several() -> Comparison:
    """Return one with three candidates: one the same, one different, one with nothing in common."""
    labels = ("modes/fp16.safetensors", "modes/int8.safetensors", "modes/other.safetensors")
    return comparison(
        pair("a.weight", Verdict.CLOSE, 3e-6, candidate=labels[0]),
        pair("a.weight", Verdict.DIFFERENT, 3e-2, candidate=labels[1]),
        pair("a.bias", candidate=labels[1]),
        candidates=tuple(side(label, "safetensors") for label in labels),
        leftovers=(leftover(REFERENCE, "a.weight", candidate=labels[2], shape=(2, 3)),),
        tolerance=Tolerance(1e-4, 1e-3, "given"),
    )


def nothing() -> Comparison:
    """Return one where nothing was compared."""
    return comparison()


def hostile() -> Comparison:
    """Return one where every text is an attack."""
    names = list(HOSTILE.values())
    pairs = []
    for order, name in enumerate(names):
        values = {"candidate": name, "candidate_name": name + "'", "method": Method.RENAME, "note": name}
        relation = related(bool(order % 2), text=name)
        pairs.append(pair(name, Verdict.DIFFERENT, 0.1, order=order, related=relation, **values))
    alone = []
    for name in names:
        for where in SIDES:
            alone.append(leftover(where, name, candidate=name, dtype=name, near=name, same_as=name))
    return comparison(
        *pairs,
        reference=side(HOSTILE["script"], HOSTILE["markup"], notes=tuple(names)),
        candidates=tuple(side(name, name) for name in names),
        leftovers=tuple(alone),
        findings=tuple(Finding(name, (name,), name, name, 0.5, candidate=name) for name in names),
        first_divergences={name: divergence(name, HOSTILE["escape"], why=HOSTILE["script"]) for name in names},
        groups=dict.fromkeys(names, "re:" + "x"),
        notes=tuple(Note(NoteSlug.SAME_COUNT, name) for name in names),
    )


CASES = {"mixed": mixed, "same": same, "close": close, "several": several, "nothing": nothing, "hostile": hostile}
