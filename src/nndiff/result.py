"""The result of a comparison: facts, computed once, only read by whatever shows them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from nndiff.dtypes import DType, find_dtype
from nndiff.facts.modes import ModesFacts
from nndiff.facts.runs import RunDivergence, RunFacts, count_step_verdicts
from nndiff.metrics import Metrics
from nndiff.names import matches_any
from nndiff.tensors import Shape, Site, Slot
from nndiff.tolerance import NOISE_FACTOR, Tolerance
from nndiff.verdict import EXTRA_OUTPUTS, Judge, Outcome, RelationKind, Verdict, worst_outcome

REFERENCE, CANDIDATE = "reference", "candidate"
SIDES = (REFERENCE, CANDIDATE)


class Method(str, Enum):
    """Say how two tensors were paired."""

    NAME = "name"
    PREFIX = "prefix"  # the same name behind a wrapper or one common prefix
    RENAME = "rename"
    MAP = "map"
    ONLY = "only"  # the one array of two files that give it no name
    CONTENT = "content"  # the same bytes
    VALUES = "values"  # the same values in another order, shape or dtype
    CAST = "cast"  # the same values once one side is rounded
    GROUP = "group"  # several tensors that together hold the values of one
    BLOCK = "block"  # the same place in a repeated block, beside partners that are known
    WEIGHTS = "weights"  # the modules hold the same weights
    MODULE = "module"  # both belong to modules that are paired
    STRUCTURE = "structure"  # the same classes, weights' shapes and order of calls throughout
    PARTS = "parts"  # one layer that does the work of several
    STATISTICS = "statistics"  # values of nearly the same statistics
    CALL = "call"  # class, shape and order of calls

    @property
    def is_by_content(self) -> bool:
        """Return True if what tensors of files hold paired them, or the partners found so around them."""
        return self in (Method.CONTENT, Method.VALUES, Method.CAST, Method.BLOCK)


class LeftoverReason(str, Enum):
    """Say why a tensor has no partner."""

    NO_PARTNER = "no partner"
    EXTRA_OUTPUT = "extra output"  # an output of the model that only one side returns
    INNER = "inner"  # flows through a module inside: implementations are cut into modules differently
    NOT_RECORDED = "not recorded"  # the other side was recorded without this kind of tensor
    COMPUTED = "computed"  # a buffer that is computed, not trained, and that one side does not register
    UNREACHED = "unreached"  # the other recording was cut off before it
    AMBIGUOUS = "ambiguous"  # several tensors of the other side hold its values, and nothing tells which is its partner


JOINT = " + "  # between the names of tensors that a relation brings together


class NoteSlug(str, Enum):
    """Name what a note is about."""

    RULE_WITHOUT_EFFECT = "rule-without-effect"
    LEFT_OUT = "left-out"
    AMBIGUOUS_PREFIX = "ambiguous-prefix"
    AMBIGUOUS_CONTENT = "ambiguous-content"
    RECORDED_WITHOUT = "recorded-without"
    GRADIENTS_NOT_PAIRED = "gradients-not-paired"
    GRADIENT_SCALE = "gradient-scale"
    OUTPUT_FORM = "output-form"
    SETTINGS_WITHOUT_EFFECT = "settings-without-effect"
    PAIRED_BY_WEIGHTS = "paired-by-weights"
    COMPARE_AGAIN = "compare-again"
    NOT_SEARCHED = "not-searched"
    DTYPES_DIFFER = "dtypes-differ"
    SAME_COUNT = "same-count"
    BY_SKETCH = "by-sketch"
    BY_STATISTICS = "by-statistics"
    NOT_KEPT = "not-kept"
    NOISE_NOT_MEASURED = "noise-not-measured"
    LOSS_NOT_FINITE = "loss-not-finite"
    MODE = "mode"
    HARMLESS_SETTINGS = "harmless-settings"
    SETTINGS_ON_ONE_SIDE = "settings-on-one-side"
    NO_EXPERIMENT = "no-experiment"


@dataclass(frozen=True)
class Note:
    """Tell the reader something that is no difference; code reads the slug, people the text."""

    slug: NoteSlug
    text: str


@dataclass(frozen=True)
class Side:
    """Describe one source that took part."""

    label: str
    kind: str
    tensors: int
    elements: int  # of all tensors, tied ones once: the parameter count, buffers included
    trainable: int  # elements of tensors that look like parameters
    nbytes: int
    notes: tuple[str, ...] = ()  # what the reader should know: parts of the file that were not compared, ...
    meta: Mapping[str, Any] = field(default_factory=dict)  # plain facts from the file itself

    @property
    def was_cut_off(self) -> bool:
        """Return True for a recording that ends before its run did."""
        return self.kind == "recording" and self.meta.get("complete") is False

    @property
    def unread_outputs(self) -> Mapping[str, str]:
        """Return the outputs of the model that a recording could not hold: {name: what it is}."""
        found = self.meta.get("not_recorded")
        return found if isinstance(found, Mapping) else {}


class Relation(Protocol):
    """Describe the operations that turn two tensors into one another, proven on every element.

    `relations/` makes them; a result only prints and stores them.
    """

    @property
    def kind(self) -> RelationKind:
        """Return the kind that it is told as."""

    @property
    def kinds(self) -> tuple[RelationKind, ...]:
        """Return all kinds that must be accepted: elements may be moved and rounded."""

    @property
    def text(self) -> str:
        """Return the operations as a person would write them: `permute(1, 0)`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the operations as plain data, from which `relations` builds them again."""


@dataclass(frozen=True)
class Related:
    """Hold a proven relation of a pair, the numbers after it, and whether its kind is accepted here."""

    relation: Relation
    metrics: Metrics
    accepted: bool


def count_noise(error: float, noise: float | None) -> float | None:
    """Return an error as a multiple of the noise floor; None where that was not measured or is infinite."""
    if noise is None or math.isinf(noise):
        return None
    if noise == 0:
        return 0.0 if error == 0 else math.inf
    return error / noise


@dataclass(frozen=True)
class Pair:
    """Hold two tensors that belong together, their numbers and the verdict."""

    candidate: str  # label of the candidate this pair is about
    reference_name: str
    candidate_name: str
    method: Method
    certain: bool
    verdict: Verdict
    shape: tuple[Shape, Shape]
    dtype: tuple[str, str]
    order: int
    stored: Metrics | None = None  # the numbers as stored, before any relation; None where shapes differ or data lacks
    atol: float = 0.0  # the tolerance this pair was judged at
    rtol: float = 0.0
    scale: float = 1.0  # what the tolerance's atol was multiplied with: gradients are judged on their own scale
    sites: tuple[Site, Site] | None = None  # of recordings
    related: Related | None = None
    notes: tuple[Note, ...] = ()
    noise: float | None = None  # noise floor: max abs by which rounding alone moves the reference; None if not measured
    own: float | None = None  # own error: max abs when the module is given the reference's inputs; None if not replayed

    @property
    def name(self) -> str:
        """Return the name it goes by: the reference's."""
        return self.reference_name

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors of both sides; a relation may bring several together."""
        return (*self.reference_name.split(JOINT), *self.candidate_name.split(JOINT))

    @property
    def metrics(self) -> Metrics | None:
        """Return the numbers that were judged: after the relation where that is accepted, else as stored."""
        return self.related.metrics if self.related and self.related.accepted else self.stored

    @property
    def times_noise(self) -> float | None:
        """Return the error as a multiple of the noise floor; None where one of the two is not known."""
        return count_noise(self.metrics.max_abs, self.noise) if self.metrics else None

    @property
    def is_within_noise(self) -> bool:
        """Return True if the error is no more than rounding may do; a floor that is infinite says nothing."""
        if self.metrics is None or self.noise is None or not math.isfinite(self.noise) or self.is_exact:
            return False
        return self.metrics.max_abs <= NOISE_FACTOR * self.noise and not self.metrics.nonfinite_unequal

    @property
    def own_times_noise(self) -> float | None:
        """Return the own error as a multiple of the noise floor; None where one of the two is not known."""
        return count_noise(self.own, self.noise) if self.own is not None else None

    @property
    def slot(self) -> Slot | None:
        """Return what the reference's tensor is in its recording; None in files."""
        return self.sites[0].slot if self.sites else None

    @property
    def decides(self) -> bool:
        """Return True if this pair counts for the verdict: rule 1.

        Guessed outputs inside, inner inputs and gradients at inner outputs are evidence. What a model holds, and the
        gradients of it, must agree however it was paired: without an agreeing partner nothing shows that it does.
        """
        if self.sites is None or not self.sites[0].module:
            return True
        if self.sites[0].slot.is_parameter or self.sites[0].slot.is_buffer:
            return True
        return self.certain and self.slot is Slot.OUTPUT

    @property
    def is_inside(self) -> bool:
        """Return True for what is inside the model, where another implementation may do things differently."""
        return self.sites is not None and self.sites[0].belongs_inside

    @property
    def is_outside(self) -> bool:
        """Return True for what goes in and comes out of the model."""
        return not self.is_inside

    @property
    def is_input(self) -> bool:
        """Return True for an input of the model itself: equal by construction, it says nothing of the models."""
        if self.sites is None:
            return False
        site = self.sites[0]
        return site.slot is Slot.MODEL_INPUT or (site.slot is Slot.INPUT and not site.module)

    @property
    def is_final_output(self) -> bool:
        """Return True for an output of the model itself."""
        return self.sites is not None and self.sites[0].is_final_output

    @property
    def is_exact(self) -> bool:
        """Return True if both sides are whole numbers or booleans, which know no rounding."""
        return all(dtype.exact for dtype in self.dtypes)

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """Return the dtypes of both sides."""
        reference, candidate = (find_dtype(name) for name in self.dtype)
        return reference, candidate

    @property
    def passes_at(self) -> float:
        """Return the smallest t at which it is known to pass as atol = rtol = t; inf where none is."""
        if self.metrics is None:
            return math.inf
        proven = self.metrics.passes_at(self.scale, self.is_exact)
        if self.verdict.passed and self.scale > 0:
            is_noise = self.slot is not None and self.slot.is_gradient and self.noise is not None
            if is_noise and self.atol > self.scale * self.rtol > 0:
                return min(proven, self.rtol)  # its noise floor lets it pass at any tolerance
            return min(proven, max(self.atol / self.scale, self.rtol))
        return proven

    @property
    def severity(self) -> tuple[int, bool, float]:
        """Return a key that sorts the worst first when reversed; counters come after what is trained."""
        return (
            _WORST_LAST.index(self.verdict),
            not self.is_exact,
            self.metrics.needed_tolerance if self.metrics else 0.0,
        )

    @property
    def differs_only_in_dtype(self) -> bool:
        """Return True if every element is in tolerance and --strict-dtype makes it a difference."""
        is_out = self.verdict is Verdict.DIFFERENT and self.dtype[0] != self.dtype[1]
        return is_out and self.metrics is not None and self.metrics.mismatched == 0

    def has_note(self, slug: NoteSlug) -> bool:
        """Return True if a note of this kind is attached."""
        return any(note.slug is slug for note in self.notes)


_WORST_LAST = (
    Verdict.IDENTICAL,
    Verdict.CLOSE,
    Verdict.NOT_COMPARED,
    Verdict.DIFFERENT,
    Verdict.NOT_FINITE,
    Verdict.SHAPE,
)


@dataclass(frozen=True)
class Leftover:
    """Name a tensor without a partner."""

    candidate: str  # label of the candidate of the comparison it was left over in
    side: str  # reference or candidate
    name: str
    shape: Shape
    dtype: str
    reason: LeftoverReason
    site: Site | None = None
    near: str = ""  # a leftover of the other side that may have been meant
    near_shape: Shape | None = None  # its shape, where that is another one
    same_as: str = ""  # a paired tensor of its own side that holds the very same values

    @property
    def is_inside(self) -> bool:
        """Return True for what is inside the model."""
        return self.site is not None and self.site.belongs_inside

    @property
    def is_extra_output(self) -> bool:
        """Return True for an output of the model that only this side returns, False for its gradient."""
        return self.reason is LeftoverReason.EXTRA_OUTPUT and self.site is not None and self.site.slot is Slot.OUTPUT

    @property
    def counts(self) -> bool:
        """Return True if having no partner is a difference, unless the rules say otherwise."""
        return self.reason in (
            LeftoverReason.NO_PARTNER,
            LeftoverReason.EXTRA_OUTPUT,
            LeftoverReason.UNREACHED,
            LeftoverReason.AMBIGUOUS,
        )


@dataclass(frozen=True)
class SettingDifference:
    """Name a setting beside the weights, in config.json or the tokenizer's files, that is not the same."""

    candidate: str  # label of the candidate it is about
    file: str
    key: str  # dotted path in the file; "" for the file as a whole
    values: tuple[str | None, str | None]  # of reference and candidate, as short JSON; None where the key is absent
    changes_network: bool  # False for versions, names and the like

    @property
    def name(self) -> str:
        """Return the name it goes by: `config.json:rope_theta`."""
        return f"{self.file}:{self.key}" if self.key else self.file


@dataclass(frozen=True)
class Finding:
    """Name a cause with its evidence and, where possible, the repair."""

    cause: str  # a slug of findings/causes.py
    where: tuple[str, ...]
    evidence: str
    repair: str
    confidence: float
    harmless: bool = False
    candidate: str = ""  # label of the candidate it is about


class InputState(str, Enum):
    """Say what is known of the inputs of a call."""

    AGREE = "in tolerance"
    DIFFER = "out of tolerance"
    UNKNOWN = "not recorded"


class PartingReason(str, Enum):
    """Say why a site is taken for the first divergence."""

    INPUTS_DIFFER = "inputs-differ"  # the runs were not fed the same
    OWN_ERROR = "own-error"  # out of tolerance while its inputs are in
    FIRST_OUT = "first-out"  # the first that is out; what went into it is not known
    BETWEEN_SITES = "between-sites"  # the first that is out; its cause lies between recorded sites
    NOT_KEPT = "not-kept"  # its bytes differ, and what was kept does not tell by how much
    DTYPE = "dtype"  # its values agree, its dtype does not
    LOSS = "loss"  # outputs agree, the loss does not
    GRADIENT = "gradient"  # outputs agree, gradients do not
    GRADIENT_MISSING = "gradient-missing"  # one side has no gradient there
    LOSS_NOT_FINITE = "loss-not-finite"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    EXTRA_OUTPUT = "extra-output"


@dataclass(frozen=True)
class WeightsAtSite:
    """Say how the weights of the module at the first divergence compare when the runs begin."""

    common: int
    differing: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    only_candidate: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstDivergence:
    """Say where a candidate parts from the reference, and what is known about that place."""

    candidate: str
    name: str
    candidate_name: str
    order: int
    slot: Slot | None
    reason: PartingReason
    verdict: Verdict | None  # None where one side lacks the tensor
    why: str = ""  # for people: never read by code
    max_abs: float | None = None
    times_noise: float | None = None  # that as a multiple of the noise floor
    module: str = ""  # where to look, by the reference's name; "" is the model itself
    candidate_module: str = ""
    call: int = 0
    classes: tuple[str, str] = ("", "")  # at the site
    module_classes: tuple[str, str] | None = None  # of the module to look in, where that is another one
    inputs: InputState | None = None
    sources: tuple[str, str] = ("", "")  # file:line of the two modules
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # those that differ
    weights: WeightsAtSite | None = None
    after: str = ""  # the last call inside the module that agrees
    before: str = ""  # the first that does not
    missing_in: str = ""  # the side that lacks it


@dataclass(frozen=True)
class OwnError:
    """Say that the code of a module is at fault: given the reference's inputs, it makes something else of them."""

    candidate: str
    name: str  # the site where it shows, by the reference's name
    candidate_name: str
    order: int
    slot: Slot
    module: str  # whose code makes it, by the reference's name; "" is the model itself
    candidate_module: str
    classes: tuple[str, str]  # of that module
    max_abs: float
    times_noise: float | None = None
    inherited: float | None = None  # max abs at the same site in the ordinary run, errors before it included
    after: str = ""  # the last call inside the module before it; "" if it follows from the module's inputs
    before: str = ""  # the call inside the module that it is handed to; "" if it is what the module returns
    given: tuple[str, ...] = ()  # the tensors it is made of, by name
    also: tuple[str, ...] = ()  # further sites that show the same error


@dataclass(frozen=True)
class Totals:
    """Count verdicts."""

    pairs: int
    identical: int
    close: int
    different: int
    shape: int
    not_finite: int
    not_compared: int
    only_reference: int
    only_candidate: int
    unreached: int  # of those without a partner: the other recording was cut off before them
    alone: int  # of those without a partner: they count as differences

    @property
    def matched(self) -> int:
        """Return how many pairs are the same."""
        return self.identical + self.close

    @property
    def comparable(self) -> int:
        """Return how many pairs there are or should have been."""
        return self.pairs + self.alone

    @property
    def match_rate(self) -> float:
        """Return the share that is the same of all pairs and of what has no partner; 0 where there is nothing."""
        return self.matched / self.comparable if self.comparable else 0.0


@dataclass(frozen=True)
class Rules:
    """Say what counts as agreement, beside the tolerance."""

    accept: frozenset[str] = frozenset()  # kinds of relations beside the defaults, and `extra`
    judge: Judge = Judge.ALL
    strict_dtype: bool = False


@dataclass(frozen=True)
class Judgement:
    """Hold the verdict on one candidate: of the whole, and of outside and inside apart."""

    outcome: Outcome
    outside: Outcome | None = None  # of recordings: what goes in and comes out
    inside_compared: int = 0  # certain pairs inside
    inside_different: int = 0


class Presenter(Protocol):
    """Show a result; `api` provides one, so that this module imports nothing above it."""

    def text(self, comparison: Comparison) -> str:
        """Return the terminal report."""

    def html(self, comparison: Comparison) -> str:
        """Return the html report."""

    def to_dict(self, comparison: Comparison) -> dict[str, Any]:
        """Return the result as plain data."""

    def write(self, comparison: Comparison, report: str) -> None:
        """Write a report, `FORMAT:PATH`."""

    def judged_at(self, comparison: Comparison, tolerance: Tolerance) -> Comparison:
        """Return the same numbers judged at another tolerance."""


_presenter: Presenter | None = None


def present_with(presenter: Presenter) -> None:
    """Set who shows results."""
    global _presenter
    _presenter = presenter


def _get_presenter() -> Presenter:
    if _presenter is None:
        raise RuntimeError("import nndiff.api before showing a result")
    return _presenter


@dataclass(frozen=True)
class Comparison:
    """Hold everything a comparison found out."""

    kind: str  # checkpoint, recording, run or modes
    reference: Side
    candidates: tuple[Side, ...]
    tolerance: Tolerance
    pairs: tuple[Pair, ...]
    judgements: Mapping[str, Judgement]  # by candidate
    leftovers: tuple[Leftover, ...] = ()
    findings: tuple[Finding, ...] = ()
    first_divergences: Mapping[str, FirstDivergence] = field(default_factory=dict)  # by candidate
    own_errors: tuple[OwnError, ...] = ()  # of live models: every module at fault, first to last
    groups: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    rules: Rules = Rules()
    run: tuple[RunFacts, ...] = ()  # of kind run: one for each candidate, in their order
    modes: ModesFacts | None = None  # of kind modes
    settings: tuple[SettingDifference, ...] = ()  # of folders: what differs beside the weights

    @property
    def verdict(self) -> str:
        """Return the verdict of the whole: identical, close, different or nothing compared."""
        return self.outcome.value

    @property
    def exit_code(self) -> int:
        """Return the exit status the comparison ends with."""
        return self.outcome.exit_code

    @property
    def outcome(self) -> Outcome:
        """Return the judgement of the whole: that of its worst candidate."""
        return worst_outcome(judgement.outcome for judgement in self.judgements.values())

    def outcome_of(self, candidate: str) -> Outcome:
        """Return the judgement of one candidate."""
        return self.judgements[candidate].outcome

    @property
    def first_divergence(self) -> FirstDivergence | RunDivergence | None:
        """Return where the candidate parts from the reference; of several, the first candidate that does."""
        for side in self.candidates:
            if side.label in self.first_divergences:
                return self.first_divergences[side.label]
        return next((facts.first_divergence for facts in self.run if facts.first_divergence), None)

    def side_of(self, candidate: str) -> Side:
        """Return the side of a candidate."""
        return next(side for side in self.candidates if side.label == candidate)

    def pairs_of(self, candidate: str) -> list[Pair]:
        """Return the pairs of one candidate."""
        return [pair for pair in self.pairs if pair.candidate == candidate]

    def leftovers_of(self, candidate: str) -> list[Leftover]:
        """Return the tensors without a partner in the comparison with one candidate."""
        return [leftover for leftover in self.leftovers if leftover.candidate == candidate]

    def settings_of(self, candidate: str) -> list[SettingDifference]:
        """Return the settings in which one candidate differs."""
        return [setting for setting in self.settings if setting.candidate == candidate]

    def cut_off_sides(self, candidate: str) -> tuple[str, ...]:
        """Return which of the two recordings end before their run did: reference, candidate, both or none."""
        sides = ((REFERENCE, self.reference), (CANDIDATE, self.side_of(candidate)))
        return tuple(role for role, side in sides if side.was_cut_off)

    def unread_outputs(self, candidate: str) -> tuple[tuple[str, str, str], ...]:
        """Return the outputs of either model that could not be recorded: (side, name, what it is)."""
        sides = ((REFERENCE, self.reference), (CANDIDATE, self.side_of(candidate)))
        return tuple((role, str(name), str(what)) for role, side in sides for name, what in side.unread_outputs.items())

    @property
    def totals(self) -> Totals:
        """Return the counts over all candidates; of runs, a pair is a pair of steps."""
        if self.kind == "run":
            return count_steps(self.run)
        return count_verdicts(self.pairs, self.leftovers, self.rules)

    def totals_of(self, candidate: str) -> Totals:
        """Return the counts of one candidate."""
        if self.kind == "run":
            return count_steps(facts for facts in self.run if facts.candidate == candidate)
        return count_verdicts(self.pairs_of(candidate), self.leftovers_of(candidate), self.rules)

    def totals_of_group(self, group: str) -> Totals:
        """Return the counts of the tensors a group's pattern names; of runs, those of the steps that have the group."""
        if self.kind == "run":
            return count_steps(self.run, group)
        patterns = (self.groups[group],)
        pairs = [pair for pair in self.pairs if matches_any(pair.name, patterns)]
        leftovers = [leftover for leftover in self.leftovers if matches_any(leftover.name, patterns)]
        return count_verdicts(pairs, leftovers, self.rules)

    @property
    def only_reference(self) -> tuple[str, ...]:
        """Return the names found in the reference alone."""
        return self._names_only_in(REFERENCE)

    @property
    def only_candidate(self) -> tuple[str, ...]:
        """Return the names found in a candidate alone."""
        return self._names_only_in(CANDIDATE)

    def _names_only_in(self, side: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(leftover.name for leftover in self.leftovers if leftover.side == side))

    @cached_property
    def needed_tolerance(self) -> float | None:
        """Return the smallest t at which all that counts passes as atol = rtol = t; None if none is known."""
        counted = [pair for pair in self.pairs if decides_verdict(pair, self.rules)]
        if all(pair.is_input for pair in counted):
            return None
        if any(decides_alone(leftover, self.rules) for leftover in self.leftovers):
            return None
        if any(setting.changes_network for setting in self.settings):
            return None
        for side in self.candidates:
            if self.cut_off_sides(side.label) or self.unread_outputs(side.label):
                return None
        if self.rules.strict_dtype and any(pair.dtype[0] != pair.dtype[1] for pair in counted):
            return None
        needed = max(pair.passes_at for pair in counted)
        return needed if math.isfinite(needed) else None

    def worst(self, top: int | None = None) -> list[Pair]:
        """Return the pairs that are not identical, worst first."""
        rows = [pair for pair in self.pairs if pair.verdict is not Verdict.IDENTICAL]
        return sorted(rows, key=lambda pair: pair.severity, reverse=True)[:top]

    def judged_at(self, tolerance: Tolerance) -> Comparison:
        """Return the same numbers judged at another tolerance; a note says where they do not decide."""
        return _get_presenter().judged_at(self, tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, ready for JSON."""
        return _get_presenter().to_dict(self)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON, whole or not at all."""
        _get_presenter().write(self, f"json:{path}")

    def html(self, path: str | Path) -> None:
        """Write the result as one html page, whole or not at all."""
        _get_presenter().write(self, f"html:{path}")

    def __str__(self) -> str:
        return _get_presenter().text(self)

    def _repr_html_(self) -> str:
        return _get_presenter().html(self)


def decides_verdict(pair: Pair, rules: Rules) -> bool:
    """Return True if a pair counts for the verdict under these rules."""
    return pair.decides and (rules.judge is Judge.ALL or pair.is_outside)


def decides_alone(leftover: Leftover, rules: Rules) -> bool:
    """Return True if having no partner is a difference under these rules."""
    if leftover.reason is LeftoverReason.EXTRA_OUTPUT:
        return rules.judge is Judge.ALL and EXTRA_OUTPUTS not in rules.accept
    return leftover.counts and (rules.judge is Judge.ALL or not leftover.is_inside)


def count_verdicts(pairs: Iterable[Pair], leftovers: Iterable[Leftover], rules: Rules = Rules()) -> Totals:
    """Count verdicts and leftovers."""
    verdicts = Counter(pair.verdict for pair in pairs)
    alone = Counter[str]()
    for leftover in leftovers:
        alone[leftover.side] += 1
        alone["unreached"] += leftover.reason is LeftoverReason.UNREACHED
        alone["alone"] += decides_alone(leftover, rules)
    return _make_totals(verdicts, alone)


def _make_totals(verdicts: Counter[Verdict], alone: Counter[str]) -> Totals:
    return Totals(
        pairs=sum(verdicts.values()),
        identical=verdicts[Verdict.IDENTICAL],
        close=verdicts[Verdict.CLOSE],
        different=verdicts[Verdict.DIFFERENT],
        shape=verdicts[Verdict.SHAPE],
        not_finite=verdicts[Verdict.NOT_FINITE],
        not_compared=verdicts[Verdict.NOT_COMPARED],
        only_reference=alone[REFERENCE],
        only_candidate=alone[CANDIDATE],
        unreached=alone["unreached"],
        alone=alone["alone"],
    )


def count_steps(runs: Iterable[RunFacts], group: str | None = None) -> Totals:
    """Count the verdicts of steps, or of a group at the steps that have it; a step of one side alone is no difference.

    A training that was cut short, or recorded at other steps, agrees as far as it goes.
    """
    verdicts = Counter[Verdict]()
    alone = Counter[str]()
    for facts in runs:
        verdicts += count_step_verdicts(facts.steps, group)
        if group is None:
            alone[REFERENCE] += len(facts.only_reference_steps)
            alone[CANDIDATE] += len(facts.only_candidate_steps)
    return _make_totals(verdicts, alone)
