"""Every relation of checkpoints on small models of real architectures: found, named, and right when applied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_relations import KNOWN, UNRELATED, change, llama, round_to, to_interleaved
from safetensors.numpy import load_file, save_file

import nndiff
from nndiff.commands import main
from nndiff.result import JOINT, NoteSlug
from nndiff.tolerance import Tolerance
from nndiff.verdict import RelationKind

COMPUTED = ("scale", "shift", "fold", "quantised")  # to the rounding of the type, not always to the bit
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
        rtol = 1e-3 if "float16" in pair.dtype else 1e-5
        np.testing.assert_allclose(made, stored, rtol=rtol, atol=1e-6)


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


def test_a_whole_of_experts_says_how_they_lie_in_it():
    (finding,) = nndiff.compare(*KNOWN["gate_and_up_of_experts_interleaved"].make()).findings
    assert "stacked, in each gate, up interleaved row by row, each transposed" in finding.evidence


def test_a_key_that_was_left_out_is_named():
    found = nndiff.compare(*KNOWN["rope_interleaved_but_for_one_key"].make(), accept="layout")
    (finding,) = [finding for finding in found.findings if finding.cause == "exception"]
    assert finding.where == ("model.layers.1.self_attn.k_proj.weight",)
    assert "2 of 3 `model.layers.#.self_attn.k_proj.weight`: rows permuted" in finding.evidence
    assert "(equal as it is stored)" in finding.evidence
    assert "30 of 30 explained (5 permuted for RoPE); 1 exception" in str(found)


def test_a_fold_of_a_shorter_type_is_judged_again_as_it_was():
    """Its numbers are out of tolerance and within rounding: a smaller tolerance would have to prove it again."""
    found = nndiff.compare(*KNOWN["batch_norm_folded_and_cast"].make(), accept="fold")
    assert found.exit_code == 0
    assert found.judged_at(Tolerance(1e-4, 1e-4, "given")).exit_code == 0
    tighter = found.judged_at(Tolerance(1e-7, 1e-7, "given"))
    assert tighter.exit_code == 1
    assert any(pair.has_note(NoteSlug.COMPARE_AGAIN) for pair in tighter.pairs)


def test_a_part_of_each_head_that_rotates_is_named():
    (finding,) = nndiff.compare(*KNOWN["rope_of_a_part_of_each_head"].make()).findings
    assert "from rotate-half to interleaved RoPE (1 head of 16, 12 of which rotate; 2 heads" in finding.evidence


def test_two_pairs_that_rotate_do_not_tell_the_direction():
    weights = {"layers.0.self_attn.q_proj.weight": llama()["model.layers.0.self_attn.q_proj.weight"]}
    (finding,) = nndiff.compare(weights, change(weights, "q_proj", lambda array: to_interleaved(array, 4))).findings
    assert "rows permuted between rotate-half and interleaved RoPE (8 heads of 4)" in finding.evidence


def test_rows_that_are_equal_have_other_orders():
    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    weights = {"w": np.concatenate([rows, rows])}
    (finding,) = nndiff.compare(weights, change(weights, "w", lambda array: array[[1, 0, 2, 3, 4, 5, 7, 6]])).findings
    assert "some are equal, so other orders agree as well" in finding.evidence


def test_blocks_that_begin_as_copies_are_no_ties():
    """A model made deeper by copies of its layers is another network."""
    weights = llama()
    deeper = dict(weights)
    for name, array in weights.items():
        deeper[re.sub(r"layers\.(\d+)", lambda match: f"layers.{int(match[1]) + 3}", name)] = array.copy()
    for sides in ((weights, deeper), (deeper, weights)):
        found = nndiff.compare(*sides)
        assert found.exit_code == 1
        assert len([leftover for leftover in found.leftovers if leftover.counts]) == 27


def test_one_block_for_all_may_be_stored_for_each():
    """As ALBERT has one layer for all."""
    weights = llama(1)
    copies = dict(weights)
    for name, array in weights.items():
        copies[name.replace("layers.0", "layers.1")] = array.copy()
    assert nndiff.compare(weights, copies).exit_code == 0


def test_layers_that_were_dropped_shift_the_others():
    weights = llama(6)
    kept = {}
    for name, array in weights.items():
        layer = re.search(r"layers\.(\d+)", name)
        if layer is None or layer[1] in "0145":
            kept[name.replace("layers.4", "layers.2").replace("layers.5", "layers.3")] = array
    (finding,) = nndiff.compare(weights, kept).findings
    assert finding.cause == "layers-shifted"
    assert finding.evidence.startswith("18 tensors hold the values of others")


def test_another_precision_is_no_exception():
    """One layer is kept in float32; norms of ones are the same once rounded."""
    weights = change(llama(), r"layers\.1\.input_layernorm", np.ones_like)
    permuted = change(weights, r"(q|k)_proj\.weight", to_interleaved)
    for candidate, causes in ((weights, {"cast"}), (permuted, {"cast", "rope-layout"})):
        rounded = change(candidate, r"^(?!.*layers\.2\.)", round_to(torch.bfloat16))
        assert {finding.cause for finding in nndiff.compare(weights, rounded).findings} == causes


def test_an_exception_may_be_rounded_too():
    sides = KNOWN["rope_interleaved_but_for_one_key"].make()
    found = nndiff.compare(sides[0], change(sides[1], "", round_to(torch.bfloat16)))
    (finding,) = [finding for finding in found.findings if finding.cause == "exception"]
    assert finding.where == ("model.layers.1.self_attn.k_proj.weight",)


@pytest.mark.parametrize("name", KNOWN)
def test_a_map_makes_the_candidate(name, tmp_path, capsys):
    """What is proven is written by `nndiff convert`, and by the code of --torch: the same bits, or numbers."""
    paths = [str(tmp_path / f"{side}.safetensors") for side in ("reference", "candidate", "made")]
    reference, candidate = KNOWN[name].make()
    for path, weights in zip(paths, (reference, candidate), strict=False):
        save_file({key: np.ascontiguousarray(array) for key, array in weights.items()}, path)
    conversion = str(tmp_path / "map.json")
    if main(["map", *paths[:2], "-o", conversion, "--quiet"]) == 2:
        assert "one way" in capsys.readouterr().err
        return
    entries = json.loads(Path(conversion).read_text())["entries"]
    assert main(["convert", paths[0], "--map", conversion, "-o", paths[2], "--partial", "--quiet"]) == 0
    made = load_file(paths[2])
    capsys.readouterr()
    is_written = main(["map", *paths[:2], "--torch"]) in (0, 1)
    names: dict[str, Any] = {}
    exec(capsys.readouterr().out, names)
    assert is_written or any(entry["kind"] == "quantised" for entry in entries)
    by_torch = names["convert"]({key: torch.from_numpy(array.copy()) for key, array in reference.items()})
    for entry in entries:
        target = entry["target"]
        np.testing.assert_allclose(by_torch[target].numpy(), made[target], rtol=1e-6, atol=1e-7)
        if not entry["proven"]:
            continue
        assert made[target].dtype == candidate[target].dtype
        if entry["kind"] in COMPUTED:
            rtol = 1e-3 if made[target].dtype == np.float16 else 1e-5
            np.testing.assert_allclose(made[target], candidate[target], rtol=rtol, atol=1e-6)
        else:
            np.testing.assert_array_equal(made[target], candidate[target])
