"""What a new user met: each case as they typed it, with the answer they expected."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from helpers import nndiff as run_nndiff
from helpers import save
from nndiff.relations import layout, order, proof
from nndiff.result import NoteSlug, PartingReason
from nndiff.tensors import Slot
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 32, 4, 2, 2, 100
TOKENS = {"input_ids": torch.randint(0, 90, (2, 11), generator=torch.Generator().manual_seed(1))}


def spread(model):
    """Return a model whose parameters are not all alike, as those of a fresh one are."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


# -- GPT-2 against a nanoGPT-style port --------------------------------------------------------------------------------


class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, approximate):
        super().__init__()
        self.up, self.nonlin, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.nonlin(self.up(x)))


class GPTBlock(nn.Module):
    def __init__(self, approximate):
        super().__init__()
        self.norm_a, self.attention = nn.LayerNorm(WIDTH), CausalAttention()
        self.norm_b, self.ff = nn.LayerNorm(WIDTH), FeedForward(approximate)

    def forward(self, x):
        x = x + self.attention(self.norm_a(x))
        return x + self.ff(self.norm_b(x))


class NanoGPT(nn.Module):
    def __init__(self, approximate):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(GPTBlock(approximate) for _ in range(LAYERS))
        self.final, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.logits(self.final(x))


def gpt2_and_port(approximate="tanh"):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, use_cache=False,
        attn_implementation="eager", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    reference, port = spread(GPT2LMHeadModel(config)), NanoGPT(approximate).eval()
    body = reference.transformer
    copies = [
        (body.wte, port.tokens),
        (body.wpe, port.places),
        (body.ln_f, port.final),
        (reference.lm_head, port.logits),
    ]
    turned = []
    for block, ours in zip(body.h, port.blocks, strict=True):
        copies += [(block.ln_1, ours.norm_a), (block.ln_2, ours.norm_b)]
        turned += [(block.attn.c_attn, ours.attention.c_attn), (block.attn.c_proj, ours.attention.c_proj)]
        turned += [(block.mlp.c_fc, ours.ff.up), (block.mlp.c_proj, ours.ff.down)]
    for source, target in copies:
        target.load_state_dict(source.state_dict())
    for source, target in turned:
        with torch.no_grad():
            target.weight.copy_(source.weight.t())
            target.bias.copy_(source.bias)
    return reference, port


@pytest.mark.parametrize("options", [{}, {"backward": True, "params": True}], ids=["forward", "all"])
def test_1_an_exact_gelu_is_found_in_a_port_of_gpt2_and_the_transposes_are_not_blamed(options):
    reference, port = gpt2_and_port("none")
    found = nndiff.compare(reference, port, inputs=TOKENS, **options)
    assert found.verdict == "different"
    assert found.first_divergence.name == "transformer.h.0.mlp.act:output"
    blamed = [finding for finding in found.findings if not finding.harmless]
    assert not any("weight" in place for finding in blamed for place in finding.where)


@pytest.mark.parametrize("options", [{}, {"backward": True, "params": True}], ids=["forward", "all"])
def test_1_a_correct_port_of_gpt2_is_the_same(options):
    found = nndiff.compare(*gpt2_and_port(), inputs=TOKENS, **options)
    assert found.exit_code == 0, str(found)


# -- Llama ports with a wrong attention --------------------------------------------------------------------------------


class LlamaAttention(nn.Module):
    def __init__(self, fault):
        super().__init__()
        size = WIDTH // HEADS
        self.fault, self.size = fault, size
        self.wq, self.wo = nn.Linear(WIDTH, HEADS * size, bias=False), nn.Linear(HEADS * size, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, KV_HEADS * size, bias=False) for _ in range(2))

    def rotate(self, x):
        half = self.size // 2
        frequencies = 1.0 / 10000 ** (torch.arange(0, self.size, 2).float() / self.size)
        angles = torch.outer(torch.arange(x.shape[2]).float(), frequencies)
        if self.fault == "rope layout":
            cos, sin = angles.cos(), angles.sin()
            even, odd = x[..., ::2], x[..., 1::2]
            return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def forward(self, x):
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        query, key = self.rotate(query), self.rotate(key)
        groups = HEADS // KV_HEADS
        if self.fault == "gqa order":
            key, value = key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)
        else:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scale = 1.0 / self.size if self.fault == "scale" else 1.0 / math.sqrt(self.size)
        scores = query @ key.transpose(-1, -2) * scale
        if self.fault != "causal mask":
            scores = scores + torch.full(scores.shape[-2:], -math.inf).triu(1)
        return self.wo((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class LlamaFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH, 1e-6), LlamaAttention(fault)
        self.ffn_norm, self.feed_forward = nn.RMSNorm(WIDTH, 1e-6), LlamaFeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class LlamaPort(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock(fault) for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x = self.tok_embeddings(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def llama_and_port(fault=""):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=64, use_cache=False,
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    reference, port = spread(LlamaForCausalLM(config)), LlamaPort(fault).eval()
    body = reference.model
    copies = [(body.embed_tokens, port.tok_embeddings), (body.norm, port.norm), (reference.lm_head, port.output)]
    for layer, block in zip(body.layers, port.blocks, strict=True):
        attention, mine = layer.self_attn, block.attention
        copies += [(attention.q_proj, mine.wq), (attention.k_proj, mine.wk), (attention.v_proj, mine.wv)]
        copies += [(attention.o_proj, mine.wo), (layer.mlp.gate_proj, block.feed_forward.w1)]
        copies += [(layer.mlp.up_proj, block.feed_forward.w3), (layer.mlp.down_proj, block.feed_forward.w2)]
        copies += [(layer.input_layernorm, block.attention_norm), (layer.post_attention_layernorm, block.ffn_norm)]
    for source, target in copies:
        target.load_state_dict(source.state_dict())
    return reference, port


@pytest.mark.parametrize("fault", ["rope layout", "scale", "causal mask", "gqa order"])
def test_2_a_wrong_attention_in_a_port_of_llama_is_placed_at_the_attention(fault):
    found = nndiff.compare(*llama_and_port(fault), inputs=TOKENS)
    first = found.first_divergence
    assert found.verdict == "different"
    assert (first.module, first.candidate_module) == ("model.layers.0.self_attn", "blocks.0.attention")
    assert first.classes == ("LlamaAttention", "LlamaAttention")
    assert "test_new_user.py" in first.sources[1]
    headline = str(found).split("\n\n")[0] + str(found)[:1500]
    assert "model.layers.0.self_attn" in headline


def test_4_a_correct_port_of_llama_with_params_is_the_same_and_computed_buffers_are_a_note():
    found = nndiff.compare(*llama_and_port(), inputs=TOKENS, params=True, backward=True)
    assert found.exit_code == 0, str(found)
    alone = [leftover for leftover in found.leftovers if "inv_freq" in leftover.name]
    assert alone
    assert all(leftover.reason.value == "computed" for leftover in alone)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_3_tied_weights_stored_once_and_twice_are_the_same(tmp_path):
    random = np.random.default_rng(0)
    embedding, layer = random.normal(size=(6, 4)).astype(np.float32), random.normal(size=(4, 4)).astype(np.float32)
    once = save(tmp_path / "once.safetensors", {"embed.weight": embedding, "fc.weight": layer})
    twice = save(
        tmp_path / "twice.safetensors", {"embed.weight": embedding, "fc.weight": layer, "lm_head.weight": embedding}
    )
    for paths in ((once, twice), (twice, once)):
        found = nndiff.compare(*paths)
        assert (found.exit_code, found.only_reference, found.only_candidate) == (0, (), ())
        assert found.reference.elements == found.candidates[0].elements
        assert any(pair.related and pair.related.relation.kind.value == "tied" for pair in found.pairs)
    torch.save({"embed.weight": torch.tensor(embedding), "fc.weight": torch.tensor(layer)}, tmp_path / "a.pt")
    shared = torch.tensor(embedding)
    tied = {"embed.weight": shared, "fc.weight": torch.tensor(layer), "lm_head.weight": shared}
    torch.save(tied, tmp_path / "b.pt")
    assert nndiff.compare(tmp_path / "a.pt", tmp_path / "b.pt").exit_code == 0


def test_3_a_missing_norm_is_not_taken_for_a_tied_one(tmp_path):
    ones = {"a.weight": np.ones(8, np.float32), "b.weight": np.ones(8, np.float32), "w": np.arange(8, dtype=np.float32)}
    found = nndiff.compare(ones, {name: array for name, array in ones.items() if name != "b.weight"})
    assert (found.exit_code, found.only_reference) == (1, ("b.weight",))


def test_3_a_changed_copy_is_a_difference():
    weight = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    changed = weight.copy()
    changed[2, 1] += 1e-6
    found = nndiff.compare({"embed": weight}, {"embed": weight, "head": changed})
    assert (found.exit_code, found.only_candidate) == (1, ("head",))


def test_5_two_tensors_are_not_paired_because_each_is_the_only_one(tmp_path):
    weight, bias = {"encoder.weight": np.ones(3, np.float32)}, {"decoder.bias": np.ones(3, np.float32)}
    found = nndiff.compare(weight, bias)
    assert (found.pairs, found.exit_code) == ((), 2)
    np.save(tmp_path / "a.npy", np.ones(3))
    np.save(tmp_path / "b.npy", np.ones(3))
    assert nndiff.compare(tmp_path / "a.npy", tmp_path / "b.npy").exit_code == 0


# -- outputs, masks, sketches ------------------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, cache):
        super().__init__()
        self.cache, self.fc = cache, nn.Linear(4, 3)

    def forward(self, x):
        logits = self.fc(x)
        return {"logits": logits, "past_key_values": (x * 2, x * 3)} if self.cache else {"logits": logits}


def test_6_an_output_that_only_one_side_returns_is_said_as_what_it_is():
    torch.manual_seed(0)
    reference, candidate = Returns(True).eval(), Returns(False).eval()
    candidate.load_state_dict(reference.state_dict())
    with torch.no_grad():
        candidate.fc.bias.add_(1e-7)
    inputs = torch.randn(2, 4)
    found = nndiff.compare(reference, candidate, inputs=inputs)
    text = str(found)
    assert found.exit_code == 1
    assert "does not match" not in text
    assert "past_key_values" in text
    assert nndiff.compare(reference, candidate, inputs=inputs, judge="outputs").exit_code == 0
    assert nndiff.compare(reference, candidate, inputs=inputs, accept="extra").exit_code == 0


class TakesMask(nn.Module):
    def __init__(self, additive):
        super().__init__()
        self.additive, self.inner = additive, MaskedMean(additive)

    def forward(self, x, mask):
        return self.inner(x, torch.zeros(mask.shape).masked_fill(~mask, -1e9) if self.additive else mask)


class MaskedMean(nn.Module):
    def __init__(self, additive):
        super().__init__()
        self.additive = additive

    def forward(self, x, mask):
        scores = torch.zeros(mask.shape) + mask if self.additive else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
        return (scores.softmax(-1).unsqueeze(-1) * x).sum(1)


def test_8_a_boolean_and_an_additive_mask_are_the_same_mask():
    inputs = (torch.randn(2, 5, 3), torch.tensor([[True] * 5, [True, True, False, False, False]]))
    found = nndiff.compare(TakesMask(False), TakesMask(True), inputs=inputs, inputs_kept=True)
    assert found.exit_code == 0
    masks = [pair for pair in found.pairs if pair.name.startswith("inner:input.1")]
    assert masks
    assert all(pair.verdict.passed and pair.related.relation.kind.value == "mask" for pair in masks)


def test_8_the_index_of_a_sketched_tensor_is_an_index_into_the_tensor(tmp_path):
    model = nn.Linear(64, 1024)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.bias.add_(1.0)
    inputs = torch.randn(128, 64)
    recordings = []
    for number, each in enumerate((model, other)):
        recordings.append(nndiff.record(each, inputs, path=tmp_path / str(number), keep="sketch"))
    found = nndiff.compare(*recordings)
    index = found.pairs[-1].metrics.max_abs_index
    if index is not None:
        values = [each(inputs).detach()[index] for each in (model, other)]
        assert abs(float(values[1] - values[0])) == pytest.approx(found.pairs[-1].metrics.max_abs, rel=1e-5)


# -- reports and Python ------------------------------------------------------------------------------------------------


def broken_pair():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    candidate = copy.deepcopy(reference)
    candidate[3].eps = 0.1
    return reference, candidate


@pytest.mark.parametrize("report", ["junit", "md", "csv", "html", "json", "terminal"])
def test_9_every_report_names_the_first_divergence_and_the_cause(report, tmp_path):
    found = nndiff.compare(*broken_pair(), inputs=torch.randn(3, 4))
    assert found.first_divergence.name == "3:output"
    from nndiff.reports import write_report

    write_report(found, f"{report}:{tmp_path / 'out'}")
    text = (tmp_path / "out").read_text()
    assert "3:output" in text
    assert "eps" in text


def test_10_settings_of_the_same_meaning_under_other_names_are_compared():
    class Norm(nn.Module):
        def __init__(self, eps):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(4)), eps

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    reference, candidate = nn.Sequential(nn.RMSNorm(4, eps=1e-6)), nn.Sequential(Norm(0.1))
    found = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4))
    assert found.exit_code == 1
    assert found.first_divergence.settings == {"eps / variance_epsilon": (1e-6, 0.1)}


def test_10_a_file_report_does_not_silence_the_terminal(tmp_path):
    a = save(tmp_path / "a.safetensors", {"w": np.ones(3, np.float32)})
    done = run_nndiff("diff", a, a, "--report", f"html:{tmp_path / 'x.html'}")
    assert done.returncode == 0
    assert "identical" in done.stdout
    assert "wrote" in done.stdout + done.stderr


def test_10_the_match_rate_counts_tensors_without_a_partner():
    found = nndiff.compare({"a": np.ones(3), "b": np.ones(3)}, {"a": np.ones(3)})
    assert found.totals.match_rate == 0.5


def test_11_a_result_prints_its_report_and_models_go_by_their_class():
    reference, candidate = broken_pair()
    found = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4))
    assert "3:output" in str(found)
    assert found.reference.label == "<Sequential>"
    assert "<html" in found._repr_html_().lower() or "<iframe" in found._repr_html_().lower()


def test_11_assert_same_says_it_all_in_the_first_line():
    reference, candidate = broken_pair()
    with pytest.raises(AssertionError) as caught:
        nndiff.assert_same(reference, candidate, torch.randn(3, 4), msg="after the port")
    first_line = str(caught.value).splitlines()[0]
    assert first_line.startswith("after the port: ")
    assert "different" in first_line
    assert "3:output" in first_line


def test_11_assert_same_hides_its_frames_from_pytest(tmp_path):
    code = "import nndiff, numpy as np\ndef test_it():\n    nndiff.assert_same({'a': np.ones(2)}, {'a': np.zeros(2)})\n"
    (tmp_path / "test_it.py").write_text(code)
    command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    import sys

    command[0] = sys.executable
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ))
    assert "api.py" not in done.stdout


def test_11_tolerances_per_pattern(tmp_path):
    reference = {"head.weight": np.zeros(3, np.float32), "body.weight": np.zeros(3, np.float32)}
    candidate = {"head.weight": np.full(3, 5e-4, np.float32), "body.weight": np.zeros(3, np.float32)}
    assert nndiff.compare(reference, candidate).exit_code == 1
    assert nndiff.compare(reference, candidate, atol={"head.*": 1e-3}).exit_code == 0
    assert nndiff.compare(reference, candidate, atol={"body.*": 1e-3}).exit_code == 1
    a, b = save(tmp_path / "a.safetensors", reference), save(tmp_path / "b.safetensors", candidate)
    assert run_nndiff("diff", a, b, "--atol", "head.*=1e-3").returncode == 0
    assert run_nndiff("diff", a, b, "--atol", "1e-6", "--atol", "head.*=1e-3").returncode == 0
    assert run_nndiff("diff", a, b, "--atol", "nonsense").returncode == 2


def test_11_several_batches_in_one_call():
    reference, candidate = broken_pair()
    candidate[3].eps = reference[3].eps

    class Sometimes(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + (x.sum() > 0).float()

    batches = [-torch.ones(2, 4), torch.ones(2, 4)]
    same, wrong = nn.Sequential(reference), Sometimes(reference)
    assert nndiff.compare(same, nn.Sequential(candidate), inputs=batches).exit_code == 0
    assert nndiff.compare(reference, wrong, inputs=batches[:1]).exit_code == 0
    assert nndiff.compare(reference, wrong, inputs=batches).exit_code == 1


def test_11_a_strict_dtype():
    arrays = {"a": np.ones(3, np.float32)}, {"a": np.ones(3, np.float64)}
    assert nndiff.compare(*arrays).exit_code == 0
    assert nndiff.compare(*arrays, strict_dtype=True).exit_code == 1


def test_accepting_a_layout_is_asked_for_in_checkpoints(tmp_path):
    weight = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    a, b = save(tmp_path / "a.safetensors", {"w": weight}), save(tmp_path / "b.safetensors", {"w": weight.T})
    plain = run_nndiff("diff", a, b)
    assert plain.returncode == 1
    assert "permute" in plain.stdout
    assert "--accept layout" in plain.stdout
    accepted = run_nndiff("diff", a, b, "--accept", "layout", "--report", "json")
    assert accepted.returncode == 0
    data = json.loads(accepted.stdout)
    assert data["pairs"][0]["relation"]["kind"] == "layout"
    assert data["pairs"][0]["metrics"]["max_abs"] == 0


def test_13_nothing_compared_is_said_on_stderr(tmp_path):
    a = save(tmp_path / "a.safetensors", {"a": np.ones(3, np.float32)})
    b = save(tmp_path / "b.safetensors", {"b": np.ones(4, np.float32)})
    done = run_nndiff("diff", a, b)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


# -- what a second new user met ----------------------------------------------------------------------------------------


def test_gradients_are_measured_in_the_layout_of_their_weights():
    reference, port = gpt2_and_port("none")
    found = nndiff.compare(reference, port, inputs=TOKENS, backward=True, params=True)
    gradients = {pair.name: pair for pair in found.pairs if pair.slot is Slot.PARAM_GRAD}
    square = gradients["transformer.h.0.attn.c_proj.weight:param_grad"]
    assert not square.verdict.passed
    assert square.metrics.max_abs < 0.05 * square.stored.max_abs  # transposed they nearly agree, as stored they do not
    assert not any(pair.verdict is Verdict.SHAPE for pair in found.pairs)
    assert "shapes-differ" not in [finding.cause for finding in found.findings]
    harmless = next(finding for finding in found.findings if finding.cause == "permuted")
    assert not any(place.endswith("param_grad") for place in harmless.where)  # those do not agree


def test_a_proven_layout_holds_at_a_looser_tolerance_too():
    found = nndiff.compare(*gpt2_and_port(), inputs=TOKENS)
    places = next(pair for pair in found.pairs if pair.name == "transformer.wpe:output")
    assert places.related is not None
    for atol in (1.0, 100.0):  # far above all elements, so that any order of them agrees
        looser = found.judged_at(Tolerance(atol, 0.0, "given"))
        assert looser.exit_code == nndiff.compare(*gpt2_and_port(), inputs=TOKENS, atol=atol, rtol=0.0).exit_code == 0
        assert not any(note.slug is NoteSlug.COMPARE_AGAIN for note in looser.notes)


@pytest.mark.parametrize("is_candidate", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_weight_norm_whose_direction_is_the_weight_itself_is_the_same(is_candidate, backward):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    normed = copy.deepcopy(plain)
    nn.utils.parametrizations.weight_norm(normed[2])  # v is the weight, g its norm
    options = {"inputs": torch.randn(3, 6), "params": True, "backward": backward}
    sides = (plain, normed) if is_candidate else (normed, plain)
    assert nndiff.compare(*sides, **options).exit_code == 0
    with torch.no_grad():
        normed[2].parametrizations.weight.original0.mul_(1.01)
    assert nndiff.compare(*sides, **options).exit_code == 1


class UsesWeights(nn.Module):
    """Use the weights of a convolution without calling it, as Mamba does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.conv = nn.Linear(8, 8), nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x):
        return F.conv1d(self.before(x), self.conv.weight, self.conv.bias, padding=1)


@pytest.mark.parametrize("backward", [False, True])
def test_weights_of_a_module_that_is_never_called_are_not_said_to_be_equal(backward):
    reference, candidate = nn.Sequential(UsesWeights()), nn.Sequential(UsesWeights())
    with torch.no_grad():
        candidate[0].conv.weight.mul_(1.1)
    found = nndiff.compare(reference, candidate, inputs=torch.randn(2, 4, 8), backward=backward)
    assert found.first_divergence.name == "0:output"
    assert found.first_divergence.weights.differing == ("0.conv.weight",)
    (finding,) = [finding for finding in found.findings if finding.cause == "weights-differ"]
    assert finding.confidence == 0.5


def test_a_strict_dtype_is_said_to_be_the_only_difference():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
    found = nndiff.compare(reference, copy.deepcopy(reference).double(), inputs=torch.arange(6), strict_dtype=True)
    assert found.exit_code == 1
    assert found.first_divergence.reason is PartingReason.DTYPE
    assert [finding.cause for finding in found.findings][:1] == ["dtypes-differ"]
    assert "rounding" not in {finding.cause for finding in found.findings}
    assert "of different dtypes" in str(found)


def test_a_tolerance_for_a_pattern_that_matches_nothing_is_noted():
    arrays = {"head.weight": np.zeros(3, np.float32)}
    slugs = [note.slug for note in nndiff.compare(arrays, arrays, atol={"haed.*": 1e-3}).notes]
    assert slugs == [NoteSlug.RULE_WITHOUT_EFFECT]
    assert nndiff.compare(arrays, arrays, atol={"head.*": 1e-3}).notes == ()


def test_an_identity_in_train_mode_is_not_blamed():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    candidate = nn.Sequential(copy.deepcopy(reference[0]), nn.Identity())  # the model is in eval mode, this is not
    reference[1].running_mean += 1
    candidate.training = candidate[0].training = False
    found = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4))
    assert found.exit_code == 1
    assert "train-mode" not in [finding.cause for finding in found.findings]
    candidate[1] = copy.deepcopy(reference[1]).train()
    found = nndiff.compare(reference, candidate, inputs=torch.randn(3, 4))
    assert "train-mode" in [finding.cause for finding in found.findings]


def test_one_remark_for_all_rows_is_printed_once(tmp_path):
    names = [f"encoder.layers.{number}.attention.output.dense.weight" for number in range(4)]
    weights = {name: np.random.default_rng(len(name)).normal(size=(6, 4)) for name in names}
    turned = {name: weight.T.copy() for name, weight in weights.items()}
    a, b = save(tmp_path / "a.safetensors", weights), save(tmp_path / "b.safetensors", turned)
    printed = run_nndiff("diff", a, b).stdout
    assert printed.count("--accept layout") == 2  # the finding says it, and the remark
    assert "transposed or reshaped?" not in printed  # it is proven
    turned[names[3]] = turned[names[3]] + 1
    printed = run_nndiff("diff", a, save(tmp_path / "c.safetensors", turned)).stdout
    assert printed.count("--accept layout") == 4


def test_tensors_too_large_to_look_for_a_relation_are_noted(monkeypatch):
    weight = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    sides = {"w": weight}, {"w": weight.T.copy()}
    assert nndiff.compare(*sides, accept="layout").exit_code == 0
    for module in (proof, layout, order):
        monkeypatch.setattr(module, "LARGEST_MOVED", 23)
    found = nndiff.compare(*sides, accept="layout")
    assert found.exit_code == 1
    assert found.pairs[0].has_note(NoteSlug.NOT_SEARCHED)


def test_what_was_not_compared_is_not_said_to_differ(tmp_path):
    reference, candidate = broken_pair()
    for name, model in (("a", reference), ("b", candidate)):
        nndiff.record(model, torch.ones(2, 4), path=tmp_path / name, keep="digest")
    printed = str(nndiff.compare(tmp_path / "a", tmp_path / "b"))
    assert "the output was not compared" in printed
    assert "output differs" not in printed


class NormOfNorm(nn.Module):
    """Hold two norms that nothing but their places tells apart, under any names."""

    def __init__(self, names, eps):
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        layers = (nn.Linear(8, 8), nn.LayerNorm(8, eps), nn.LayerNorm(8), nn.LayerNorm(8))
        for name, layer in zip(names, layers, strict=True):
            self.add_module(name, layer)

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x


@pytest.mark.parametrize("names", [("a", "b", "c", "d"), ("order", "part", "guess", "name")])
def test_a_norm_of_a_norm_is_not_taken_for_the_first_one(names):
    reference, x = NormOfNorm(("a", "b", "c", "d"), eps=1e-5), torch.randn(3, 8)
    assert nndiff.compare(reference, NormOfNorm(names, eps=1e-5), inputs=x).exit_code == 0
    found = nndiff.compare(reference, NormOfNorm(names, eps=0.3), inputs=x, atol=1e-4)
    assert found.exit_code == 1  # though the norms after it make up for it, so that the outputs agree
    assert found.first_divergence.name == "b:output"
    assert found.pairs[-1].verdict.passed
