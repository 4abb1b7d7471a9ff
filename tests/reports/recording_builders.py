"""Comparisons of two recordings built by hand: every slot, several outputs, guesses, gradients that are noise."""

from __future__ import annotations

from dataclasses import replace

from report_builders import HOSTILE, hostile, judged, leftover, metrics, pair, related, side

from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    Finding,
    FirstDivergence,
    InputState,
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
    WeightsAtSite,
)
from nndiff.tensors import MODEL, Site, Slot
from nndiff.tolerance import Tolerance, choose_tolerance
from nndiff.verdict import Outcome, Verdict

PORT = "port.nnrec"
OK, NEAR, OUT = Verdict.IDENTICAL, Verdict.CLOSE, Verdict.DIFFERENT
FIRST = FirstDivergence(
    candidate=PORT,
    name="blocks.1.norm:output",
    candidate_name="blocks.1.norm:output",
    order=6,
    slot=Slot.OUTPUT,
    reason=PartingReason.OWN_ERROR,
    verdict=OUT,
    max_abs=6.5e-3,
    module="blocks.1.norm",
    candidate_module="blocks.1.norm",
    classes=("LayerNorm", "FastNorm"),
    inputs=InputState.AGREE,
    sources=("torch/nn/modules/normalization.py:105", "port/norm.py:12"),
    settings={"eps": (1e-5, 1e-3)},
    weights=WeightsAtSite(2),
    after="blocks.0:output",
    before="blocks.1.attn:output.0",
)
META = {"model": {"class": "Encoder", "parameters": 12_345}, "mode": "eval", "seed": 42}


def parse_site(name: str, cls: str = "") -> Site:
    """Return the site that a name of the tests speaks of: `module@call:slot.path#nth`."""
    owner, _, place = name.rpartition(":")
    slot_name, _, path = place.partition(".")
    slot_name, _, first_nth = slot_name.partition("#")
    path, _, nth = path.partition("#")
    module, _, call = owner.partition("@")
    slot = Slot(slot_name)
    tensor = ""
    if slot.is_parameter or slot.is_buffer:
        module, _, tensor = module.rpartition(".")
    module = "" if module == MODEL else module
    return Site(module, slot, int(call or 0), path, tensor, cls, int(nth or first_nth or 0))


def site(name: str, verdict: Verdict = OK, apart: float = 0.0, **more: object) -> Pair:
    """Return a pair of a recorded site; the slot is the one its name tells."""
    other = str(more.get("candidate_name", name))
    values: dict[str, object] = {
        "candidate": PORT,
        "sites": (parse_site(name), parse_site(other)),
        "shape": ((2, 5, 16), (2, 5, 16)),
    }
    made = pair(name, verdict, apart, **{**values, **more})
    assert made.sites is not None
    assert made.sites[0].name == name or name == f"{MODEL}:{made.slot}"
    return made


def alone(side_of: str, name: str, reason: LeftoverReason = LeftoverReason.NO_PARTNER, **more: object) -> Leftover:
    """Return a recorded tensor without a partner."""
    values = {"candidate": PORT, "site": parse_site(name), "shape": (2, 5, 16), "reason": reason}
    return leftover(side_of, name, **{**values, **more})


def noise(name: str) -> Pair:
    """Return a gradient that is zero but for noise: its relative difference says nothing."""
    tiny = metrics(apart=2e-9, max_rel=1.5e4, ref_min=-1e-9, ref_max=1e-9)
    return site(name, NEAR, metrics=tiny, shape=((16,), (16,)))


def make_pairs() -> list[Pair]:
    """Return the pairs of a small model: a norm inside the second block is where it goes wrong."""
    by_weights = {"candidate_name": "stem.1:output", "method": Method.WEIGHTS}
    guess = {"candidate_name": "mix:output", "method": Method.CALL, "certain": False}
    swapped = ((2, 5, 16), (2, 16, 5))
    broken = metrics(bad=4, apart=0.5, nonfinite_cand=4, nonfinite_unequal=4, needed_tolerance=float("inf"))
    return [
        site("(model):model_input.0", shape=((2, 5, 8), (2, 5, 8))),
        site("embed:output", **by_weights),
        site("blocks.0.norm:output", NEAR, shape=swapped, metrics=None, related=related(True)),
        site("blocks.0.attn:output.0", NEAR, 2e-7),
        site("blocks.0.attn:output.weights", shape=((2, 5, 5), (2, 5, 5))),
        site("blocks.0.mix:output", OUT, 0.7, **guess),
        site("blocks.0:output", NEAR, 3e-7),
        site("blocks.1.norm:output", OUT, 6.5e-3),
        site("blocks.1.attn:output.0", OUT, 4e-3),
        site("blocks.1.attn:output.weights", Verdict.NOT_FINITE, metrics=broken, shape=((2, 5, 5), (2, 5, 5))),
        site("blocks.1:output", OUT, 2e-3),
        site("act:output", OUT, 1e-3),
        site("act@1:output", Verdict.SHAPE, shape=swapped, metrics=None),
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
    result = Comparison(
        kind="recording",
        reference=side("nemo.nnrec", "recording", 28, meta=META),
        candidates=(side(PORT, "recording", 27, meta={**META, "mode": "train"}),),
        tolerance=Tolerance(),
        pairs=tuple(replace(each, order=order) for order, each in enumerate(make_pairs())),
        judgements={},
        leftovers=(
            alone(REFERENCE, "blocks.0.drop:output", LeftoverReason.INNER),
            alone(REFERENCE, "blocks.0.drop:grad_output", LeftoverReason.INNER),
            alone(CANDIDATE, "(model):output.aux", LeftoverReason.EXTRA_OUTPUT, shape=(2,)),
        ),
        findings=(Finding("norm-eps", ("blocks.1.norm:output",), "eps 1e-05 against 0.001", "make them equal", 0.9),),
        first_divergences={PORT: FIRST},
        notes=(Note(NoteSlug.GRADIENT_SCALE, "gradients are judged at atol 3.1e-06"),),
    )
    return judged(result)


def recording_of(*pairs: Pair, **more: object) -> Comparison:
    """Return a recording with these pairs in this order, and nothing else."""
    ordered = tuple(replace(each, order=order) for order, each in enumerate(pairs))
    values: dict[str, object] = {"pairs": ordered, "leftovers": (), "findings": (), "first_divergences": {}}
    return judged(replace(recording(), **{**values, **more}))  # type: ignore[arg-type]


def recording_same() -> Comparison:
    """Return one where every layer is the same bit for bit."""
    return recording_of(
        site("(model):model_input.0"), site("fc:output"), site("(model):output"), site("fc:grad_output")
    )


def recording_extra() -> Comparison:
    """Return one whose outputs agree, but for some that only the candidate returns."""
    names = [f"(model):output.past_key_values.{layer}.{part}" for layer in range(2) for part in range(2)]
    extra = tuple(alone(CANDIDATE, name, LeftoverReason.EXTRA_OUTPUT) for name in names)
    first = replace(
        FIRST,
        name=names[0],
        reason=PartingReason.EXTRA_OUTPUT,
        verdict=None,
        max_abs=None,
        missing_in=REFERENCE,
        classes=("", ""),
        settings={},
        sources=("", ""),
        weights=None,
        after="",
        before="",
    )
    return recording_of(
        *(site("(model):model_input.0"), site("fc:output", NEAR, 2e-7), site("(model):output.logits", NEAR, 3e-7)),
        leftovers=extra,
        first_divergences={PORT: first},
    )


def recording_noise() -> Comparison:
    """Return one whose noise floors are known, judged by them."""
    one = recording()
    pairs = [replace(each, noise=None if each.is_exact else 3e-7 * (1 + each.order)) for each in one.pairs]
    return replace(
        one,
        pairs=tuple(pairs),
        tolerance=choose_tolerance(tolerance="noise"),
        first_divergences={PORT: replace(FIRST, times_noise=4671.4)},
    )


def recording_several() -> Comparison:
    """Return one with three candidates: as `recording`, the same as the reference, and one that parts elsewhere."""
    good = [replace(each, candidate="good.nnrec", order=100 + each.order) for each in recording_same().pairs]
    wrong = [site("(model):model_input.0"), site("fc:output", OUT, 0.5), site("(model):output", OUT, 0.5)]
    late = [replace(each, candidate="late.nnrec", order=200 + number) for number, each in enumerate(wrong)]
    one = recording()
    first = FirstDivergence(
        candidate="late.nnrec",
        name="fc:output",
        candidate_name="fc:output",
        order=201,
        slot=Slot.OUTPUT,
        reason=PartingReason.FIRST_OUT,
        verdict=OUT,
        max_abs=0.5,
        classes=("Linear", "Linear"),
    )
    blamed = (
        replace(one.findings[0], candidate=PORT),
        Finding("cast", ("fc:output",), "", "", 0.5, False, "late.nnrec"),
    )
    return judged(
        replace(
            one,
            pairs=(*one.pairs, *good, *late),
            candidates=(*one.candidates, *(side(label, "recording", 4) for label in ("good.nnrec", "late.nnrec"))),
            first_divergences={PORT: FIRST, "late.nnrec": first},
            findings=blamed,
        )
    )


def recording_deep(layers: int = 1000) -> Comparison:
    """Return one with many layers that part in the middle."""
    deep = [
        site(f"layers.{index}:output", *((OK, 0.0) if index < layers // 2 else (OUT, 1e-3 + index * 1e-6)))
        for index in range(layers)
    ]
    first = replace(FIRST, name=f"layers.{layers // 2}:output")
    return recording_of(*deep, first_divergences={PORT: first})


def recording_hostile() -> Comparison:
    """Return one where every text of a recording is an attack."""
    bad = hostile()
    slots = (Slot.OUTPUT, Slot.GRAD_OUTPUT, Slot.PARAM_GRAD, Slot.LOSS, Slot.MODEL_INPUT, Slot.BUFFER)
    made = []
    for each in bad.pairs:
        for slot in slots:
            text = each.reference_name
            place = Site(text, slot, 0, text, text if slot.is_parameter or slot.is_buffer else "", text)
            made.append(replace(each, reference_name=place.name, sites=(place, place), certain=len(made) % 3 > 0))
    text = HOSTILE["attribute"] + HOSTILE["escape"]
    first = replace(
        FIRST,
        **dict.fromkeys(("why", "candidate_name", "after", "before", "module", "missing_in"), text),
        name=made[0].name,
        classes=(text, HOSTILE["script"]),
        module_classes=(HOSTILE["markup"], text),
        sources=(HOSTILE["newline"], HOSTILE["pipe"]),
        settings={HOSTILE["script"]: (HOSTILE["markup"], HOSTILE["override"])},
        weights=WeightsAtSite(3, (text,), (HOSTILE["script"],), (HOSTILE["newline"],)),
    )
    firsts = {side.label: first for side in bad.candidates}
    meta = {"model": {"class": text, "parameters": 3}, "mode": text, "seed": HOSTILE["newline"]}
    meta["not_recorded"] = {text: HOSTILE["script"]}
    sides = tuple(replace(each, meta=meta) for each in bad.candidates)
    extra = [
        replace(each, reason=LeftoverReason.EXTRA_OUTPUT, site=Site("", Slot.OUTPUT, 0, each.name))
        for each in bad.leftovers
    ]
    values = {"pairs": tuple(made), "candidates": sides, "first_divergences": firsts, "leftovers": tuple(extra)}
    judgement = Judgement(Outcome.DIFFERENT, Outcome.DIFFERENT)
    return replace(bad, kind="recording", judgements={side.label: judgement for side in sides}, **values)


CASES = {
    "recording": recording,
    "recording-same": recording_same,
    "recording-extra": recording_extra,
    "recording-noise": recording_noise,
    "recording-several": recording_several,
    "recording-hostile": recording_hostile,
}
