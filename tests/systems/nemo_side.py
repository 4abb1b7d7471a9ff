"""What runs inside the NeMo environment, once per test session: make models, tell the truth, record.

Called as `python nemo_side.py OUT FIXTURES`; leaves recordings, `*.npz` truths and `facts.json` in OUT. The truth
is computed by plain calls and autograd; only the commands at the end know nndiff.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from nemo.collections.asr.models import EncDecCTCModel, EncDecDenoiseMaskedTokenPredModel
from nemo.core.classes import ModelPT
from omegaconf import OmegaConf

OUT, FIXTURES = Path(sys.argv[1]), Path(sys.argv[2])
# With one second of audio NeMo's masking hides nothing for one seed in three: these hide something.
SEEDS = {"eval": 42, "train": 3}


def config():
    """Return the config of the tiny NEST."""
    with tarfile.open(FIXTURES / "tiny_nest.nemo") as archive:
        name = next(name for name in archive.getnames() if name.endswith("model_config.yaml"))
        return yaml.safe_load(archive.extractfile(name))


def copied(model):
    """Return another model of the same weights; NeMo's cannot be deep-copied."""
    other = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.create(config()), trainer=None)
    other.load_state_dict(model.state_dict())
    return other


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def waveform(seed, samples=16000, lengths=(16000, 16000)):
    """Return the inputs as docs/nemo.md states them."""
    generator = torch.Generator().manual_seed(seed)
    clean = 0.1 * torch.randn(2, samples, generator=generator)
    noisy = clean + 0.01 * torch.randn(2, samples, generator=generator)
    for row, length in enumerate(lengths):
        clean[row, length:] = noisy[row, length:] = 0
    return {
        "input_signal": clean,
        "input_signal_length": torch.tensor(lengths),
        "noisy_input_signal": noisy,
        "noisy_input_signal_length": torch.tensor(lengths),
        "apply_mask": True,
    }


def loss_of(model, output):
    log_probs, lengths, masks, tokens = output
    return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


def plain_run(model, mode, seed, inputs=None):
    """Return what a run without nndiff gives: outputs, loss, gradients, buffers."""
    model = copied(model).train(mode == "train")
    fed = {name: each.clone() if hasattr(each, "clone") else each for name, each in (inputs or waveform(seed)).items()}
    seed_all(seed)
    output = model(**fed)
    loss = loss_of(model, output)
    loss.backward()
    found = {f"output.{number}": each for number, each in enumerate(output)} | {"loss": loss}
    found |= {f"grad:{name}": each.grad for name, each in model.named_parameters() if each.grad is not None}
    found |= {f"buffer:{name}": each for name, each in model.named_buffers()}
    return {name: each.detach().numpy() for name, each in found.items()}


def two_steps(model):
    """Return a copy trained for two steps."""
    model = copied(model).train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    for seed in (3, 4):
        seed_all(seed)
        optimizer.zero_grad()
        loss_of(model, model(**waveform(seed))).backward()
        optimizer.step()
    return model


def tiny_ctc():
    """Return a small model of another kind, with labels and without a mask."""
    nest = config()
    vocabulary = list("abcdefgh ")
    decoder = {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
        "feat_in": 64,
        "num_classes": len(vocabulary),
        "vocabulary": vocabulary,
    }
    kept = {key: nest[key] for key in ("sample_rate", "preprocessor", "encoder")}
    return EncDecCTCModel(cfg=OmegaConf.create({**kept, "labels": vocabulary, "decoder": decoder}), trainer=None)


def by_hand():
    """Return the model of the Lightning checkpoint, loaded the usual way."""
    model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.create(config()), trainer=None)
    held = torch.load(FIXTURES / "tiny_nest_pl.ckpt", map_location="cpu", weights_only=False)
    model.load_state_dict(held["state_dict"], strict=True)
    return model


def command(*arguments):
    """Run one command as the shell would; return its status, what it wrote to stdout, and how long it took."""
    from nndiff.commands import main

    out, err = io.StringIO(), io.StringIO()
    started = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(each) for each in arguments])
    seconds = time.perf_counter() - started
    return {"status": status, "stdout": out.getvalue(), "stderr": err.getvalue(), "seconds": seconds}


def save_truth(nest, later):
    for mode, seed in SEEDS.items():
        np.savez(OUT / f"{mode}.npz", **plain_run(nest, mode, seed))
    np.savez(OUT / "later.npz", **plain_run(later, "eval", SEEDS["eval"]))
    ragged = waveform(42, lengths=(16000, 12000))
    np.savez(OUT / "ragged.npz", **plain_run(nest, "eval", 42, ragged))
    np.savez(OUT / "ragged_inputs.npz", **{name: np.asarray(each) for name, each in ragged.items()})
    np.savez(OUT / "ckpt.npz", **plain_run(by_hand(), "eval", SEEDS["eval"]))


def save_inputs(nest):
    """Save inputs with a mask of our own, and what the model gives when its masking is replaced by that mask."""
    mask = torch.zeros(2, 112)
    mask[0, 8:48] = mask[1, 30:70] = 1
    inputs = waveform(42)
    np.savez(OUT / "pinned_inputs.npz", masks=mask.numpy(), **{name: np.asarray(each) for name, each in inputs.items()})
    model = copied(nest)

    def forward(input_feats, input_lengths):
        whole = mask.unsqueeze(1).expand_as(input_feats)
        return torch.where(whole > 0, model.mask_processor.mask_embedding.view(1, -1, 1), input_feats), whole

    model.mask_processor.forward = forward
    model.eval()
    output = model(**inputs)
    np.savez(OUT / "pinned.npz", **{f"output.{number}": each.detach().numpy() for number, each in enumerate(output)})


def mask_of_a_recording():
    """Run the lines of docs/nemo.md that take the mask out of a recording, where that recording is."""
    page = (FIXTURES.parents[1] / "docs/nemo.md").read_text()
    lines = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "open_recording" in block)
    (OUT / "nemo.nnrec").symlink_to("eval.nnrec")
    with contextlib.chdir(OUT):
        exec(lines, {})


def record_all():
    """Run every command under test."""
    record = ("record", OUT / "tiny.nemo", "--backward")
    first = command(*record, "-o", OUT / "eval.nnrec")
    mask_of_a_recording()
    train = ("--mode", "train", "--seed", SEEDS["train"])
    checkpoint = FIXTURES / "tiny_nest_pl.ckpt"
    return {
        "eval": first,
        "again": command(*record, "-o", OUT / "again.nnrec"),
        "inputs": command(*record, "-o", OUT / "inputs.nnrec", "--inputs"),
        "train": command(*record, "-o", OUT / "train.nnrec", *train),
        "train_again": command(*record, "-o", OUT / "train_again.nnrec", *train),
        "nothing_masked": command(*record, "-o", OUT / "nothing_masked.nnrec", "--mode", "train"),
        "later": command("record", OUT / "later.nemo", "--backward", "-o", OUT / "later.nnrec"),
        "ragged": command(*record, "-o", OUT / "ragged.nnrec", "--input", OUT / "ragged_inputs.npz"),
        "pinned": command(*record, "-o", OUT / "pinned.nnrec", "--input", OUT / "pinned_inputs.npz"),
        "pinned_again": command(*record, "-o", OUT / "pinned_again.nnrec", "--input", OUT / "inputs.npz", "--seed", 0),
        "long": command(*record, "-o", OUT / "long.nnrec", "--batch-size", 3, "--seq-len", 24000, "--leaves"),
        "ctc": command("record", OUT / "ctc.nemo", "--backward", "-o", OUT / "ctc.nnrec"),
        "ckpt": command("record", checkpoint, "--backward", "-o", OUT / "ckpt.nnrec"),
        "ckpt_config": command(
            "record", checkpoint, "--config", OUT / "model.yaml", "--backward", "-o", OUT / "ckpt_config.nnrec"
        ),
        "no_class": command("record", checkpoint, "--config", OUT / "no_class.yaml", "-o", OUT / "no_class.nnrec"),
        "wrong": command("record", checkpoint, "--config", OUT / "wrong.yaml", "-o", OUT / "wrong.nnrec"),
        "broken": command("record", OUT / "broken.nemo", "-o", OUT / "broken.nnrec"),
    }


def write_configs():
    """Write what a user of --config has: a training config with the model under a key of its own."""
    model = config()
    data = {"manifest_filepath": "???", "sample_rate": "${model.sample_rate}", "batch_size": "${nowhere.to.be.found}"}
    training = {"name": "nest", "model": {**model, "train_ds": data, "optim": {"name": "adamw"}}, "trainer": {}}
    (OUT / "model.yaml").write_text(yaml.safe_dump(training))
    wrong = {**model, "encoder": {**model["encoder"], "d_model": 32}, "decoder": {**model["decoder"], "feat_in": 32}}
    (OUT / "no_class.yaml").write_text(yaml.safe_dump({**model, "target": "elsewhere.Model"}))
    (OUT / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    (OUT / "broken.nemo").write_bytes((OUT / "tiny.nemo").read_bytes()[:20_000])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    nest = ModelPT.restore_from(str(FIXTURES / "tiny_nest.nemo"), map_location="cpu")
    later = two_steps(nest)
    for model, name in ((nest, "tiny"), (later, "later"), (tiny_ctc(), "ctc")):
        model.save_to(str(OUT / f"{name}.nemo"))
    write_configs()
    save_truth(ModelPT.restore_from(str(OUT / "tiny.nemo"), map_location="cpu"), later)
    save_inputs(nest)
    facts = {
        "parameters": sum(each.numel() for each in nest.parameters()),
        "named_parameters": [name for name, _ in nest.named_parameters()],
        "commands": record_all(),
    }
    (OUT / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
