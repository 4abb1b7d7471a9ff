"""Comparisons of two recordings built by hand: every slot, several outputs, gradients that are noise."""

from __future__ import annotations

from dataclasses import replace

from report_builders import HOSTILE, hostile, metrics, pair, replace_order, side

from nndiff.result import Comparison, Finding, Leftover, Pair
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

CANDIDATE = "port.nnrec"
OK, NEAR, OUT = Verdict.IDENTICAL, Verdict.CLOSE, Verdict.DIFFERENT
FIRST = {
    "name": "blocks.1.norm:output",
    "candidate_name": "blocks.1.norm:output",
    "candidate": CANDIDATE,
    "order": 6,
    "slot": "output",
    "module": "blocks.1.norm",
    "call": 0,
    "class": ["LayerNorm", "FastNorm"],
    "verdict": "different",
    "max_abs": 6.5e-3,
    "inputs": "in tolerance",
    "why": "its output is out of tolerance while its inputs are in",
    "source": ["torch/nn/modules/normalization.py:105", "port/norm.py:12"],
    "attributes": {"eps": [1e-5, 1e-3]},
    "after": "blocks.0:output",
    "before": "blocks.1.attn:output.0",
}
META = {"model": {"class": "Encoder", "parameters": 12_345}, "mode": "eval", "seed": 42}


def site(name: str, verdict: Verdict = OK, apart: float = 0.0, **more: object) -> Pair:
    """Return a pair of a recorded site; the slot is the one its name tells."""
    slot = name.rpartition(":")[2].partition(".")[0].partition("#")[0]
    values: dict[str, object] = {"candidate": CANDIDATE, "slot": slot, "shape": ((2, 5, 16), (2, 5, 16))}
    return pair(name, verdict, apart, **{**values, **more})


def noise(name: str) -> Pair:
    """Return a gradient that is zero but for noise: its relative difference says nothing."""
    tiny = metrics(apart=2e-9, max_rel=1.5e4, ref_min=-1e-9, ref_max=1e-9)
    return site(name, NEAR, metrics=tiny, shape=((16,), (16,)))


def pairs() -> list[Pair]:
    """Return the pairs of a small model: a norm inside the second block is where it goes wrong."""
    guessed = {"candidate_name": "stem.1:output", "matched_by": "class, shape and order"}
    broken = metrics(bad=4, apart=0.5, nonfinite_cand=4, nonfinite_unequal=4, needed_tolerance=float("inf"))
    return [
        site("(model):model_input.0", shape=((2, 5, 8), (2, 5, 8))),
        site("embed:output", **guessed),
        site("blocks.0.norm:output"),
        site("blocks.0.attn:output.0", NEAR, 2e-7),
        site("blocks.0.attn:output.weights", shape=((2, 5, 5), (2, 5, 5))),
        site("blocks.0:output", NEAR, 3e-7),
        site("blocks.1.norm:output", OUT, 6.5e-3),
        site("blocks.1.attn:output.0", OUT, 4e-3),
        site("blocks.1.attn:output.weights", Verdict.NOT_FINITE, metrics=broken, shape=((2, 5, 5), (2, 5, 5))),
        site("blocks.1:output", OUT, 2e-3),
        site("act:output", OUT, 1e-3),
        site("act@1:output", Verdict.SHAPE, shape=((2, 5, 16), (2, 16, 5)), metrics=None),
        site("head:input.0", OUT, 1e-3),
        site("head:output", OUT, 8e-4),
        site("(model):output.logits", OUT, 8e-4, shape=((2, 5, 4), (2, 5, 4))),
        site("(model):loss", NEAR, 4e-6, shape=((), ())),
        site("head:grad_output"),
        site("blocks.1:grad_output", NEAR, 3e-6),
        site("blocks.1.attn:grad_output.0", OUT, 5e-4),
        site("blocks.1.norm:grad_output", OUT, 6e-4),
        site("blocks.1.norm:grad_output#1", NEAR, 2e-6),
        site("blocks.0:grad_output", OUT, 2e-4),
        site("embed.weight:param_grad", OUT, 3e-4),
        site("blocks.0.attn.linear_k.weight:param_grad", NEAR, 1e-6),
        noise("blocks.0.attn.linear_k.bias:param_grad"),
        site("head.weight:param_grad"),
        site("blocks.1.norm.running_mean:buffer", OUT, 2e-3),
    ]


def recording() -> Comparison:
    """Return one that is different, with a first divergence, leftovers that count and others that are only listed."""
    return Comparison(
        kind="recording",
        reference=side("nemo.nnrec", "recording", 27, meta=META),
        candidates=(side(CANDIDATE, "recording", 26, meta={**META, "mode": "train"}),),
        tolerance=Tolerance(),
        pairs=tuple(replace_order(each, order) for order, each in enumerate(pairs())),
        leftovers=(
            Leftover(CANDIDATE, "reference", "blocks.0.drop:output", (2, 5, 16), "float32", counts=False),
            Leftover(CANDIDATE, "reference", "blocks.0.drop:grad_output", (2, 5, 16), "float32", counts=False),
            Leftover(CANDIDATE, "candidate", "(model):output.aux", (2,), "float32"),
        ),
        findings=(Finding("attribute", ("blocks.1.norm:output",), "eps 1e-05 against 0.001", "make them equal", 0.9),),
        first_divergences={CANDIDATE: FIRST},
        notes=("gradients are judged at atol 3.1e-06",),
    )


def recording_same() -> Comparison:
    """Return one where every layer is the same bit for bit."""
    same = [site("(model):model_input.0"), site("fc:output"), site("(model):output"), site("fc:grad_output")]
    return replace(recording(), pairs=tuple(same), leftovers=(), findings=(), first_divergences={})


def recording_several() -> Comparison:
    """Return one with three candidates: as `recording`, the same as the reference, and one that parts elsewhere."""
    good = tuple(replace(each, candidate="good.nnrec", order=100 + each.order) for each in recording_same().pairs)
    wrong = [site("(model):model_input.0"), site("fc:output", OUT, 0.5), site("(model):output", OUT, 0.5)]
    late = tuple(replace(each, candidate="late.nnrec", order=200 + number) for number, each in enumerate(wrong))
    one = recording()
    first = {"name": "fc:output", "candidate": "late.nnrec", "class": ["Linear", "Linear"], "max_abs": 0.5}
    blamed = (
        replace(one.findings[0], candidate=CANDIDATE),
        Finding("cast", ("fc:output",), "", "", 0.5, False, "late.nnrec"),
    )
    return replace(
        one,
        pairs=(*one.pairs, *good, *late),
        candidates=(*one.candidates, *(side(label, "recording", 4) for label in ("good.nnrec", "late.nnrec"))),
        first_divergences={CANDIDATE: FIRST, "late.nnrec": first},
        findings=blamed,
    )


def recording_deep(layers: int = 1000) -> Comparison:
    """Return one with many layers that part in the middle."""
    deep = [
        site(f"layers.{index}:output", *((OK, 0.0) if index < layers // 2 else (OUT, 1e-3 + index * 1e-6)), order=index)
        for index in range(layers)
    ]
    first = {CANDIDATE: {"name": f"layers.{layers // 2}:output"}}
    return replace(recording(), pairs=tuple(deep), leftovers=(), findings=(), first_divergences=first)


def recording_hostile() -> Comparison:
    """Return one where every text of a recording is an attack."""
    bad = hostile()
    slots = ("output", "grad_output", "param_grad", "loss", "model_input", "buffer", HOSTILE["script"])
    made = [
        replace(each, slot=slot, reference_name=f"{each.reference_name}:{slot}.{each.reference_name}", order=each.order)
        for each in bad.pairs
        for slot in slots
    ]
    text = HOSTILE["attribute"] + HOSTILE["escape"]
    first = {
        **dict.fromkeys(("why", "inputs", "candidate_name", "after", "before", "verdict"), text),
        "name": made[0].name,
        "candidate": made[0].candidate,
        "class": [text, HOSTILE["script"]],
        "source": [HOSTILE["newline"], HOSTILE["pipe"]],
        "attributes": {HOSTILE["script"]: [HOSTILE["markup"], HOSTILE["override"]]},
    }
    firsts = {side.label: first for side in bad.candidates}
    meta = {"model": {"class": text, "parameters": 3}, "mode": text, "seed": HOSTILE["newline"]}
    sides = tuple(replace(each, meta=meta) for each in bad.candidates)
    return replace(bad, kind="recording", pairs=tuple(made), candidates=sides, first_divergences=firsts)


CASES = {
    "recording": recording,
    "recording-same": recording_same,
    "recording-several": recording_several,
    "recording-hostile": recording_hostile,
}
