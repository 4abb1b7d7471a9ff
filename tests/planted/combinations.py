"""Two and three faults in one model, at different places: all of them must be found."""

from __future__ import annotations

from block_faults import FAULTS
from truth import Combination

_PAIRS = (
    ("rms-eps", "linear-not-loaded"),
    ("scores-not-scaled", "logits-scaled"),
    ("causal-mask-missing", "gelu-for-silu"),
    ("rope-theta", "linear-in-bfloat16"),
    ("gelu-tanh", "linear-without-bias"),
    ("positions-from-one", "layer-norm-eps"),
    ("norm-without-the-mean", "conv1d-loaded-as-linear"),
    ("scores-not-capped", "embeddings-not-scaled"),
    ("adapter-merged", "pooler-without-tanh"),
    ("batch-norm-eps", "first-convolution-of-bgr"),
    ("padding-reflected", "corners-aligned"),
    ("port-groups-tiled", "port-rms-eps"),
    ("one-expert-chosen", "experts-in-another-order"),
    ("joined-part-with-aligned-corners", "time-not-added"),
    ("gru-gates-exchanged", "states-joined-in-another-order"),
)
_TRIPLES = (
    ("rms-eps", "heads-loaded-in-another-order", "logits-shifted"),
    ("groups-tiled", "linear-not-loaded", "norm-with-one-added"),
    ("gelu-tanh", "padding-ignored", "layer-norm-eps"),
    ("final-norm-missing", "gelu-erf", "causal-mask-shifted"),
    ("weight-scaled", "decay-shifted", "logits-normalised"),
    ("dilation-of-two", "fewer-groups", "columns-of-channels-last"),
)


def _combine(names: tuple[str, ...]) -> Combination:
    # the faults that come with inputs of their own give them to all
    faults = sorted((FAULTS[name] for name in names), key=lambda fault: fault.inputs.__name__.startswith("padded"))
    return Combination(tuple(reversed(faults)))


COMBINATIONS = {case.name: case for case in map(_combine, _PAIRS + _TRIPLES)}
