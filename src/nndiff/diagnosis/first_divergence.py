"""The first divergence: the first site that is out of tolerance while its inputs agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from nndiff.diagnosis.call_graph import Tensors, is_inside, surrounds
from nndiff.diagnosis.gradient_blame import blame_gradient, find_first_gradient
from nndiff.diagnosis.missing_gradients import (
    MissingGradient,
    Requests,
    Unpaired,
    find_first_missing,
    read_requests,
    select_unpaired_gradients,
)
from nndiff.diagnosis.modules import Trees, get_class, get_source_line
from nndiff.diagnosis.site_pairs import SitePair, final_outputs_agree
from nndiff.diagnosis.tensor_values import tensors_agree
from nndiff.names import ancestors
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    SIDES,
    FirstDivergence,
    InputState,
    Leftover,
    NoteSlug,
    PartingReason,
)
from nndiff.sources.source import Source
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.verdict import Verdict

Place = SitePair | MissingGradient | Leftover  # a tensor that differs, a gradient one side lacks, an extra output


class _Given(NamedTuple):
    """Hold what a call was given: the event that shows it, and that of the tensor it is a view of."""

    event: int
    origin: int


@dataclass
class Run:
    """Hold the judged pairs of one candidate and answer what went into each call."""

    pairs: Sequence[SitePair]
    reference: Tensors = field(default_factory=dict)
    candidate: Tensors = field(default_factory=dict)
    unpaired_gradients: Unpaired = ((), ())
    requests: Requests = (None, None)
    extra_outputs: Sequence[Leftover] = ()  # outputs of the model that only one side returns

    def __post_init__(self) -> None:
        self._agreement: dict[tuple[int, int], bool] = {}
        self._agreement_as_stored: dict[tuple[int, int], bool] = {}
        for site in self.pairs:
            if site.was_compared:
                self._agreement[site.orders] = site.passed
                self._agreement_as_stored[site.orders] = site.agrees_as_stored

    @cached_property
    def evidence(self) -> Sequence[SitePair]:
        """Return the pairs to search for a cause: all but guesses that turned out to be wrong.

        A guessed pair that differs is no pair if a module around it is paired for certain and agrees. The model itself
        is around everything: it speaks for all its guessed pairs if its outputs agree.
        """
        outputs = [site for site in self.pairs if site.slot is Slot.OUTPUT]
        differing = {site.module for site in outputs if not site.passed}
        agreeing = {site.module for site in outputs if site.pair.certain} - differing - {""}
        model_agrees = final_outputs_agree(self.pairs)
        refuted = set()
        for site in outputs:
            is_refuted = model_agrees or not agreeing.isdisjoint(ancestors(site.module))
            if not (site.pair.certain or site.passed) and site.module and is_refuted:
                refuted.add((site.module, site.candidate_module))
        return [site for site in self.pairs if site.pair.certain or (site.module, site.candidate_module) not in refuted]

    @cached_property
    def outputs(self) -> Sequence[SitePair]:
        """Return the outputs of all modules that are evidence, in order of execution."""
        return [site for site in self.evidence if site.slot is Slot.OUTPUT]

    @cached_property
    def failing_outputs(self) -> Sequence[SitePair]:
        """Return the outputs that do not agree; a guess that could not be compared proves nothing."""
        failing = [site for site in self.outputs if not site.passed]
        return [site for site in failing if site.was_compared or site.pair.certain]

    @cached_property
    def _input_names(self) -> tuple[dict[str, TensorRef], dict[str, TensorRef]]:
        """Return the recorded inputs of calls by name, for both sides."""
        names: tuple[dict[str, TensorRef], dict[str, TensorRef]] = ({}, {})
        for by_name, tensors in zip(names, (self.reference, self.candidate), strict=True):
            for tensor in tensors.values():
                if tensor.site.slot is Slot.INPUT:
                    by_name[tensor.name] = tensor
        return names

    def get_input_state(self, site: SitePair, as_stored: bool = False) -> InputState:
        """Return whether the inputs of a call agree; with `as_stored`, without applying relations.

        Where both sides take the same arguments, all of them must be known to agree. Where they do not, the first one
        decides: what follows it, masks and positions above all, may have another form on each side.
        """
        reference, candidate = self._list_inputs(site.reference, 0), self._list_inputs(site.candidate, 1)
        if not reference or not candidate:
            return InputState.UNKNOWN
        main_path, main_input = next(iter(reference.items()))
        main_partner = candidate.get(main_path, next(iter(candidate.values())))
        main_state = self._compare_inputs(main_input, main_partner, as_stored)
        if main_state is InputState.DIFFER:
            return main_state
        same_arguments = reference.keys() == candidate.keys()
        if same_arguments or len(reference) != len(candidate):
            matched = [(given, candidate[path]) for path, given in reference.items() if path in candidate]
        else:  # by keyword on one side, by position on the other
            matched = list(zip(reference.values(), candidate.values(), strict=True))
        states = [main_state]
        for ours, theirs in matched:
            state = self._compare_inputs(ours, theirs, as_stored)
            if state is InputState.DIFFER and self._have_same_form(ours, theirs):
                return state
            states.append(InputState.UNKNOWN if state is InputState.DIFFER else state)
        if same_arguments:
            return InputState.UNKNOWN if InputState.UNKNOWN in states else InputState.AGREE
        return main_state

    def get_differing_input(self, site: SitePair) -> str:
        """Return the name of the first input of a call if it differs, else an empty text."""
        reference, candidate = self._list_inputs(site.reference, 0), self._list_inputs(site.candidate, 1)
        if not reference or not candidate:
            return ""
        path, given = next(iter(reference.items()))
        if self._compare_inputs(given, next(iter(candidate.values())), False) is not InputState.DIFFER:
            return ""
        return Site(site.module, Slot.INPUT, site.call[1], path).name

    def _list_inputs(self, output: TensorRef, side: int) -> dict[str, _Given]:
        """Return the inputs of a call by argument; for a view its own event, since its origin may be larger."""
        inputs: dict[str, _Given] = {}
        for link in output.trace.inputs:
            if link.event is None:
                continue
            event = link.event
            if link.how == "view":
                name = Site(output.site.module, Slot.INPUT, output.site.call, link.path).name
                view = self._input_names[side].get(name)
                event = view.trace.order if view else event
            inputs[link.path] = _Given(event, link.event)
        return inputs

    def _compare_inputs(self, reference: _Given, candidate: _Given, as_stored: bool) -> InputState:
        state = self._compare_events(reference.event, candidate.event, as_stored)
        if state is InputState.UNKNOWN and not as_stored:
            # a view of all of a tensor is that tensor, whatever its layout
            sides = ((reference, self.reference), (candidate, self.candidate))
            if all(_shows_all(given, tensors) for given, tensors in sides):
                return self._compare_events(reference.origin, candidate.origin, as_stored)
        return state

    def _compare_events(self, reference: int, candidate: int, as_stored: bool) -> InputState:
        agreement = self._agreement_as_stored if as_stored else self._agreement
        key = (reference, candidate)
        if key not in agreement:
            ours, theirs = self.reference.get(reference), self.candidate.get(candidate)
            agrees = tensors_agree(ours, theirs, *self._tolerance) if ours and theirs else None
            if agrees is None:
                return InputState.UNKNOWN
            agreement[key] = agrees
        return InputState.AGREE if agreement[key] else InputState.DIFFER

    def _have_same_form(self, ours: _Given, theirs: _Given) -> bool:
        """Return True if two inputs have the same shape and kind of dtype; masks may not."""
        reference, candidate = self.reference.get(ours.event), self.candidate.get(theirs.event)
        if reference is None or candidate is None:
            return True
        return reference.shape == candidate.shape and reference.dtype.kind == candidate.dtype.kind

    @cached_property
    def _tolerance(self) -> tuple[float, float]:
        for site in self.pairs:
            if not site.is_gradient and not site.pair.is_exact:  # token ids know no rtol
                return site.pair.atol, site.pair.rtol
        return 0.0, 0.0

    @cached_property
    def only_candidate_has_links(self) -> bool:
        """Return True if only the candidate's calls are linked: other recorders may list calls in any order."""
        outputs = [site for site in self.pairs if site.slot is Slot.OUTPUT]
        reference_has = any(site.reference.trace.inputs for site in outputs)
        return not reference_has and any(site.candidate.trace.inputs for site in outputs)


def _shows_all(given: _Given, tensors: Tensors) -> bool:
    view, origin = tensors.get(given.event), tensors.get(given.origin)
    return view is not None and origin is not None and view.count == origin.count


def build_run(reference: Source, candidate: Source, pairs: Sequence[SitePair], leftovers: Sequence[Leftover]) -> Run:
    """Return the judged pairs of one candidate with the recorded tensors behind them."""
    return Run(
        pairs,
        {tensor.trace.order: tensor for tensor in reference.tensors.values()},
        {tensor.trace.order: tensor for tensor in candidate.tensors.values()},
        (
            select_unpaired_gradients(leftovers, reference, REFERENCE),
            select_unpaired_gradients(leftovers, candidate, CANDIDATE),
        ),
        (read_requests(reference), read_requests(candidate)),
        [leftover for leftover in leftovers if leftover.is_extra_output],
    )


# The search ------------------------------------------------------------------------------------------------------


def find_first_divergence(run: Run) -> Place | None:
    """Return where two runs part first: inputs, outputs, the loss, gradients, then parameters and buffers."""
    for slot in (Slot.MODEL_INPUT, Slot.OUTPUT, Slot.LOSS):
        if slot is Slot.OUTPUT:
            first = _find_first_output(run)
        else:
            first = next((site for site in run.pairs if site.slot is slot and not site.passed), None)
        if first is not None:
            return first
    gradient = find_first_gradient(run.evidence)
    missing = find_first_missing(run.pairs, run.unpaired_gradients, run.requests)
    if missing is not None and missing.comes_before(gradient):
        return missing
    failing = [site for site in run.evidence if not site.passed]
    deciding = [site for site in failing if site.pair.decides]
    if gradient is not None and (not deciding or any(site.is_gradient for site in deciding)):
        return gradient
    if deciding:
        return deciding[0]
    if run.extra_outputs:
        return run.extra_outputs[0]
    return failing[0] if failing else None


def _find_first_output(run: Run) -> SitePair | None:
    """Return the first output out of tolerance whose inputs agree; if none is known to, the first out of tolerance."""
    failing = run.failing_outputs
    if not failing:
        return None
    states = {id(site): run.get_input_state(site) for site in failing}
    for site in failing:
        if states[id(site)] is InputState.AGREE:
            inner = _find_unknown_inside(run, site)
            return inner or site
    # No cause is certain. Where inputs were not recorded, the first to finish is the best that is known.
    unknown = [site for site in failing if states[id(site)] is InputState.UNKNOWN]
    choices = unknown or failing
    return min(choices, key=lambda site: site.orders[1]) if run.only_candidate_has_links else choices[0]


def _find_unknown_inside(run: Run, composite: SitePair) -> SitePair | None:
    """Return the first differing module inside a composite, if only the state of its inputs is unknown.

    Two implementations of an attention take other arguments, so nobody knows whether those agree. They do as far as
    it matters if a call in front of the first that differs, inside the attention or right before it, agrees.
    """
    module, number = composite.call
    earlier = [site.order for site in run.outputs if site.module == module and site.call[1] < number]
    begin = max(earlier, default=-1)
    inner = [site for site in run.outputs if surrounds(composite, site) and begin < site.order < composite.order]
    differing = [site for site in inner if not site.passed]
    if not differing:
        return None
    first = min(differing, key=lambda site: site.order)
    before = [site for site in inner if site.order < first.order]
    for holder in differing:
        is_unknown = run.get_input_state(holder) is InputState.UNKNOWN
        if surrounds(holder, first) and is_unknown and any(surrounds(holder, site) for site in before):
            return holder
    is_unknown = run.get_input_state(first) is InputState.UNKNOWN
    return first if before and is_unknown else None


# What is said about it -------------------------------------------------------------------------------------------


def describe_divergence(run: Run, place: Place, trees: Trees, candidate: str) -> FirstDivergence:
    """Return what is known about the place where two runs part; `candidate` is its label."""
    if isinstance(place, Leftover):
        return _describe_extra_output(run, place, candidate)
    if isinstance(place, MissingGradient):
        return replace(
            _describe_site(run, place.output, trees),
            name=place.tensor.name,
            candidate_name=place.tensor.name,
            slot=place.tensor.site.slot,
            reason=PartingReason.GRADIENT_MISSING,
            verdict=None,
            max_abs=None,
            times_noise=None,
            inputs=None,
            why=place.explain(run.requests),
            missing_in=place.missing_in,
        )
    divergence = _describe_site(run, place, trees)
    blame = blame_gradient(run.evidence, place, (run.reference, run.candidate))
    if blame is not None:
        # where to look is the module that made the gradient, not the one it was taken at
        partners = {site.module: site.candidate_module for site in run.pairs if site.slot is Slot.OUTPUT}
        modules = blame.module, partners.get(blame.module, blame.module)
        return replace(_point_to(divergence, modules, trees), why=blame.why)
    inner_calls = _find_inner_calls(run, place)
    common = find_common_module(inner_calls, place)
    return _point_to(divergence, common, trees) if common else divergence


def _point_to(divergence: FirstDivergence, modules: tuple[str, str], trees: Trees) -> FirstDivergence:
    """Return the divergence with the modules to look at, where these are not where it was seen."""
    facts = trees[0].get(modules[0], {}), trees[1].get(modules[1], {})
    is_elsewhere = modules[0] != divergence.module
    return replace(
        divergence,
        module=modules[0],
        candidate_module=modules[1],
        module_classes=(get_class(facts[0]), get_class(facts[1])) if is_elsewhere else None,
        sources=(get_source_line(facts[0]), get_source_line(facts[1])),
    )


def _describe_site(run: Run, site: SitePair, trees: Trees) -> FirstDivergence:
    modules = trees[0].get(site.module, {}), trees[1].get(site.candidate_module, {})
    reason, why = _explain_parting(run, site)
    if site.pair.is_within_noise:
        why += "; it is no more than rounding does there"
    inner_calls = _find_inner_calls(run, site)
    return FirstDivergence(
        candidate=site.pair.candidate,
        name=site.pair.name,
        candidate_name=site.pair.candidate_name,
        order=site.pair.order,
        slot=site.slot,
        reason=reason,
        verdict=site.pair.verdict,
        why=why,
        max_abs=site.pair.metrics.max_abs if site.pair.metrics else None,
        times_noise=site.pair.times_noise,
        module=site.module,
        candidate_module=site.candidate_module,
        call=site.call[1],
        classes=(
            site.reference.site.cls or get_class(modules[0]),
            site.candidate.site.cls or get_class(modules[1]),
        ),
        inputs=run.get_input_state(site) if site.slot is Slot.OUTPUT else None,
        sources=(get_source_line(modules[0]), get_source_line(modules[1])),
        after=inner_calls.after.pair.name if inner_calls.after else "",
        before=inner_calls.before_name,
    )


def _describe_extra_output(run: Run, leftover: Leftover, candidate: str) -> FirstDivergence:
    tensors = run.reference if leftover.side == REFERENCE else run.candidate
    order = next((order for order, tensor in tensors.items() if tensor.name == leftover.name), -1)
    return FirstDivergence(
        candidate=candidate,
        name=leftover.name,
        candidate_name=leftover.name,
        order=order,
        slot=Slot.OUTPUT,
        reason=PartingReason.EXTRA_OUTPUT,
        verdict=None,
        why=f"everything that both sides return agrees; only the {leftover.side} returns this",
        missing_in=SIDES[1 - SIDES.index(leftover.side)],
    )


_REASONS_OF_OUTPUTS = {
    InputState.AGREE: (PartingReason.OWN_ERROR, "its output is out of tolerance while its inputs agree"),
    InputState.UNKNOWN: (
        PartingReason.FIRST_OUT,
        "this is the first output out of tolerance; its inputs were not recorded on both sides",
    ),
    InputState.DIFFER: (
        PartingReason.BETWEEN_SITES,
        "this is the first output out of tolerance; the cause lies between recorded layers",
    ),
}


def _explain_parting(run: Run, site: SitePair) -> tuple[PartingReason, str]:
    """Return why a site is taken for the first divergence, for code and for people."""
    were_compared = any(output.slot is Slot.OUTPUT and output.was_compared for output in run.pairs)
    outputs = "every output agrees" if were_compared else "no output was compared"
    no_effect = ", without effect on them" if were_compared else ""
    if site.pair.has_note(NoteSlug.LOSS_NOT_FINITE):
        why = "the loss is NaN or infinite on both sides, so no gradient was compared"
        return PartingReason.LOSS_NOT_FINITE, f"{outputs}; {why}"
    if site.slot is Slot.MODEL_INPUT:
        return PartingReason.INPUTS_DIFFER, "the inputs of the two runs differ"
    if site.pair.differs_only_in_dtype:
        return PartingReason.DTYPE, f"its values agree, its dtype does not: {' against '.join(site.pair.dtype)}"
    if site.slot is Slot.LOSS and run.extra_outputs:
        shared = "every output that both sides return agrees"
        return PartingReason.LOSS, f"{shared}; the loss, which depends on all outputs, does not"
    if site.slot is Slot.LOSS:
        return PartingReason.LOSS, f"{outputs}{', the loss does not' if were_compared else '; the loss differs'}"
    if site.is_gradient:
        why = "this is the first gradient out of tolerance, in backward order"
        return PartingReason.GRADIENT, f"{outputs}; {why}"
    if site.slot is Slot.PARAM:
        return PartingReason.PARAMETER, f"{outputs}; this parameter differs{no_effect}"
    if site.slot is Slot.BUFFER_BEFORE:
        return PartingReason.BUFFER, f"{outputs}; this buffer differs before the run{no_effect}"
    if site.slot is Slot.BUFFER:
        name = site.module, site.reference.site.tensor
        befores = [before for before in run.pairs if before.slot is Slot.BUFFER_BEFORE and before.passed]
        was_equal = any((before.module, before.reference.site.tensor) == name for before in befores)
        update = " and did not before it: the two sides update it differently" if was_equal else ""
        return PartingReason.BUFFER, f"{outputs}; this buffer differs after the run{update}"
    if site.pair.verdict is Verdict.NOT_COMPARED:
        why = "its bytes differ; the recording kept too little to tell whether they are within tolerance"
        return PartingReason.NOT_KEPT, why
    return _REASONS_OF_OUTPUTS[run.get_input_state(site)]


class InnerCalls(NamedTuple):
    """Hold the two calls inside a composite between which the difference arises."""

    after: SitePair | None = None  # the last that agrees
    before: SitePair | None = None  # the first that does not
    before_name: str = ""  # what of it does not: its output, or the input of a norm


def _find_inner_calls(run: Run, site: SitePair) -> InnerCalls:
    """Return, for a composite, the last of its inner calls that agrees and the first that does not.

    A norm makes the same of a tensor whatever it is multiplied with, so what went into it tells. Other calls that
    agree may be given the same in another form.
    """
    after: SitePair | None = None
    for call in run.outputs if site.slot is Slot.OUTPUT else ():
        if not surrounds(site, call) or call.order >= site.order:
            continue
        if not call.passed:
            return _find_differing_argument(run, site, call) or InnerCalls(after, call, call.pair.name)
        differing_input = run.get_differing_input(call) if call.is_norm else ""
        if differing_input:
            return InnerCalls(after, call, differing_input)
        after = call
    return InnerCalls(after)


def _find_differing_argument(run: Run, composite: SitePair, call: SitePair) -> InnerCalls | None:
    """Return the first argument that differs, if it is one of a module around the first call that differs.

    What that module was given, a mask above all, was made outside of it. An argument of another form proves nothing.
    """
    inside = [pair for pair in run.pairs if surrounds(composite, pair) and pair.order < call.order]
    for given in inside:
        has_same_form = given.reference.shape == given.candidate.shape and given.pair.dtype[0] == given.pair.dtype[1]
        if given.slot is Slot.INPUT and given.was_compared and not given.passed and has_same_form:
            agreeing = [pair for pair in inside if pair.slot is Slot.OUTPUT and pair.order < given.order]
            after = agreeing[-1] if agreeing else None
            return InnerCalls(after, given, given.pair.name) if surrounds(given, call) else None
    return None


def find_common_module(calls: InnerCalls, composite: SitePair) -> tuple[str, str] | None:
    """Return the modules around both calls, by reference and candidate, if they are inside the composite on both sides.

    What was done between the calls was done there, be these modules paired or not.
    """
    if calls.after is None or calls.before is None:
        return None
    modules = []
    for side in (0, 1):
        after, before = (call.tensors[side].site.module for call in (calls.after, calls.before))
        holders = [holder for holder in ancestors(after) if is_inside(before, holder)]
        if not holders or not is_inside(holders[0], composite.tensors[side].site.module):
            return None
        modules.append(holders[0])
    return modules[0], modules[1]
