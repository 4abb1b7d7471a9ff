"""What NeMo and the port of examples/nest are both run on; each side imports this in its own environment."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch

import nndiff

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/nest"
FIXTURES = ROOT / "tests/fixtures"
FULL, RAGGED, LONG = (16000, 16000), (20123, 14007), (97000, 61234)
STEPS = 5


@dataclass(frozen=True)
class Case:
    """Name a run: a checkpoint, a mode, a seed at which something is masked, and the samples in each row."""

    name: str
    checkpoint: str
    mode: str
    seed: int
    lengths: tuple[int, ...] = RAGGED
    keep: str = "full"


CASES = (
    Case("eval", "tiny.nemo", "eval", 42, FULL),
    Case("train", "tiny.nemo", "train", 3, FULL),
    Case("ragged", "tiny.nemo", "eval", 3),
    Case("ragged_train", "tiny.nemo", "train", 5),
    Case("long", "tiny.nemo", "train", 1, LONG),  # longer than the positions that are made in advance
    Case("lightning", "tiny.ckpt", "train", 5),
    Case("trained", "trained.nemo", "train", 5),
    Case("two_books", "two_books.nemo", "train", 5),
    Case("squeezed", "squeezed.nemo", "train", 5),
    Case("large", "large.nemo", "train", 5, keep="digest"),
)


def make_inputs(seed, lengths):
    """Return noise and noisier noise, with what is beyond the end of a row set to zero."""
    generator = torch.Generator().manual_seed(seed)
    is_heard = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    clean = 0.1 * torch.randn(is_heard.shape, generator=generator) * is_heard
    noisy = clean + 0.01 * torch.randn(is_heard.shape, generator=generator) * is_heard
    return {
        "input_signal": clean,
        "input_signal_length": torch.tensor(lengths),
        "noisy_input_signal": noisy,
        "noisy_input_signal_length": torch.tensor(lengths),
        "apply_mask": True,
    }


def compute_loss(model, inputs, output):
    log_probs, lengths, masks, tokens = output
    return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


def record_case(model, case, folder):
    nndiff.record(
        model,
        make_inputs(case.seed, case.lengths),
        path=folder / f"{case.name}.nnrec",
        seed=case.seed,
        mode=case.mode,
        backward=True,
        loss=compute_loss,
        keep=case.keep,
    )


def train(model, folder):
    """Train a few steps with everything random in it, and record each."""
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    random.seed(7)
    torch.manual_seed(7)
    with nndiff.TrainingRecorder(folder, model=model, optimizer=optimizer, every=1) as recorder:
        for step in range(STEPS):
            inputs = make_inputs(step, (40000, 31000))
            batch = inputs["input_signal"].clone()  # NeMo adds dither to the tensors that it is given
            optimizer.zero_grad()
            loss = compute_loss(model, inputs, model(**inputs))
            loss.backward()
            optimizer.step()
            recorder.step(epoch=0, batch=step, data=batch, scalars={"loss": loss})


def read_screens():
    """Return (shell, command, the lines shown of its output) for every command on a screen of the README."""
    screens = []
    for block in re.findall(r"```console\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL):
        for line in block.splitlines():
            prompt = re.match(r"(?:\((\w+)\) )?\$ (.*)", line)
            if prompt:
                screens.append((prompt[1] or "port", prompt[2], []))
            elif line.strip() != "...":
                screens[-1][2].append(line)
    return screens
