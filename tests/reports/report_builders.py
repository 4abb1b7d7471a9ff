"""Results built by hand, so that reports are tested without one file being read."""

from __future__ import annotations

import math

from nndiff.result import Comparison, Finding, Leftover, Pair, Side
from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

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


def pair(name: str, verdict: Verdict = Verdict.IDENTICAL, apart: float = 0.0, **more: object) -> Pair:
    """Return a pair of the same name on both sides."""
    bad = 451 if verdict is Verdict.DIFFERENT else 0
    values: dict[str, object] = {
        "candidate": "cand.ckpt",
        "reference_name": name,
        "candidate_name": name,
        "matched_by": "name",
        "verdict": verdict,
        "shape": ((25, 40), (25, 40)),
        "dtype": ("float32", "float32"),
        "order": 0,
        "metrics": metrics(bad=bad, apart=apart),
        "atol": 1e-5,
        "rtol": 1e-5,
    }
    return Pair(**{**values, **more})  # type: ignore[arg-type]


def side(label: str = "cand.ckpt", kind: str = "torch zip", tensors: int = 8, **more: object) -> Side:
    """Return a side with plausible counts."""
    values: dict[str, object] = {"elements": 1_234_567, "trainable": 1_200_000, "nbytes": 4_938_268}
    return Side(label, kind, tensors, **{**values, **more})  # type: ignore[arg-type]


def comparison(*pairs: Pair, **more: object) -> Comparison:
    """Return a comparison of ref.nemo with cand.ckpt."""
    values: dict[str, object] = {
        "kind": "checkpoint",
        "reference": side("ref.nemo", "nemo"),
        "candidates": (side(),),
        "tolerance": Tolerance(),
        "pairs": tuple(pairs),
    }
    return Comparison(**{**values, **more})  # type: ignore[arg-type]


def mixed() -> Comparison:
    """Return one with everything: every verdict, leftovers, groups, findings, notes, a divergence."""
    nans = metrics(nonfinite_ref=3, nonfinite_cand=3)
    broken = metrics(
        bad=4, apart=0.5, nonfinite_ref=0, nonfinite_cand=4, nonfinite_unequal=4, needed_tolerance=math.inf
    )
    cast = {"dtype": ("float32", "bfloat16"), "note": "compared after upcast"}
    pairs = [
        pair("encoder.layers.9.linear.weight", Verdict.DIFFERENT, 3.125e-3),
        pair("encoder.layers.10.linear.weight", Verdict.DIFFERENT, 3.125e-3),
        pair("encoder.layers.2.linear.weight", Verdict.DIFFERENT, 0.25),
        pair("encoder.layers.0.norm.weight", Verdict.CLOSE, 2e-6, **cast),
        pair("encoder.pos_enc.pe", metrics=nans),
        pair("decoder.out.bias", Verdict.NOT_FINITE, metrics=broken),
        pair("decoder.out.weight", Verdict.SHAPE, shape=((512, 80), (80, 512)), metrics=None),
        pair("decoder.meta", Verdict.NOT_COMPARED, metrics=None, note="has no data: on the meta device"),
        pair(
            "decoder.embed.weight", candidate_name="_orig_mod.decoder.embed.weight", matched_by="prefix", shape=((), ())
        ),
    ]
    return comparison(
        *(replace_order(each, order) for order, each in enumerate(pairs)),
        candidates=(side(notes=("optimizer_states were not compared",)),),
        leftovers=(
            Leftover("cand.ckpt", "reference", "quantizer.codebook", (8192, 16), "float32", "did you mean codebook?"),
            Leftover("cand.ckpt", "candidate", "codebook", (8192, 16), "float32"),
        ),
        findings=(
            Finding("transposed", ("decoder.out.weight",), "equal after .T", "transpose it when loading", 0.98),
            Finding("cast", ("encoder.layers.0.norm.weight",), "rounds to the same", "", 1.0, harmless=True),
        ),
        first_divergences={
            "cand.ckpt": {"name": "encoder.layers.2.linear", "order": 17, "slot": "output", "max_abs": 0.25}
        },
        groups={"encoder": "encoder.*", "head": "head.*"},
        notes=("3 tensors were left out by --exclude",),
    )


def replace_order(item: Pair, order: int) -> Pair:
    """Return the pair at another place in the order."""
    import dataclasses

    return dataclasses.replace(item, order=order)


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
        leftovers=(Leftover(labels[2], "reference", "a.weight", (2, 3), "float32"),),
        tolerance=Tolerance(1e-4, 1e-3, "given"),
    )


def nothing() -> Comparison:
    """Return one where nothing was compared."""
    return comparison()


def hostile() -> Comparison:
    """Return one where every text is an attack."""
    names = list(HOSTILE.values())
    pairs = [
        pair(name, Verdict.DIFFERENT, 0.1, candidate=name, candidate_name=name + "'", matched_by="rename", note=name)
        for name in names
    ]
    return comparison(
        *(replace_order(each, order) for order, each in enumerate(pairs)),
        reference=side(HOSTILE["script"], HOSTILE["markup"], notes=tuple(names)),
        candidates=tuple(side(name, name) for name in names),
        leftovers=tuple(Leftover(name, where, name, (1,), name, name) for name in names for where in _SIDES),
        findings=tuple(Finding(name, (name,), name, name, 0.5) for name in names),
        first_divergences={name: {"name": HOSTILE["escape"], HOSTILE["script"]: HOSTILE["markup"]} for name in names},
        groups=dict.fromkeys(names, "re:" + "x"),
        notes=tuple(names),
    )


_SIDES = ("reference", "candidate")
CASES = {"mixed": mixed, "same": same, "close": close, "several": several, "nothing": nothing, "hostile": hostile}
