"""What is known of modes beside the numbers of their pairs: ratings, worst places, logits, ranks, blame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nndiff.metrics import Metrics


class MseRating(str, Enum):
    """Say in words how large a mean squared error is."""

    VERY_CLOSE = "very close"
    GOOD = "good"
    FAIR = "fair"
    LARGE = "large"


class CorrelationRating(str, Enum):
    """Say in words how well two tensors correlate."""

    NEAR_PERFECT = "near perfect"
    EXCELLENT = "excellent"
    GOOD = "good"
    NEEDS_ATTENTION = "needs attention"


# Below the first an MSE is very close, below the second good, below the third fair.
MSE_LIMITS = (1e-4, 1e-3, 1e-2)
# Above the first a correlation is near perfect, above the second excellent, above the third good.
CORRELATION_LIMITS = (0.9999, 0.999, 0.99)


@dataclass(frozen=True)
class Rating:
    """Hold both ratings of a layer."""

    mse: MseRating
    correlation: CorrelationRating


@dataclass(frozen=True)
class RatingLimits:
    """Say where one rating ends and the next begins."""

    mse: tuple[float, float, float] = MSE_LIMITS
    correlation: tuple[float, float, float] = CORRELATION_LIMITS

    def rate(self, metrics: Metrics) -> Rating:
        """Return the ratings of a pair; what is undefined gets the worst."""
        mse_rank = sum(not metrics.mse < limit for limit in self.mse)
        correlation_rank = sum(not metrics.correlation > limit for limit in self.correlation)
        return Rating(list(MseRating)[mse_rank], list(CorrelationRating)[correlation_rank])


@dataclass(frozen=True)
class Place:
    """Name a channel or token and its mean squared error."""

    index: tuple[int, ...]
    mse: float
    sample: int | None = None  # of a token: the sample it is in, where samples were recorded one by one


@dataclass(frozen=True)
class LayerFacts:
    """Hold what is known of one layer of one mode beside the metrics of its pair."""

    rating: Rating
    clipped: float  # share of elements at the mode's own minimum or maximum whose reference lies beyond it
    worst_channel: Place | None = None
    worst_token: Place | None = None


@dataclass(frozen=True)
class LogitFacts:
    """Hold how two sides choose: of outputs that are logits."""

    kl: float  # mean KL divergence of the mode's distribution from the reference's, in nats
    top1: float  # share of places at which both choose the same
    top5: (
        float  # share of places at which the reference's choice is among the mode's first five; NaN up to five classes
    )


class Direction(str, Enum):
    """Say on which side of a limit a number fails."""

    UNDER = "under"
    OVER = "over"


@dataclass(frozen=True)
class Threshold:
    """Hold one requirement on the output of every mode: --fail-under sqnr=20."""

    metric: str
    direction: Direction
    limit: float

    def is_met(self, value: float) -> bool:
        """Return True if a number meets the requirement; NaN meets none."""
        return value >= self.limit if self.direction is Direction.UNDER else value <= self.limit


@dataclass(frozen=True)
class ModeFacts:
    """Hold what is known of one mode."""

    mode: str
    rank: int  # 1 is the best; modes that failed come last
    error: float  # mean squared error of the output; NaN where there is none
    failed: str | None = None  # why it cannot be trusted: it raised, gave NaN or another shape, or lacks its output
    output: str | None = None  # name of the pair that is its output: of the model, or else of the last layer
    logits: LogitFacts | None = None
    perplexity: tuple[float, float] | None = None  # of the reference and of the mode, where labels were given
    unmet: tuple[Threshold, ...] = ()

    @property
    def perplexity_change(self) -> float:
        """Return by how much the perplexity grew; NaN where it is not known."""
        return math.nan if self.perplexity is None else self.perplexity[1] - self.perplexity[0]


@dataclass(frozen=True)
class BlamedLayer:
    """Hold how much one layer is to blame for the error of the output."""

    name: str
    own: float  # MSE of its output when it is given the reference's input
    cumulative: float  # MSE of its output when the whole mode runs
    share: float  # of the output's error
    together: tuple[str, ...] = ()  # what is exchanged together with it: a batch norm that was folded into it


@dataclass(frozen=True)
class RecommendedLayers:
    """Name the layers to keep at the reference's precision to meet a target."""

    keep: tuple[str, ...]
    predicted: float  # in the unit of the target
    verified: float
    target: float
    metric: str


LayerKey = tuple[str, str]  # mode, and name of the pair


@dataclass(frozen=True)
class ModesFacts:
    """Hold what a comparison of modes knows beside its pairs."""

    reference: str
    modes: tuple[ModeFacts, ...]  # by rank
    layers: Mapping[LayerKey, LayerFacts]
    first: str = ""  # name of the pair that is the first layer
    last: str = ""
    limits: RatingLimits = RatingLimits()
    thresholds: tuple[Threshold, ...] = ()
    blame: Mapping[str, tuple[BlamedLayer, ...]] = field(default_factory=dict)  # by mode
    recommend: Mapping[str, RecommendedLayers] = field(default_factory=dict)

    def get_mode(self, mode: str) -> ModeFacts:
        """Return the facts of one mode."""
        return next(facts for facts in self.modes if facts.mode == mode)

    def select(self, mode: str) -> ModesFacts:
        """Return the facts of one mode alone; it keeps its rank."""
        return ModesFacts(
            reference=self.reference,
            modes=tuple(facts for facts in self.modes if facts.mode == mode),
            layers={key: facts for key, facts in self.layers.items() if key[0] == mode},
            first=self.first,
            last=self.last,
            limits=self.limits,
            thresholds=self.thresholds,
            blame={name: layers for name, layers in self.blame.items() if name == mode},
            recommend={name: layers for name, layers in self.recommend.items() if name == mode},
        )
