"""Every relation of checkpoints on small models of real architectures: found, named, and right when applied."""

from __future__ import annotations

import numpy as np
import pytest
from known_relations import KNOWN, UNRELATED

import nndiff
from nndiff.result import JOINT
from nndiff.verdict import RelationKind

EVERYTHING = "layout,cast,scale,shift,fold,vocab,quantised"
EXACT = (RelationKind.LAYOUT, RelationKind.CAST, RelationKind.VOCAB, RelationKind.TIED)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_relation_is_found_and_named(name):
    known = KNOWN[name]
    reference, candidate = known.make()
    found = nndiff.compare(reference, candidate)
    causes = {finding.cause for finding in found.findings}
    assert known.causes <= causes
    assert {finding.cause for finding in found.findings if not finding.harmless} <= known.causes
    related = [pair for pair in found.pairs if pair.related is not None]
    if known.related is not None:
        assert len(related) == known.related
    if known.accept:
        assert found.exit_code == 1, "nothing but names is accepted unasked"
        assert nndiff.compare(reference, candidate, accept=known.accept).exit_code == 0
    for pair in related:
        assert_applies(pair, reference, candidate)


def assert_applies(pair, reference, candidate):
    """Apply a relation to the arrays themselves: the same bits, or the same numbers where it computes."""
    relation = pair.related.relation
    sides = relation.apply(
        [reference[name] for name in pair.reference_name.split(JOINT)],
        [candidate[name] for name in pair.candidate_name.split(JOINT)],
    )
    made, stored = (np.asarray(side, np.float64) for side in sides)
    if relation.kind in EXACT:
        np.testing.assert_array_equal(made, stored)
    elif relation.kind is not RelationKind.QUANTISED:
        np.testing.assert_allclose(made, stored, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["renamed_llama", "renamed_mamba", "tied_on_one_side", "derived_buffers_on_one_side"])
def test_other_names_are_no_difference(name):
    assert nndiff.compare(*KNOWN[name].make()).verdict == "identical"


def test_without_content_names_alone_pair():
    reference, candidate = KNOWN["renamed_llama"].make()
    assert nndiff.compare(reference, candidate, content=False).exit_code == 1


def test_one_changed_tensor_of_a_renamed_model_finds_its_place():
    found = nndiff.compare(*KNOWN["renamed_with_one_tensor_changed"].make())
    differing = [pair for pair in found.pairs if not pair.verdict.passed]
    assert [pair.reference_name for pair in differing] == ["model.layers.1.mlp.down_proj.weight"]
    assert not [leftover for leftover in found.leftovers if leftover.counts]


@pytest.mark.parametrize("name", UNRELATED)
def test_what_is_not_related_gets_no_explanation(name):
    found = nndiff.compare(*UNRELATED[name](), accept=EVERYTHING)
    assert found.exit_code == 1
    assert list(found.findings) == []


def test_the_headline_says_that_weights_are_the_same_in_another_form():
    found = nndiff.compare(*KNOWN["rope_interleaved"].make())
    assert "same weights, other layout: 30 of 30 explained (6 permuted for RoPE)" in str(found)
    (finding,) = found.findings
    assert "rows permuted from rotate-half to interleaved RoPE (2 heads of 8; 4 heads of 8)" in finding.evidence


def test_a_fused_layer_names_its_parts_in_their_order():
    (finding,) = nndiff.compare(*KNOWN["qkv_per_group"].make()).findings
    assert "group by group in the order q_proj, k_proj, v_proj, 2 groups of 16 + 8 + 8 rows" in finding.evidence
