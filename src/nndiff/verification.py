"""Whether a checkpoint loads into implementations of its model: what each did, and what was compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from nndiff.comparison import run_plans
from nndiff.plan import PairingRules, plan_comparison
from nndiff.relations.tied import have_equal_bits
from nndiff.result import CANDIDATE, REFERENCE, Comparison, Pair, Rules
from nndiff.sources import Source
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, Verdict

SAME_BITS = Tolerance(0.0, 0.0, "given")


class Direction(str, Enum):
    """Say which implementations a checkpoint is loaded into."""

    BIDIRECTIONAL = "bidirectional"
    NEMO_TO_LOCAL = "nemo_to_local"
    LOCAL_TO_NEMO = "local_to_nemo"


class CheckKind(str, Enum):
    """Say what is compared."""

    CHECKPOINT = "checkpoint"  # the checkpoint with the state dict of what loaded it
    STATE_DICTS = "state dicts"  # what one implementation loaded with what the other one did
    ROUND_TRIP = "round trip"  # what an implementation loaded with what it loads after a save
    FORWARD = "forward"  # what the models compute


# What the two compared sides of a round trip are called.
FROM_CHECKPOINT, FROM_SAVE = "what the checkpoint gave", "what the save gave"


class CheckResult(str, Enum):
    """Say how a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOTHING = "nothing compared"


@dataclass(frozen=True)
class LoadedSide:
    """Hold what is known of one implementation after it loaded the checkpoint."""

    label: str  # Local Model, NeMo Model
    title: str  # LOCAL model, NEMO model
    model: str  # as the user named it
    class_name: str = ""
    parameters: int = 0
    trainable: int = 0
    failure: str = ""  # why the checkpoint could not be loaded
    is_nemo: bool = False


@dataclass(frozen=True)
class Check:
    """Hold one comparison that verification asks for, or why it could not be made."""

    kind: CheckKind
    reference: str  # label of the side that is right: the checkpoint, an implementation, the one that saved
    candidate: str
    comparison: Comparison | None = None
    other_bits: tuple[str, ...] = ()  # tensors whose bits differ though dtype and shape do not
    failure: str = ""

    @property
    def result(self) -> CheckResult:
        """Return how the check ended; a check that could not be made has failed."""
        if self.comparison is None or self.other_bits:
            return CheckResult.FAILED
        if self.comparison.outcome is Outcome.NOTHING:
            return CheckResult.NOTHING
        return CheckResult.PASSED if self.comparison.exit_code == 0 else CheckResult.FAILED

    @property
    def common(self) -> int:
        """Return the number of tensors that both sides have."""
        return len(self.comparison.pairs) if self.comparison else 0

    @property
    def only_reference(self) -> list[str]:
        """Return the names that only the reference has."""
        return self._list_leftovers(REFERENCE)

    @property
    def only_candidate(self) -> list[str]:
        """Return the names that only the candidate has."""
        return self._list_leftovers(CANDIDATE)

    def _list_leftovers(self, side: str) -> list[str]:
        leftovers = self.comparison.leftovers if self.comparison else ()
        return [leftover.name for leftover in leftovers if leftover.side == side]

    @property
    def shape_mismatches(self) -> list[Pair]:
        """Return the pairs whose shapes differ."""
        pairs = self.comparison.pairs if self.comparison else ()
        return [pair for pair in pairs if pair.verdict is Verdict.SHAPE]

    @property
    def value_mismatches(self) -> list[Pair]:
        """Return the pairs whose values, dtypes or bits differ, or could not be read."""
        pairs = self.comparison.pairs if self.comparison else ()
        mismatches = []
        for pair in pairs:
            is_same = pair.verdict.passed and pair.name not in self.other_bits
            if not is_same and pair.verdict is not Verdict.SHAPE:
                mismatches.append(pair)
        return mismatches


@dataclass(frozen=True)
class Verification:
    """Hold everything that was found out about a checkpoint and its implementations."""

    checkpoint: str
    direction: Direction
    nemo_available: bool
    sides: tuple[LoadedSide, ...]
    checks: tuple[Check, ...]
    untested: str = ""  # what was not tested, and the way to test it
    is_complete: bool = True  # False if the user asked for what could not be tested

    @property
    def failed(self) -> list[Check]:
        """Return the checks that failed."""
        return [check for check in self.checks if check.result is CheckResult.FAILED]

    @property
    def empty(self) -> list[Check]:
        """Return the checks that compared nothing."""
        return [check for check in self.checks if check.result is CheckResult.NOTHING]

    @property
    def exit_code(self) -> int:
        """Return 0 if the checkpoint is compatible, 1 if it is not, 2 if that could not be found out."""
        if self.failed or any(side.failure for side in self.sides):
            return 1
        return 0 if self.checks and self.is_complete and not self.empty else 2


def compare_states(
    kind: CheckKind, labels: tuple[str, str], reference: Source, candidate: Source, pairing: PairingRules
) -> Check:
    """Compare two state dicts, which must have the same names, shapes, dtypes and bits: loading goes by names."""
    pairing = replace(pairing, content=False)
    names = (FROM_CHECKPOINT, FROM_SAVE) if kind is CheckKind.ROUND_TRIP else labels
    plans = plan_comparison(replace(reference, label=names[0]), [replace(candidate, label=names[1])], pairing)
    comparison = run_plans(plans, SAME_BITS, Rules(strict_dtype=True), {})
    other_bits = []
    for match, reference_tensor, candidate_tensor in plans[0].pairs():
        if reference_tensor.shape != candidate_tensor.shape or reference_tensor.dtype != candidate_tensor.dtype:
            continue
        if reference_tensor.missing or candidate_tensor.missing or not reference_tensor.count:
            continue
        if not have_equal_bits(reference_tensor, candidate_tensor)[0]:
            other_bits.append(match.reference)
    return Check(kind, *labels, comparison, tuple(other_bits))


def compare_outputs(
    labels: tuple[str, str], reference: Source, candidate: Source, pairing: PairingRules, tolerance: Tolerance
) -> Check:
    """Compare what the reference and the candidate computed from the same inputs."""
    plans = plan_comparison(replace(reference, label=labels[0]), [replace(candidate, label=labels[1])], pairing)
    return Check(CheckKind.FORWARD, *labels, run_plans(plans, tolerance, Rules(), {}))
