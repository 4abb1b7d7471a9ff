"""Weights of the module on trial: whose they are, how they are related, and a bias that is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nndiff import relations
from nndiff.diagnosis.modules import get_class, get_source_line
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.layers import Layer, find_bias, find_matrix, list_layers, read_weights
from nndiff.findings.hypotheses.operands import (
    as_stored,
    can_read,
    has_few_numbers,
    have_equal_values,
    is_forward_trial,
    pair_own_weights,
)
from nndiff.findings.relation_wording import describe_relation
from nndiff.findings.settings import compare_settings
from nndiff.findings.tensor_facts import REPAIRS, describe_difference
from nndiff.names import without_numbers
from nndiff.relations.value_operations import Shift
from nndiff.result import Method, Pair
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import TensorRef
from nndiff.text import plural
from nndiff.tolerance import DEFAULT_ATOL, DEFAULT_RTOL
from nndiff.verdict import Verdict


class Explanation(NamedTuple):
    """Say why a tensor of the candidate is not that of the reference."""

    cause: Cause
    text: str
    repair: str


def holds_weights(trial: Trial) -> bool:
    """Return True if the module on trial holds weights itself."""
    return is_forward_trial(trial) and bool(trial.weights)


def prove_weights(trial: Trial) -> Proof | None:
    """Return how the weights differ, if the reference's layer makes with them what the candidate made."""
    sides = read_weights(trial, 0), read_weights(trial, 1)
    changed = [name for name, tensors in pair_own_weights(trial).items() if not have_equal_values(*tensors)]
    changed = [name for name in changed if name in sides[0] or name in sides[1]]
    for layer in list_layers(trial, 0):
        made = layer.run(sides[0])
        is_reference = made is not None and trial.gives_reference(made)
        if changed and is_reference:
            for layer_of_candidate in _list_alternatives(trial, layer):
                made = layer_of_candidate.run(sides[1])
                if made is not None and trial.gives_candidate(made):
                    return describe_weights(trial, changed)
        elif not changed:
            proof = prove_use(trial, layer, is_reference)
            if proof is not None:
                return proof
    return prove_borrowed(trial)


def explain_by_weights(trial: Trial) -> Proof | None:
    """Return how weights differ that code between calls uses itself, if they are all that differs.

    Class, source and settings are the same, so that the same code was given the same tensors. Inner calls do not
    count: what they returned was replaced.
    """
    module = trial.error.module
    ours, theirs = trial.modules
    if not is_forward_trial(trial) or not get_source_line(ours) or get_class(ours) != get_class(theirs):
        return None
    if get_source_line(ours) != get_source_line(theirs) or compare_settings(ours, theirs):
        return None
    prefix, candidate_prefix = (f"{path}." if path else "" for path in (module, trial.error.candidate_module))
    called = {trial.error.before.removeprefix(prefix), *(given.name.partition("@")[0] for given in trial.inner)} - {""}
    explained = {}
    for name, tensor in trial.model_weights[0].items():
        local = name.removeprefix(prefix)
        owner = local.rpartition(".")[0]
        partner = trial.model_weights[1].get(candidate_prefix + local)
        if not name.startswith(prefix) or partner is None or have_equal_values(tensor, partner):
            continue
        if any(owner == path or owner.startswith(f"{path}.") for path in called):
            continue
        explained[local] = explain_pair(trial, (name, candidate_prefix + local), tensor, partner)
    if not explained or all(explanation.cause is Cause.WEIGHTS_DIFFER for explanation in explained.values()):
        return None
    proof = choose_explanation(explained)
    return replace(proof, evidence=f"{proof.evidence}; inputs, class and settings are equal, weights alone differ")


def prove_borrowed(trial: Trial) -> Proof | None:
    """Return that a layer uses the weights of another module on one side and its own on the other.

    Recordings list a tied tensor once, with the module that is named first.
    """
    sides = read_weights(trial, 0), read_weights(trial, 1)
    for side, name, other_name in ((0, "reference", "candidate"), (1, "candidate", "reference")):
        matrix = find_matrix(sides[1 - side])
        if not matrix or find_matrix(sides[side]):
            continue
        gives = trial.gives_reference, trial.gives_candidate
        for layer in list_layers(trial, 1 - side):
            made = layer.run(sides[1 - side])
            if made is None or not gives[1 - side](made):
                continue
            for holder, tensor in trial.model_weights[side].items():
                if tensor.shape != sides[1 - side][matrix].shape or not can_read(tensor):
                    continue
                made = layer.run({**sides[side], matrix: read_wide(tensor)})
                if made is not None and gives[side](made):
                    evidence = f"the {name} uses `{holder}` here, the {other_name} a `{matrix}` of its own"
                    return Proof(Cause.UNTIED, evidence, "tie the weights on both sides, or on neither")
    return None


def _list_alternatives(trial: Trial, layer: Layer) -> Iterator[Layer]:
    """Yield the reference's layer, then those that take weights of the candidate's shapes."""
    yield layer
    if any(ours and theirs and ours.shape != theirs.shape for ours, theirs in trial.weights.values()):
        yield from list_layers(trial, 1)


def prove_use(trial: Trial, layer: Layer, is_reference: bool) -> Proof | None:
    """Return that equal weights are used differently: the bias is left out, or the matrix is transposed."""
    weights = read_weights(trial, 0)
    matrix, bias = find_matrix(weights), find_bias(weights)
    without = {name: values for name, values in weights.items() if name != bias}
    if bias and matrix and layer.kind != "norm":
        both = layer.run(weights), layer.run(without)
        if both[0] is None or both[1] is None:
            return None
        if is_reference and trial.gives_candidate(both[1]):
            return Proof(
                Cause.BIAS_MISSING, f"the candidate does not add `{bias}`, the reference does", f"add `{bias}`"
            )
        if trial.gives_reference(both[1]) and trial.gives_candidate(both[0]):
            return Proof(
                Cause.BIAS_MISSING, f"the candidate adds `{bias}`, the reference does not", f"leave out `{bias}`"
            )
    if is_reference and layer.kind == "linear" and weights[matrix].shape[0] == weights[matrix].shape[1]:
        made = layer.run({**weights, matrix: weights[matrix].T})
        if made is not None and trial.gives_candidate(made):
            evidence = f"the candidate multiplies by `{matrix}` transposed, the weights are equal"
            return Proof(Cause.TRANSPOSED, evidence, f"transpose `{matrix}` in the candidate")
    return None


def describe_weights(trial: Trial, changed: list[str]) -> Proof:
    """Return the cause for the tensors that differ, the most telling first."""
    return choose_explanation({name: explain_tensor(trial, name) for name in changed})


def choose_explanation(explained: Mapping[str, Explanation]) -> Proof:
    """Return the most telling cause, with what is known of each tensor."""
    telling = [text for text in explained.values() if text.cause is not Cause.WEIGHTS_DIFFER]
    chosen = telling[0] if telling else next(iter(explained.values()))
    texts: dict[str, list[str]] = {}
    for name, explanation in explained.items():
        texts.setdefault(explanation.text, []).append(f"`{name}`")
    evidence = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    return Proof(chosen.cause, evidence, chosen.repair)


def explain_tensor(trial: Trial, name: str) -> Explanation:
    """Return why a tensor of the candidate is not that of the reference."""
    ours, theirs = pair_own_weights(trial)[name]
    if ours is None or theirs is None:
        side, other = ("reference", "candidate") if ours is None else ("candidate", "reference")
        present = ours or theirs
        is_bias = present is not None and len(present.shape) == 1
        cause = Cause.BIAS_MISSING if is_bias else Cause.WEIGHTS_DIFFER
        return Explanation(cause, f"the {side} has none, the {other} does", "give it to both sides, or to neither")
    return explain_pair(trial, list_full_names(trial, name), ours, theirs)


def explain_pair(trial: Trial, names: tuple[str, str], ours: TensorRef, theirs: TensorRef) -> Explanation:
    """Return why two tensors differ; they go by these names in the models."""
    return (
        find_holder(trial, names, ours, theirs)
        or find_tie(trial, names[0], ours)
        or find_relation(ours, theirs)
        or find_fact(names[0], ours, theirs)
        or count_changes(ours, theirs)
    )


def list_full_names(trial: Trial, name: str) -> tuple[str, str]:
    """Return the names of a tensor in both models."""
    modules = trial.error.module, trial.error.candidate_module
    return f"{modules[0]}.{name}".lstrip("."), f"{modules[1]}.{name}".lstrip(".")


def find_holder(trial: Trial, names: tuple[str, str], ours: TensorRef, theirs: TensorRef) -> Explanation | None:
    """Return whose weights the candidate holds instead: another role's in the same block, another layer's."""
    if not can_read(theirs) or has_few_numbers(theirs.numpy()):
        return None
    own, candidate_name = names
    for holder, tensor in trial.model_weights[0].items():
        if holder == own or not have_equal_values(tensor, theirs):
            continue
        partner = trial.model_weights[1].get(holder)
        if partner is None:
            partner = trial.model_weights[1].get(_rename(holder, own, candidate_name))
        if partner is not None and have_equal_values(partner, theirs) and _have_other_classes(trial, own, holder):
            text = f"one tensor with `{holder}` in the candidate, two tensors in the reference"
            return Explanation(Cause.UNTIED, text, "tie the weights on both sides, or on neither")
        is_exchanged = partner is not None and have_equal_values(partner, ours)
        is_same_role = without_numbers(holder) == without_numbers(own)
        cause = Cause.ROLES_SWAPPED if is_exchanged and not is_same_role else Cause.ANOTHER_LAYER
        text = f"exchanged with the reference's `{holder}`" if is_exchanged else f"holds the reference's `{holder}`"
        return Explanation(cause, text, "fix the mapping of names in the conversion")
    return None


def _have_other_classes(trial: Trial, *names: str) -> bool:
    """Return True if the modules of two tensors have different classes: an embedding and the last linear layer."""
    classes = [get_class(trial.trees[0].get(name.rpartition(".")[0], {})) for name in names]
    return all(classes) and classes[0] != classes[1]


def _rename(holder: str, own: str, candidate_name: str) -> str:
    """Return a name of the reference as the candidate would have it, if both begin differently."""
    shared = 0
    while shared < min(len(own), len(candidate_name)) and own[-1 - shared] == candidate_name[-1 - shared]:
        shared += 1
    front, other_front = own[: len(own) - shared], candidate_name[: len(candidate_name) - shared]
    return other_front + holder[len(front) :] if holder.startswith(front) else holder


def find_tie(trial: Trial, own: str, ours: TensorRef) -> Explanation | None:
    """Return that the reference uses one tensor in two places where the candidate has two."""
    if not can_read(ours) or has_few_numbers(ours.numpy()):
        return None
    for other, tensor in trial.model_weights[0].items():
        if other != own and have_equal_values(tensor, ours):
            text = f"one tensor with `{other}` in the reference, two tensors in the candidate"
            return Explanation(Cause.UNTIED, text, "tie the weights on both sides, or on neither")
    return None


def find_relation(ours: TensorRef, theirs: TensorRef) -> Explanation | None:
    """Return the operation that makes one tensor of the other: transposed, permuted, rounded, scaled, shifted.

    Weights were loaded, not computed: they are related as those of two files are.
    """
    ours, theirs = as_stored(ours), as_stored(theirs)
    relation = relations.prove(ours, theirs, DEFAULT_ATOL, DEFAULT_RTOL, families=relations.STORED_FAMILIES)
    if relation is None:
        return None
    words = describe_relation(relation, [ours], [theirs])
    text = words.sentence + (f" ({words.detail})" if words.detail else "")
    shifts = [step for step in (*relation.reference, *relation.candidate) if isinstance(step, Shift)]
    if shifts and len(ours.shape) == 1 and abs(shifts[0].number) == 1:
        repair = "add 1 to the weights of the norm, or multiply by weight + 1"
        return Explanation(Cause.NORM_OFFSET, f"{text}: weights of a norm, centred at 0 on one side", repair)
    return Explanation(words.cause, text, "apply it in the conversion, as nndiff map and nndiff convert do")


def find_fact(name: str, ours: TensorRef, theirs: TensorRef) -> Explanation | None:
    """Return what is known of tensors that no operation makes equal: quantised, low rank, fresh, constant."""
    if ours.shape != theirs.shape:
        return None
    numbers = next(iter(get_engine().measure([Job(ours, theirs, DEFAULT_ATOL, DEFAULT_RTOL)])))
    pair = Pair(
        "", name, name, Method.NAME, True, Verdict.DIFFERENT, (ours.shape, theirs.shape),
        (ours.dtype.name, theirs.dtype.name), 0, numbers,
    )  # fmt: skip
    fact = describe_difference(SitePair(pair, ours, theirs), others_agree=True)  # what led to its inputs does
    return None if fact is None else Explanation(fact[0], fact[1], REPAIRS[fact[0]])


def count_changes(ours: TensorRef, theirs: TensorRef) -> Explanation:
    """Return how many elements differ, and in how many rows."""
    repair = "load the same weights"
    if ours.shape != theirs.shape:
        return Explanation(Cause.WEIGHTS_DIFFER, f"shapes {ours.shape} and {theirs.shape}", repair)
    differing = np.asarray(ours.numpy() != theirs.numpy())
    count = int(differing.sum())
    text = f"{plural(count, 'element')} of {differing.size:,} differ{'s' if count == 1 else ''}"
    if differing.ndim > 1:
        rows = np.flatnonzero(differing.reshape(len(differing), -1).any(1))
        if len(rows) == 1:
            text += f", in row {rows[0]}"
        elif len(rows) < len(differing):
            text += f", in {len(rows):,} of {len(differing):,} rows"
    return Explanation(Cause.WEIGHTS_DIFFER, text, repair)


WEIGHTS = Family("difference of weights", holds_weights, prove_weights)
