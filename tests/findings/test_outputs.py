"""Outputs that only one of two models returns are named, with the setting that turned them off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff
from diagnosis_builders import explain, make_leftover, make_pair, make_tensor
from nndiff import compare
from nndiff.reports.wording import title_leftovers
from nndiff.result import LeftoverReason, PartingReason, Rules


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


TOKENS = {"input_ids": torch.randint(0, 100, (2, 6), generator=torch.Generator().manual_seed(1))}


def told(result):
    (finding,) = [finding for finding in result.findings if finding.cause == "outputs-missing"]
    return finding


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_cache_that_one_side_does_not_return_is_named(backward):
    both = llama(), llama(use_cache=False)
    result = compare(*both, inputs=TOKENS, backward=backward)
    assert result.exit_code == 1
    assert all(pair.verdict.passed for pair in result.pairs)
    assert "only the reference returns output.past_key_values (4 tensors);" in told(result).evidence
    assert len(told(result).where) == 4  # keys and values of two layers; their gradients are no outputs
    assert "use_cache of the config is True against False" in told(result).evidence
    assert "--accept extra" in told(result).repair
    first = result.first_divergence
    assert (first.reason, first.missing_in) == (PartingReason.EXTRA_OUTPUT, "candidate")
    assert first.name == "(model):output.past_key_values.layers.0.keys"
    assert result.to_dict()["recording"]["final_output"]["extra"] == list(told(result).where)
    gradients = "4 gradients of these outputs; " if backward else ""
    title = f"4 returned as output by this side only; {gradients}"
    assert title in title_leftovers(result.leftovers, "reference")


def test_a_cache_that_only_the_candidate_returns_is_named():
    result = compare(llama(use_cache=False), llama(), inputs=TOKENS)
    assert "only the candidate returns output.past_key_values" in told(result).evidence


def test_what_the_call_asks_for_is_named(tmp_path):
    one = nndiff.record(llama(), TOKENS, path=tmp_path / "one")
    other = nndiff.record(
        llama(), {**TOKENS, "use_cache": False, "output_hidden_states": True}, path=tmp_path / "other"
    )
    findings = [each for each in compare(one, other).findings if each.cause == "outputs-missing"]
    assert "use_cache of the call is unset against False" in findings[0].evidence
    assert "only the candidate returns output.hidden_states" in findings[1].evidence
    assert "output_hidden_states of the call is unset against True" in findings[1].evidence


@pytest.mark.filterwarnings("ignore")
def test_checkpointing_that_turns_the_cache_off_is_named():
    other = llama()
    other.gradient_checkpointing_enable()
    result = compare(llama(), other, inputs=TOKENS, mode="train")
    assert "gradient_checkpointing of the model is False against True" in told(result).evidence


class Net(nn.Module):
    def __init__(self, return_hidden):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.head, self.return_hidden = nn.Linear(4, 4), nn.Linear(4, 2), return_hidden

    def forward(self, x):
        hidden = self.fc(x)
        return (self.head(hidden), hidden * 2) if self.return_hidden else self.head(hidden)


def test_an_output_without_a_name_is_told_by_its_place():
    result = compare(Net(True), Net(False), inputs=torch.randn(3, 4))
    assert (
        "only the reference returns output.1; return_hidden of the model is True against False" in told(result).evidence
    )


def test_where_both_return_the_same_nothing_is_said():
    for both in ((Net(True), Net(True)), (llama(), llama(return_dict=True))):
        inputs = TOKENS if hasattr(both[0], "config") else torch.randn(3, 4)
        assert not compare(*both, inputs=inputs).findings


def test_outputs_that_are_accepted_are_not_missing():
    extra = make_tensor([1.0], order=3, path="cache")
    leftover = make_leftover(extra, "reference", LeftoverReason.EXTRA_OUTPUT)
    final = make_pair(make_tensor([1.0]), make_tensor([2.0]))
    for accept, causes in (((), {"outputs-missing"}), (("extra",), set())):
        result = explain([final], [leftover], extra_tensors=([extra], []), rules=Rules(frozenset(accept)))
        assert {finding.cause for finding in result.findings} & {"outputs-missing"} == causes
