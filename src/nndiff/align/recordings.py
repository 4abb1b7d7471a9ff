"""The order of the passes for recordings, the surest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nndiff.align.alignment import Alignment, Draft, HeldWeights, Tensors
from nndiff.align.by_call import (
    class_and_shapes,
    leaf_and_shapes,
    pair_around_paired,
    pair_by_structure,
    pair_in_order,
)
from nndiff.align.by_content import pair_by_content, pair_model_inputs
from nndiff.align.by_name import Spelling, pair_by_name
from nndiff.align.by_rule import Rename, pair_by_map
from nndiff.align.by_statistics import pair_by_statistics
from nndiff.align.by_weights import ModuleWeights, find_weight_pairs, pair_by_weights, same_tensors
from nndiff.align.calls import Call, CallPairs
from nndiff.align.containers import pair_in_other_containers
from nndiff.align.followers import (
    pair_computed_parameters,
    pair_followers,
    pair_moved_parameters,
    pair_renamed_parameters,
    pair_same_tensors,
)
from nndiff.align.fused import find_fused_calls, pair_fused_calls, pair_fused_parameters
from nndiff.align.hints import recording_hints
from nndiff.result import Method


def align_recordings(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
    weights: tuple[HeldWeights, HeldWeights] = ({}, {}),
) -> Alignment:
    """Pair the tensors of two recordings; read nothing but a few elements of short floats.

    `weights` holds a digest of every parameter and buffer of both models, as far as the recordings tell.
    """
    draft = Draft(reference, candidate)
    pairs = CallPairs(draft)
    spelling = Spelling(renames, mapping)

    # certain: the user's map
    pair_by_map(draft, mapping or {})
    mapped = {reference[name].site.module for name in draft.matches}
    mapped_partners = {candidate[match.candidate].site.module for match in draft.matches.values()}

    # certain: names, except where weights say that names mislead, a module is called more often on one side, or
    # only one of two layers holds weights
    reference_weights = ModuleWeights(weights[0], reference, pairs.reference)
    candidate_weights = ModuleWeights(weights[1], candidate, pairs.candidate)
    by_weights = find_weight_pairs(reference_weights, candidate_weights, spelling, (mapped, mapped_partners))
    pairs.add_same_weights(by_weights.modules)
    called_otherwise = _modules_called_otherwise(pairs, spelling)
    held_back = (
        draft.hold_back(by_weights.misled_reference, by_weights.misled_candidate),
        draft.hold_back(*called_otherwise),
    )
    unlike_layers = draft.hold_back(*_layers_with_weights_on_one_side(pairs, spelling))
    notes = pair_by_name(draft, renames, spelling)
    pair_model_inputs(draft)
    pair_in_other_containers(draft, spelling, mapping or {})
    _pair_calls_of_paired_outputs(pairs)
    for names in (*held_back, unlike_layers):
        draft.give_back(names)

    # certain: weights and content
    pair_by_weights(pairs, by_weights.modules)
    pair_by_content(pairs)
    pair_same_tensors(draft, same_tensors(by_weights.modules, reference_weights, candidate_weights))

    # certain: layers with weights that can be paired in one way only
    pair_by_structure(pairs)

    # certain: names, of layers of which only one holds weights and that belong nowhere else
    draft.pair_equal_keys(
        {name: spelling.of_reference(name) for name in unlike_layers[0]},
        {name: spelling.of_candidate(name) for name in unlike_layers[1]},
        Method.NAME,
    )
    _pair_calls_of_paired_outputs(pairs)

    # guessed: values that are near, one layer for several, and the order of calls
    pair_by_statistics(pairs)
    fused_calls = find_fused_calls(pairs)
    pair_around_paired(pairs)
    pair_in_order(pairs, class_and_shapes)
    fused_calls += find_fused_calls(pairs)
    reliable_modules = pairs.reliable_modules()
    pair_in_order(pairs, leaf_and_shapes)
    pairs.pair_unique(class_and_shapes, Method.CALL, certain=False)

    # what follows calls and modules: as certain as these are
    pair_followers(pairs)
    pair_fused_calls(draft, fused_calls)
    pair_fused_parameters(pairs, reliable_modules)
    pair_moved_parameters(draft)
    pair_computed_parameters(draft, reliable_modules, pairs.certain_modules())
    pair_renamed_parameters(pairs)

    return Alignment(
        draft.matches_in_order(),
        tuple(draft.fused),
        only_reference=recording_hints(draft, is_candidate=False),
        only_candidate=recording_hints(draft, is_candidate=True),
        notes=(*notes, *by_weights.notes),
        modules=pairs.modules(),
        against_names=by_weights.against_names,
    )


def _modules_called_otherwise(pairs: CallPairs, spelling: Spelling) -> tuple[set[str], set[str]]:
    """Return the modules of one name that one side calls more often than the other.

    One activation that stands in for several on one side goes by the name of the first: which of its calls is
    that one's, the number of the call does not tell. A module around others that returns the same at its first
    calls is called for a few rows at a time, and its calls belong together by their numbers.
    """
    counts = Counter(call.module for call in pairs.reference), Counter(call.module for call in pairs.candidate)
    partner_named = {spelling.of_module(module, is_candidate=True): module for module in counts[1]}
    shapes = {call.key: call.shapes for call in pairs.candidate}
    partners: dict[str, str] = {}
    for module, count in counts[0].items():
        partner = partner_named.get(spelling.of_module(module, is_candidate=False))
        if partner is not None and counts[1][partner] != count:
            partners[module] = partner
    for call in pairs.reference:
        partner = partners.get(call.module)
        if partner is not None and not call.leaf and call.shapes == shapes.get((partner, call.number)):
            del partners[call.module]
    return set(partners), set(partners.values())


def _layers_with_weights_on_one_side(pairs: CallPairs, spelling: Spelling) -> tuple[set[str], set[str]]:
    """Return the layers of one name of which one holds weights and the other holds none.

    One more dropout shifts the numbers of a Sequential: then the layer with weights belongs to another one.
    """
    layers: list[dict[str, Call]] = []
    for is_candidate, calls in enumerate((pairs.reference, pairs.candidate)):
        layers.append({spelling.of_module(call.module, bool(is_candidate)): call for call in calls if call.leaf})
    unlike: tuple[set[str], set[str]] = set(), set()
    for name in layers[0].keys() & layers[1].keys():
        reference_layer, candidate_layer = layers[0][name], layers[1][name]
        if bool(reference_layer.outputs[0].trace.weights) != bool(candidate_layer.outputs[0].trace.weights):
            unlike[0].add(reference_layer.module)
            unlike[1].add(candidate_layer.module)
    return unlike


def _pair_calls_of_paired_outputs(pairs: CallPairs) -> None:
    """Pair the calls of which an output is paired, and the models themselves whatever they return."""
    calls_of_output = {output.name: call for call in pairs.candidate for output in call.outputs}
    calls_of_key = {call.key: call for call in pairs.candidate}
    for call in pairs.reference:
        matches = [pairs.draft.matches[output.name] for output in call.outputs if output.name in pairs.draft.matches]
        if matches:
            partner = calls_of_output.get(matches[0].candidate)
            certain = any(match.certain for match in matches)
            method = matches[0].method
        else:
            partner, certain, method = None if call.module else calls_of_key.get(call.key), True, Method.NAME
        if partner is not None:
            pairs.pair(call, partner, method, certain)
