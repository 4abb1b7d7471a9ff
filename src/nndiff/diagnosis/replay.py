"""Own errors: what each module does wrong when it is given the reference's tensors, from a replay of the candidate."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from nndiff.diagnosis.call_graph import have_same_bytes, is_inside
from nndiff.diagnosis.gradient_blame import blame_gradient
from nndiff.diagnosis.held_weights import HeldWeights, read_held_weights
from nndiff.diagnosis.modules import get_class, read_module_tree
from nndiff.diagnosis.replay_calls import CallNode, CallTree, Key
from nndiff.diagnosis.replay_partners import Partner
from nndiff.diagnosis.replay_trials import MadeTensors, make_trial, name_inside
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.trials import Given, Trial
from nndiff.diagnosis.tried_sites import TriedSite, measure_sites
from nndiff.plan import Plan
from nndiff.recording.format.weights import read_held_tensors
from nndiff.recording.reader import Recording
from nndiff.relations import fused
from nndiff.result import FirstDivergence, Method, OwnError, Pair, count_noise
from nndiff.tensors import MODEL, Slot, TensorRef
from nndiff.tolerance import NOISE_FACTOR, Tolerance
from nndiff.verdict import Verdict

_FORWARD = (Slot.INPUT, Slot.OUTPUT)
_ENDS = (Slot.PARAM_GRAD, Slot.BUFFER)


@dataclass(frozen=True)
class OwnErrors:
    """Hold every own error, first to last, as a trial, and the own error of every site by the candidate's name."""

    trials: tuple[Trial, ...] = ()
    calls: tuple[Key | None, ...] = ()  # the call whose code makes the error; None for the model where it has none
    own_by_name: Mapping[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[OwnError, ...]:
        """Return the errors themselves."""
        return tuple(trial.error for trial in self.trials)

    def without(self, names: Container[str]) -> OwnErrors:
        """Return the own errors but those at some sites, by the reference's name."""
        kept = [index for index, error in enumerate(self.errors) if error.name not in names]
        return replace(
            self,
            trials=tuple(self.trials[index] for index in kept),
            calls=tuple(self.calls[index] for index in kept),
        )


def find_own_errors(
    plan: Plan,
    pairs: Sequence[Pair],
    partners: Mapping[str, Partner],
    reference: Recording,
    replayed: Recording,
    tolerance: Tolerance,
    known_first: FirstDivergence | None = None,
) -> OwnErrors:
    """Return what the candidate does wrong by itself; `pairs` and `known_first` are of the ordinary runs."""
    trial_run = _ReplayedRun(plan, pairs, partners, reference, replayed, tolerance, known_first)
    found = [*trial_run.find_forward_errors()]
    found = trial_run.add_backward_errors(found)
    own_by_name = {}
    for site in trial_run.sites.values():
        if site.own is not None and site.verdict is not Verdict.SHAPE:
            own_by_name[site.candidate.name] = site.own
    return OwnErrors(
        tuple(trial_run.make_trial(item) for item in found),
        tuple(item.owner.key if item.owner is not None else None for item in found),
        own_by_name,
    )


@dataclass(frozen=True)
class _Found:
    """Hold an own error with where it was found."""

    error: OwnError
    site: TriedSite
    owner: CallNode | None  # the call whose code makes it; None for the model, where its call was not recorded
    arguments: tuple[TriedSite, ...] = ()
    inner: tuple[TriedSite, ...] = ()
    drew: bool = False

    @property
    def given(self) -> tuple[TriedSite, ...]:
        """Return the tensors the error is made of."""
        return (*self.arguments, *self.inner)

    def with_site(self, site: TriedSite) -> _Found:
        """Return the error with a further site that shows it."""
        return replace(self, error=replace(self.error, also=(*self.error.also, site.partner.reference)))


class _ReplayedRun:
    """Hold a replay beside the reference: all sites that were tried, and the calls around them."""

    def __init__(
        self,
        plan: Plan,
        pairs: Sequence[Pair],
        partners: Mapping[str, Partner],
        reference: Recording,
        replayed: Recording,
        tolerance: Tolerance,
        known_first: FirstDivergence | None,
    ) -> None:
        self.plan, self.tolerance = plan, tolerance
        self._known_first = known_first
        self.references = reference.source().tensors
        self._reference_held = read_held_tensors(reference.meta)
        self.candidates = replayed.source().tensors
        self.trees = read_module_tree(reference.meta), read_module_tree(replayed.meta)
        self.calls = CallTree(replayed.calls)
        self._made = MadeTensors(self.references, CallTree(reference.calls))
        facts = replayed.meta.get("replay")
        facts = facts if isinstance(facts, Mapping) else {}
        self._clean = frozenset(facts.get("clean", ()))
        self._has_recomputed = bool(facts.get("recomputed"))
        self._random = frozenset(facts.get("random", ()))
        self._pairs = {pair.candidate_name: pair for pair in pairs}
        self._wrong_parts = list(self._list_wrong_parts(pairs))
        self._modules: dict[str, str] = {"": ""}  # the reference's module for one of the candidate
        self._known_digests = {tensor.trace.digest for tensor in self.references.values()} - {None}
        self.sites = self._pair_sites(partners)
        measure_sites(self.sites.values())
        self._inputs: dict[Key, list[TensorRef]] = {}
        for tensor in self.candidates.values():
            if tensor.site.slot is Slot.INPUT:
                self._inputs.setdefault((tensor.site.module, tensor.site.call), []).append(tensor)

    def _list_wrong_parts(self, pairs: Iterable[Pair]) -> Iterator[tuple[str, int]]:
        """Yield the candidate's modules with a wrong part of a fused layer, and when each returned.

        A part that differs in the ordinary run may only pass on what was wrong before: the replay tells.
        """
        differing: dict[str, Pair] = {}
        for pair in pairs:
            if pair.method is Method.PARTS and pair.slot is Slot.OUTPUT and not pair.verdict.passed:
                differing[pair.reference_name], differing[pair.candidate_name] = pair, pair
        for layer in self.plan.alignment.fused:
            wrong = [differing[name] for name in layer.parts if name in differing]
            if not wrong:
                continue
            names = ([layer.whole], layer.parts) if layer.whole_is_reference else (layer.parts, [layer.whole])
            made = [self.candidates[name] for name in names[1] if name in self.candidates]
            if not self._makes_parts([self.references[name] for name in names[0]], made, wrong[0]):
                for tensor in made:
                    yield tensor.site.module, tensor.trace.order

    @staticmethod
    def _makes_parts(references: Sequence[TensorRef], made: Sequence[TensorRef], pair: Pair) -> bool:
        """Return True if a fused layer of one side makes what its parts on the other side do."""
        floor = pair.noise if pair.noise is not None and math.isfinite(pair.noise) else 0.0
        return fused.prove(references, made, max(pair.atol, NOISE_FACTOR * floor), pair.rtol) is not None

    def _pair_sites(self, partners: Mapping[str, Partner]) -> dict[str, TriedSite]:
        """Return the sites to try by the candidate's name: all that have a partner, in the order of execution."""
        sites: dict[str, TriedSite] = {}
        for name, candidate in self.candidates.items():
            partner = partners.get(name)
            reference = partner.find(self.references) if partner is not None else None
            if partner is None or reference is None:
                continue
            pair = self._pairs.get(name)
            if pair is not None and pair.reference_name == partner.reference:
                atol, rtol = pair.atol, pair.rtol
            else:
                names = (partner.reference, name)
                atol, rtol = self.tolerance.for_pair(names, reference.dtype, candidate.dtype)
            inherited = pair.metrics.max_abs if pair is not None and pair.metrics is not None else None
            if partner.is_reshaped and candidate.count == reference.count:
                candidate = replace(candidate, shape=reference.shape)
            sites[name] = TriedSite(partner, reference, candidate, atol, rtol, name in self._clean, inherited)
            if candidate.site.slot is Slot.OUTPUT:
                self._modules.setdefault(candidate.site.module, reference.site.module)
        self._mark_shapes(sites.values())
        return sites

    def _mark_shapes(self, sites: Iterable[TriedSite]) -> None:
        """Mark what goes into and comes out of calls that return another shape, unless the models agree.

        A rewrite may compute in other shapes and agree in the end; modules may be given masks in other forms.
        """
        if all(pair.verdict.passed for pair in self._pairs.values() if pair.is_final_output):
            return
        sites = list(sites)
        misshapen = {
            site.key for site in sites if site.site.slot is Slot.OUTPUT and site.reference.shape != site.candidate.shape
        }
        for site in sites:
            site.has_shape_error = site.key in misshapen

    # -- forward

    def find_forward_errors(self) -> Iterator[_Found]:
        """Yield what modules, or the code between them, make wrong of clean inputs; one error is given once."""
        found: list[_Found] = []
        forward = [site for site in self.sites.values() if site.site.slot in _FORWARD]
        for site in sorted(forward, key=lambda site: site.order):
            if not site.is_out:
                continue
            same = next((index for index, item in enumerate(found) if _shows_same(item, site)), None)
            if same is not None:
                found[same] = found[same].with_site(site)
                continue
            blamed = self._blame_code(site)
            if blamed is None or self._may_hold_earlier(blamed, found):
                continue
            found.append(blamed)
        yield from found

    @staticmethod
    def _may_hold_earlier(later: _Found, found: Sequence[_Found]) -> bool:
        """Return True if an output that could not be replaced, such as a cache, may hold what an earlier error left."""
        if later.site.is_replaced:
            return False
        entered = later.owner.entered if later.owner is not None else -1
        return any(entered < item.site.order for item in found)

    def _blame_code(self, site: TriedSite) -> _Found | None:
        """Return whose code made a wrong tensor: the innermost call around it that was given nothing wrong.

        None where something wrong went on inside that call before: then it may only be passed on.
        """
        call = self.calls.find(site.key)
        owner = call if site.site.slot is Slot.OUTPUT or call is None else call.parent
        while owner is not None and not self._was_given_clean(owner):
            owner = owner.parent
        entered = owner.entered if owner is not None else -1
        for earlier in self.sites.values():
            if entered < earlier.order < site.order and earlier.is_out and not earlier.is_replaced:
                return None
        # parts of a fused layer are not replaced: what follows from wrong ones inside is not this code's
        for module, order in self._wrong_parts:
            if entered < order < site.order and (owner is None or is_inside(module, owner.module)):
                return None
        inner = []
        for inside in self.calls.list_inside(owner):
            if inside is call or inside.order >= site.order or self._covers(inside, call):
                continue
            if self._is_paired(inside):
                inner.append(inside)
        inner = [node for node in inner if not any(self._covers(outer, node) for outer in inner)]
        arguments = [self.sites[tensor.name] for tensor in self._list_arguments(owner) if tensor.name in self.sites]
        outputs = [self.sites[name] for node in inner for name in self._list_outputs(node)]
        is_own_output = owner is call
        since = inner[-1].order if inner else entered
        made = [self.candidates[name] for name in self._random if name in self.candidates]
        drew = any(since < tensor.trace.order <= site.order for tensor in made)
        return self._describe(
            site,
            owner,
            after=self._name_call(inner[-1]) if inner else "",
            before="" if is_own_output or call is None else self._name_call(call),
            arguments=arguments,
            inner=outputs,
            drew=drew,
        )

    def _was_given_clean(self, call: CallNode) -> bool:
        """Return True if everything that a call was given is the reference's, or agrees with it."""
        for tensor in self._inputs.get(call.key, ()):
            site = self.sites.get(tensor.name)
            is_clean = tensor.name in self._clean or tensor.trace.digest in self._known_digests
            if not (is_clean or (site is not None and site.is_known_equal)):
                return False
        return True

    def _is_paired(self, call: CallNode) -> bool:
        return any(name in self.sites for name in self._list_outputs(call))

    def _list_outputs(self, call: CallNode) -> list[str]:
        """Return the outputs of a call that were tried, by the candidate's name."""
        return [name for name in self._outputs.get(call.key, ()) if name in self.sites]

    @cached_property
    def _outputs(self) -> dict[Key, list[str]]:
        outputs: dict[Key, list[str]] = {}
        for name, tensor in self.candidates.items():
            if tensor.site.slot is Slot.OUTPUT:
                outputs.setdefault((tensor.site.module, tensor.site.call), []).append(name)
        return outputs

    def _list_arguments(self, owner: CallNode | None) -> list[TensorRef]:
        if owner is not None:
            return self._inputs.get(owner.key, [])
        return [tensor for tensor in self.candidates.values() if tensor.site.slot is Slot.MODEL_INPUT]

    @staticmethod
    def _covers(outer: CallNode, inner: CallNode | None) -> bool:
        """Return True if a call is inside another."""
        return inner is not None and outer is not inner and outer.entered < inner.entered and inner.order < outer.order

    def _name_call(self, call: CallNode) -> str:
        """Return a call by the reference's name: `layers.0.q_proj`, `layers.0.norm@1`."""
        for name in self._list_outputs(call):
            site = self.sites[name].reference.site
            return f"{site.module or MODEL}@{site.call}" if site.call else site.module or MODEL
        return f"{call.module or MODEL}@{call.call}" if call.call else call.module or MODEL

    def _describe(
        self,
        site: TriedSite,
        owner: CallNode | None,
        *,
        after: str = "",
        before: str = "",
        arguments: Iterable[TriedSite] = (),
        inner: Iterable[TriedSite] = (),
        module: tuple[str, str] | None = None,
        drew: bool = False,
    ) -> _Found:
        candidate_module = owner.module if owner is not None else ""
        modules = module or (self._find_module(site, candidate_module), candidate_module)
        own = site.own if site.own is not None else math.inf
        arguments, inner = tuple(arguments), tuple(inner)
        classes = (
            get_class(self.trees[0].get(modules[0], {})),
            get_class(self.trees[1].get(modules[1], {})) or (owner.cls if owner is not None else ""),
        )
        error = OwnError(
            candidate=self.plan.label,
            name=site.partner.reference,
            candidate_name=site.candidate.name,
            order=site.reference.trace.order,
            slot=site.site.slot,
            module=modules[0],
            candidate_module=modules[1],
            classes=classes,
            max_abs=own,
            times_noise=count_noise(own, site.floor),
            inherited=site.inherited,
            after=after,
            before=before,
            given=tuple(given.partner.reference for given in (*arguments, *inner)),
        )
        return _Found(error, site, owner, arguments, inner, drew)

    def _find_module(self, site: TriedSite, candidate_module: str) -> str:
        """Return the reference's module whose code is at fault: the partner of the candidate's, where it has one.

        Code of the model itself, or of a module without a partner, does what some module does in the reference, unless
        that module's own partner does it right.
        """
        if candidate_module and candidate_module in self._modules:
            return self._modules[candidate_module]
        first, maker = self._made.find_first(site.reference), self._made.find_maker(site.reference)
        if maker is not None and first.site.slot is Slot.OUTPUT and maker.module in self._modules.values():
            maker = maker.parent  # what a module returned was changed on its way: its own partner is tried by itself
        return maker.module if maker is not None else ""

    # -- backward

    def add_backward_errors(self, found: Sequence[_Found]) -> list[_Found]:
        """Return the errors with those of gradients and buffers; wrong code has wrong gradients, which are no more."""
        found = list(found)
        if self._has_recomputed:
            return found  # what is computed again in the backward pass is not replaced
        tainted = any(site.is_out and site.site.slot is Slot.LOSS for site in self.sites.values())
        if any(self._lacks_gradient(site) for site in self.sites.values()):
            return found  # what follows from a gradient that is not there was not replaced
        gradients = [site for site in self.sites.values() if site.site.slot is Slot.GRAD_OUTPUT]
        for site in sorted(gradients, key=lambda site: site.order):
            if not site.is_out:
                continue
            if not tainted:
                self._add_gradient(site, found)
            tainted = tainted or not site.is_replaced
        if tainted:
            return found
        for site in self.sites.values():
            if site.site.slot in _ENDS and site.is_out and self._ran_clean(site.site.module):
                modules = site.reference.site.module, site.site.module
                self._add_backward(site, modules, found)
        return found

    def _lacks_gradient(self, output: TriedSite) -> bool:
        """Return True for an output with a gradient in the reference alone."""
        if output.site.slot is not Slot.OUTPUT:
            return False
        ours = replace(output.reference.site, slot=Slot.GRAD_OUTPUT).name
        theirs = replace(output.site, slot=Slot.GRAD_OUTPUT).name
        return ours in self.references and theirs not in self.plan.candidate.tensors

    def _ran_clean(self, module: str) -> bool:
        """Return True if all calls of a module were given nothing wrong."""
        calls = [call for call in self.calls.all if call.module == module]
        return bool(calls) and all(self._was_given_clean(call) for call in calls)

    def _add_gradient(self, site: TriedSite, found: list[_Found]) -> None:
        """Add the module whose backward made a wrong gradient of good ones."""
        output = self.references.get(replace(site.reference.site, slot=Slot.OUTPUT, nth=0).name)
        for index, item in enumerate(found):
            # the code that made something else of this output has another derivative
            if output is not None and any(have_same_bytes(given.reference, output) for given in item.given):
                found[index] = item.with_site(site)
                return
        module = self._blame_gradient(site)
        for index, item in enumerate(found):
            # it may come from the wrong code inside just as well
            if item.error.slot in _FORWARD and is_inside(item.error.module, module):
                found[index] = item.with_site(site)
                return
        partners = {reference: candidate for candidate, reference in reversed(self._modules.items())}
        self._add_backward(site, (module, partners.get(module, module)), found)

    def _add_backward(self, site: TriedSite, modules: tuple[str, str], found: list[_Found]) -> None:
        for index, item in enumerate(found):
            if item.error.module == modules[0] and item.error.candidate_module == modules[1]:
                found[index] = item.with_site(site)
                return
        calls = [call for call in self.calls.all if call.module == modules[1]]
        owner = calls[0] if calls else None
        arguments = [self.sites[tensor.name] for tensor in self._list_arguments(owner) if tensor.name in self.sites]
        found.append(self._describe(site, owner, arguments=arguments, module=modules))

    def _blame_gradient(self, site: TriedSite) -> str:
        """Return the module that made a wrong gradient, by the reference's name; else the one around it."""
        known = self._known_first
        if known is not None and known.slot is Slot.GRAD_OUTPUT and not known.missing_in:
            is_here = known.candidate_name == site.candidate.name
            if is_here or self._is_same_gradient(site, known.candidate_name):
                return known.module  # of the ordinary runs, which tell more of the backward pass
        reference = {tensor.trace.order: tensor for tensor in self.plan.reference.tensors.values()}
        candidate = {tensor.trace.order: tensor for tensor in self.plan.candidate.tensors.values()}
        pairs = []
        wrong: SitePair | None = None
        for pair in self._pairs.values():
            ours = self.plan.reference.tensors.get(pair.reference_name)
            theirs = self.plan.candidate.tensors.get(pair.candidate_name)
            if ours is None or theirs is None:
                continue
            # every other gradient was replaced: it is right, unless it is of the same tensor
            is_wrong = pair.candidate_name == site.candidate.name or self._is_same_gradient(site, pair.candidate_name)
            verdict = Verdict.DIFFERENT if is_wrong else Verdict.CLOSE
            judged = SitePair(replace(pair, verdict=verdict, related=None), ours, theirs)
            wrong = judged if pair.candidate_name == site.candidate.name else wrong
            pairs.append(judged)
        blame = blame_gradient(pairs, wrong, (reference, candidate)) if wrong is not None else None
        if blame is not None:
            return blame.module
        call = self.calls.find(site.key)
        parent = call.parent if call is not None else None
        return self._modules.get(parent.module, parent.module) if parent is not None else ""

    def _is_same_gradient(self, site: TriedSite, name: str) -> bool:
        other = self.sites.get(name)
        if other is None or other.site.slot is not Slot.GRAD_OUTPUT:
            return False
        return have_same_bytes(site.reference, other.reference) and have_same_bytes(site.candidate, other.candidate)

    @cached_property
    def _held(self) -> HeldWeights:
        """Return what both models held when they began."""
        return read_held_weights(self.references, self.candidates, self._reference_held, self._modules)

    @cached_property
    def _model_inputs(self) -> Mapping[str, TensorRef]:
        """Return what the model was given, by path."""
        inputs = [tensor for tensor in self.references.values() if tensor.site.slot is Slot.MODEL_INPUT]
        return {tensor.site.path: tensor for tensor in inputs}

    def make_trial(self, found: _Found) -> Trial:
        """Return everything that an experiment about the cause of an error needs."""
        error = found.error
        given = [Given(argument.site.path, True, "", argument.reference) for argument in found.arguments]
        for output in found.inner:
            name = name_inside(output.reference.site, error.module)
            given.append(Given(name, False, output.site.cls, output.reference))
        if error.slot in _FORWARD:
            ours = self._made.list_given(found.site.reference, error.module)
            # the candidate may make something of what the reference computes only later
            later = [item for item in given if not item.is_argument and item.tensor.trace.order > error.order]
            given = [*ours, *later] if ours else given
        return make_trial(error, found.site, given, self._model_inputs, self._held, self.trees, found.drew)


def _shows_same(found: _Found, site: TriedSite) -> bool:
    """Return True for the same wrong tensor handed to another module, and for another output of the same call."""
    if found.site.site.slot is Slot.OUTPUT and site.site.slot is Slot.OUTPUT:
        return found.site.key == site.key
    return have_same_bytes(found.site.reference, site.reference) and have_same_bytes(
        found.site.candidate, site.candidate
    )
