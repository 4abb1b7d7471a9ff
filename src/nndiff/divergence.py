"""First cause against inherited error: the first site that is out while what went into it is in."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from nndiff.backward import Blame, blamed, first_gradient
from nndiff.between import around
from nndiff.doubts import misguided
from nndiff.endless import ENDLESS
from nndiff.judge import judge
from nndiff.lost import Asking, Left, Lost, comes_before, first_lost, lost_why
from nndiff.recorded import is_final, is_gradient
from nndiff.rounding import Rounding, rounding
from nndiff.shortcuts import known
from nndiff.sites import SitePair
from nndiff.stats import Job, get_engine
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.verdict import Verdict


class State(Enum):
    """Say what is known of the inputs of a call."""

    IN = "in tolerance"
    OUT = "out of tolerance"
    UNKNOWN = "not recorded"


class _Given(NamedTuple):
    """Hold what a call was given: the event that shows it, and that of the tensor it is a view of."""

    event: int
    origin: int


@dataclass
class Run:
    """Hold the judged pairs of one candidate, ready to be asked about causes."""

    sites: Sequence[SitePair]
    reference: Mapping[int, TensorRef]  # every recorded tensor by its order
    candidate: Mapping[int, TensorRef]
    left: Left = ((), ())  # gradients that the other side lacks
    asking: Asking = (None, None)
    moved: Container[int] = ()  # orders of the pairs that agree once one side is rearranged
    alone: Left = ((), ())  # outputs of the model that the other side does not return
    _judged: dict[tuple[int, int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for site in self.sites:
            if site.pair.verdict is not Verdict.NOT_COMPARED:
                self._judged[site.reference.trace.order, site.candidate.trace.order] = site.passed

    @cached_property
    def _names(self) -> tuple[Mapping[str, TensorRef], ...]:
        """Return every recorded tensor by its name, of either side."""
        return tuple({each.name: each for each in side.values()} for side in (self.reference, self.candidate))

    @cached_property
    def telling(self) -> Sequence[SitePair]:
        """Return the pairs among which a cause is looked for, what only lies otherwise taken for the same.

        Who makes a tensor lie otherwise out of what lies the same is a cause, and stays one.
        """
        doubted = misguided(self.sites, self.moved)
        inherited = [site for site in self.sites if site.pair.order in self.moved and not self._turns(site)]
        gone = {site.pair.order for site in inherited}
        found = [
            replace(site, pair=replace(site.pair, verdict=Verdict.CLOSE)) if site.pair.order in gone else site
            for site in self.sites
            if id(site) not in doubted
        ]
        if all(site.passed for site in found) and not any(self.left):
            return self.sites
        for site in inherited:
            self._judged[site.reference.trace.order, site.candidate.trace.order] = True
        return found

    def _turns(self, site: SitePair) -> bool:
        return site.slot == "output" and self._state(site, self._as_it_lies) is State.IN

    def first(self) -> SitePair | Lost | None:
        """Return where the two runs part first: forward if they part there, then at the loss, then backward."""
        inputs = [site for site in self.sites if site.slot == "model_input" and not site.passed]
        if inputs:
            return inputs[0]
        loss = [site for site in self.sites if site.slot == "loss" and not site.passed]
        return self._first_forward() or next(iter(loss), None) or self._first_backward()

    def _first_forward(self) -> SitePair | None:
        failing = [site for site in self.telling if site.slot == "output" and not site.passed]
        if not failing:
            return None
        states = {id(site): self.inputs_of(site) for site in failing}
        causes = [site for site in failing if states[id(site)] is State.IN]
        if causes:
            return causes[0]
        # No cause is certain. Where inputs were not recorded, the first to finish is the best that is known.
        unknown = [site for site in failing if states[id(site)] is State.UNKNOWN]
        found = unknown or failing
        return min(found, key=lambda site: site.orders[1]) if self._only_candidate_knows else found[0]

    @cached_property
    def _only_candidate_knows(self) -> bool:
        """Tell whether only the candidate has links between calls: hooks of a script may be listed in any order."""
        outputs = [site for site in self.sites if site.slot == "output"]
        knows = [any(side.trace.inputs for side in sides) for sides in zip(*map(_sides, outputs), strict=True)]
        return knows == [False, True]

    def rounding(self, first: SitePair) -> Rounding | None:
        """Return whether the place where the runs part first looks like rounding."""
        return rounding(self.telling, first, self.reference)

    def inputs_of(self, site: SitePair) -> State:
        """Return whether what the module was called with is in tolerance."""
        return self._state(site, self._same_given)

    def _state(self, site: SitePair, same: Callable[[_Given, _Given], State]) -> State:
        left, right = self._given(site.reference, 0), self._given(site.candidate, 1)
        states = [same(left[path], right[path]) for path in left if path in right]
        if len(left) == len(right) and len(states) < len(left):  # called by keyword here, by position there
            states = [same(*both) for both in zip(left.values(), right.values(), strict=True)]
        if State.OUT in states:
            return State.OUT
        return State.IN if states and State.UNKNOWN not in states else State.UNKNOWN

    def main_input(self, site: SitePair) -> str:
        """Return the name of the first thing a call was given, if that is out of tolerance.

        What follows it, masks above all, may be of another form on the two sides.
        """
        both = self._given(site.reference, 0), self._given(site.candidate, 1)
        if not all(both):
            return ""
        (path, one), (_, other) = (next(iter(given.items())) for given in both)
        out = self._same_given(one, other) is State.OUT
        return Site(site.module, Slot.INPUT, site.call[1], path).name if out else ""

    def _given(self, output: TensorRef, side: int) -> dict[str, _Given]:
        """Return the events of what a call was given: of a view its own, for its origin does not tell what it shows."""
        found: dict[str, _Given] = {}
        for link in output.trace.inputs:
            if link.event is not None:
                site = Site(output.site.module, Slot.INPUT, output.site.call, link.path)
                own = self._names[side].get(site.name) if link.how == "view" else None
                found[link.path] = _Given(own.trace.order if own else link.event, link.event)
        return found

    def _same_given(self, one: _Given, other: _Given) -> State:
        """Return whether two calls were given the same; a view of all of a tensor is that tensor, however it lies."""
        found = self._as_it_lies(one, other)
        if found is State.UNKNOWN and self._whole(one, self.reference) and self._whole(other, self.candidate):
            return self._same_input(one.origin, other.origin)
        return found

    def _as_it_lies(self, one: _Given, other: _Given) -> State:
        return self._same_input(one.event, other.event)

    @staticmethod
    def _whole(given: _Given, tensors: Mapping[int, TensorRef]) -> bool:
        shown, origin = tensors.get(given.event), tensors.get(given.origin)
        return shown is not None and origin is not None and shown.count == origin.count

    def _same_input(self, one: int, other: int) -> State:
        """Return whether two recorded tensors that went into paired calls agree."""
        key = (one, other)
        if key not in self._judged:
            here, there = self.reference.get(one), self.candidate.get(other)
            verdict = self._measured(here, there)
            if verdict is None or verdict is Verdict.NOT_COMPARED or _may_lie_otherwise(here, there):
                return State.UNKNOWN
            self._judged[key] = verdict.passed
        return State.IN if self._judged[key] else State.OUT

    def _measured(self, one: TensorRef | None, other: TensorRef | None) -> Verdict | None:
        if one is None or other is None:
            return None
        atol, rtol = self._tolerance()
        found = known(one, other, atol, rtol)
        if found is not None:
            return found.verdict
        metrics = next(iter(get_engine().measure([Job(one, other, atol, rtol)])))
        return judge(metrics, one.dtype == other.dtype)

    def _tolerance(self) -> tuple[float, float]:
        forward = next((site.pair for site in self.sites if not is_gradient(site.reference)), None)
        return (forward.atol, forward.rtol) if forward else (0.0, 0.0)

    def _first_backward(self) -> SitePair | Lost | None:
        found, lost = first_gradient(self.telling), first_lost(self.sites, self.left, self.asking)
        if lost is not None and comes_before(lost, found):
            return lost
        return found or next((site for site in self.telling if not site.passed), None)


def _sides(site: SitePair) -> tuple[TensorRef, TensorRef]:
    return site.reference, site.candidate


def _may_lie_otherwise(one: TensorRef | None, other: TensorRef | None) -> bool:
    return one is not None and other is not None and one.shape != other.shape and one.count == other.count


Modules = tuple[Mapping[str, Any], Mapping[str, Any]]  # of reference and candidate, by their paths


def describe(run: Run, first: SitePair | Lost, modules: Modules) -> dict[str, Any]:
    """Return what is to be said about the first divergence, as plain data."""
    if isinstance(first, Lost):
        return _describe_lost(run, first, modules)
    blame = blamed(run.telling, first, (run.reference, run.candidate))
    told = {} if blame is None else _blamed(run, blame, first, modules)
    return {**_describe(run, first, modules), **around(run, first), **told}


def _describe(run: Run, site: SitePair, modules: Modules) -> dict[str, Any]:
    here, there = (
        tree.get(side.site.module, {}) for tree, side in zip(modules, (site.reference, site.candidate), strict=True)
    )
    return {
        "name": site.pair.name,
        "candidate_name": site.pair.candidate_name,
        "candidate": site.pair.candidate,
        "order": site.pair.order,
        "slot": site.slot,
        "module": site.module or "(model)",
        "call": site.call[1],
        "class": [_class(site.reference, here), _class(site.candidate, there)],
        "verdict": site.pair.verdict.value,
        "max_abs": site.pair.metrics.max_abs if site.pair.metrics else None,
        "inputs": run.inputs_of(site).value if site.slot == "output" else "",
        "why": _why(run, site) + ("; it looks like rounding" if run.rounding(site) else ""),
        "source": [_place(here), _place(there)],
        "attributes": {} if site.part else attribute_changes(here, there),
    }


def _class(tensor: TensorRef, module: Mapping[str, Any]) -> str:
    return str(tensor.site.cls or module.get("class", ""))


def _describe_lost(run: Run, lost: Lost, modules: Modules) -> dict[str, Any]:
    """Return what is said of a gradient that one side lacks."""
    return {
        **_describe(run, lost.output, modules),
        "name": lost.tensor.name,
        "candidate_name": lost.tensor.name,
        "slot": lost.tensor.site.slot,
        "verdict": f"not in the {lost.missing_in}",
        "max_abs": None,
        "inputs": "",
        "why": lost_why(lost, run.asking),
    }


def _blamed(run: Run, blame: Blame, site: SitePair, modules: Modules) -> dict[str, Any]:
    """Return where to look: the module that made the gradient, not the one it was taken at."""
    partner = {site.module: str(site.candidate.site.module) for site in run.sites if site.slot == "output"}
    both = (blame.module, partner.get(blame.module, blame.module))
    here, there = (tree.get(module, {}) for tree, module in zip(modules, both, strict=True))
    elsewhere = {"module_class": [str(here.get("class", "")), str(there.get("class", ""))]}
    return {
        "module": blame.module or "(model)",
        **(elsewhere if blame.module != site.module else {}),
        "source": [_place(here), _place(there)],
        "attributes": {} if blame.part else attribute_changes(here, there),
        "why": blame.why,
    }


def _why(run: Run, site: SitePair) -> str:
    if site.pair.note == ENDLESS:
        return f"{_outputs(run)}; {ENDLESS}, and none was compared"
    if site.slot == "model_input":
        return "the inputs of the two runs differ already"
    if site.slot == "loss" and _returns_more(run):
        return "every output that both sides return is in tolerance; the loss, which is made of all of them, is out"
    if site.slot == "loss":
        return f"{_outputs(run)}, the loss made of them is out"
    if is_gradient(site.reference):
        return f"{_outputs(run)}; this is the first gradient that is out, in the order of the backward pass"
    if site.slot in _HELD:
        return f"{_outputs(run)}; {_held(run, site)}"
    if site.pair.verdict is Verdict.NOT_COMPARED:
        return "its bytes differ; what was kept of them does not tell whether they are within the tolerance"
    state = run.inputs_of(site)
    if state is State.IN:
        return "its output is out of tolerance while its inputs are in"
    if state is State.UNKNOWN:
        return "the first output that is out of tolerance; its inputs were not recorded on both sides"
    return "the first output that is out of tolerance; every cause before it lies between recorded sites"


def _outputs(run: Run) -> str:
    """Say how the outputs are where something else is the first to be out."""
    compared = any(site.slot == "output" and site.pair.verdict is not Verdict.NOT_COMPARED for site in run.sites)
    return "every output is in tolerance" if compared else "no output was compared"


def _returns_more(run: Run) -> bool:
    """Tell whether a side returns what has no partner."""
    ours = {site.reference.trace.order for site in run.sites}
    theirs = {site.candidate.trace.order for site in run.sites}
    sides = ((run.reference, ours), (run.candidate, theirs))
    return any(is_final(tensor) and order not in paired for side, paired in sides for order, tensor in side.items())


_HELD = {
    "param": "this parameter is out, which nothing here shows",
    "buffer_before": "this buffer is out before the run begins, which nothing here shows",
    "buffer": "this buffer is out after the run",
}


def _held(run: Run, site: SitePair) -> str:
    """Say what is wrong with something a module holds; running statistics are no output of any module."""
    twins = (each for each in run.sites if each.slot == "buffer_before" and each.module == site.module)
    before = [each for each in twins if each.reference.site.tensor == site.reference.site.tensor]
    if site.slot == "buffer" and before and before[0].passed:
        return f"{_HELD['buffer']} and was in before it: the two sides update it otherwise"
    return _HELD[site.slot]


def _place(module: Mapping[str, Any]) -> str:
    return f"{module['file']}:{module.get('line', 0)}" if module.get("file") else ""


def attribute_changes(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the plain attributes both modules have and that are not equal."""
    one, other = here.get("attributes", {}), there.get("attributes", {})
    changes = {name: [one[name], other[name]] for name in one if name in other and one[name] != other[name]}
    if here and there and here.get("training") != there.get("training") and _may_heed_mode(here, there):
        changes["training"] = [here.get("training"), there.get("training")]
    return changes


# torch's own modules that do otherwise in train mode; of others nobody knows
_HEEDS_MODE = ("dropout", "batchnorm", "instancenorm", "attention", "transformer", "rnn", "lstm", "gru", "rrelu")


def heeds_mode(module: Mapping[str, Any]) -> bool:
    """Tell whether a module does otherwise in train mode, by the name of its class."""
    return any(word in str(module.get("class", "")).lower() for word in _HEEDS_MODE)


def _may_heed_mode(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Tell whether the mode may be why two modules differ; of one class that is not torch's own nobody knows."""
    unknown = here.get("class") == there.get("class") and not str(here.get("type", "")).startswith("torch.nn.")
    return unknown or heeds_mode(here) or heeds_mode(there)
