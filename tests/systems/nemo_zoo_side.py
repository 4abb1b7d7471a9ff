"""What runs inside the NeMo environment for the zoo: save each model, tell the truth of it, record it.

Called as `python nemo_zoo_side.py OUT`; leaves for every name of the zoo `NAME.nemo`, truths `NAME-eval.npz` and
`NAME-train.npz`, recordings, and `facts.json` in OUT. The truth is computed by plain calls and autograd, with losses
put together by hand from the parts of the model.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shlex
import sys
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.parts.utils.asr_multispeaker_utils import get_ats_targets
from nemo.core.classes import ModelPT
from nemo_zoo import GENERAL, LABELS, PLANTED, ZOO, build

OUT = Path(sys.argv[1])
SAMPLES = 4000
SIZES = ("--batch-size", 2, "--seq-len", SAMPLES)


def command(*arguments):
    """Run one command as the shell would; return its status and what it said."""
    from nndiff.commands import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(each) for each in arguments])
    return {"status": status, "stdout": out.getvalue(), "stderr": err.getvalue()}


def seed_all(seed=42):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def labels(columns, classes):
    """Return the labels docs/nemo.md states."""
    return torch.tensor([[(row + column) % classes for column in range(columns)] for row in range(2)])


# what models without a waveform are given
GIVEN = {
    "HifiGanModel": {"spec": torch.linspace(-2, 2, 1600).sin().reshape(2, 40, 20)},
    "FastPitchModel": {"text": labels(8, 40) + 1, "durs": labels(8, 3) + 1, "pitch": labels(8, 5) / 4 - 0.5},
    "AlignerModel": {
        "spec": torch.linspace(-2, 2, 1200).sin().reshape(2, 20, 30),
        "spec_len": torch.tensor([30, 26]),
        "text": labels(8, 40) + 1,
        "text_len": torch.tensor([8, 5]),
    },
}


def inputs(model):
    """Return the inputs docs/nemo.md states."""
    kind = type(model).__name__
    if kind in GIVEN:
        return GIVEN[kind]
    signal = 0.1 * torch.randn((2, SAMPLES), generator=torch.Generator().manual_seed(42))
    length = torch.full((2,), SAMPLES)
    if kind == "SortformerEncLabelModel":
        return {"audio_signal": signal, "audio_signal_length": length}
    if kind == "AudioCodecModel":
        return {"audio": signal, "audio_len": length}
    if "AudioToAudio" in kind:
        return {"input_signal": signal.reshape(2, 1, SAMPLES), "input_length": length}
    made = {"input_signal": signal, "input_signal_length": length}
    if kind == "EncDecMultiTalkerRNNTBPEModel":
        turns = labels(SAMPLES // 160, 2).float()
        model.set_speaker_targets(turns, 1 - turns)
    if kind in ("EncDecMultiTaskModel", "EncDecTransfModelBPE"):
        tokens = labels(8, model.tokenizer.vocab_size)
        made |= {"transcript": tokens, "transcript_length": torch.tensor([8, 8])}
    if kind.endswith("BPEModelWithPrompt"):
        made["prompt_indices"] = torch.tensor([0, 0])
    if kind == "EncDecMaskedTokenPredModel":
        made["apply_mask"] = True
    return made


def ctc_loss(model, fed, output):
    log_probs, lengths = output[:2]
    columns = min(8, int(lengths.min()))
    classes = log_probs.shape[-1] - 1
    return model.loss(
        log_probs=log_probs,
        targets=labels(columns, classes),
        input_lengths=lengths,
        target_lengths=torch.tensor([columns] * 2),
    )


def rnnt_loss(model, fed, output):
    encoded, lengths = output
    columns = torch.tensor([min(8, int(lengths.min()))] * 2)
    classes = model.tokenizer.vocab_size if hasattr(model, "tokenizer") else len(LABELS)
    targets = labels(int(columns[0]), classes)
    decoded, target_lengths, _ = model.decoder(targets=targets, target_length=columns)
    if model.joint.fuse_loss_wer:
        return model.joint(
            encoder_outputs=encoded, decoder_outputs=decoded, encoder_lengths=lengths, transcripts=targets,
            transcript_lengths=columns, compute_wer=False,
        )[0]  # fmt: skip
    joint = model.joint(encoder_outputs=encoded, decoder_outputs=decoded)
    loss = model.loss(log_probs=joint, targets=targets, input_lengths=lengths, target_lengths=target_lengths)
    if not hasattr(model, "ctc_decoder"):
        return loss
    log_probs = model.ctc_decoder(encoder_output=encoded)
    other = model.ctc_loss(log_probs=log_probs, targets=targets, input_lengths=lengths, target_lengths=columns)
    return 0.7 * loss + 0.3 * other


def multitask_loss(model, fed, output):
    return model.loss(log_probs=output[0], labels=labels(9, model.tokenizer.vocab_size)[:, 1:], output_mask=None)


def attention_loss(model, fed, output):
    return model.transf_loss(log_probs=output[0], labels=labels(9, model.tokenizer.vocab_size)[:, 1:])


def regression_loss(model, fed, output):
    return model.loss(preds=output, labels=torch.tensor([0, 1]))


def class_loss(model, fed, output):
    logits = output if isinstance(output, torch.Tensor) else output[0]
    return model.loss(logits=logits, labels=torch.tensor([0, 1]))


def frame_loss(model, fed, output):
    frames = output.shape[1]
    return model.loss(logits=output, labels=labels(frames, 2), loss_mask=torch.ones(2, frames, dtype=torch.bool))


def speakers_loss(model, fed, output):
    _, frames, speakers = output.shape
    talks = [[[(row + one + two) % 2 for two in range(speakers)] for one in range(frames)] for row in range(2)]
    sorted_talks = get_ats_targets(torch.tensor(talks).float(), output, speaker_permutations=model.speaker_permutations)
    return model.loss(probs=output, labels=sorted_talks, target_lens=torch.tensor([frames] * 2))


def contrastive_loss(model, fed, output):
    model.loss.set_num_updates(0)
    return model.decoder_loss_step(*output, None, None)[0]


def masked_loss(model, fed, output):
    log_probs, lengths, masks, tokens = output
    return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


def signal_loss(model, fed, output):
    target = fed["input_signal"].flip(-1)
    return model.loss(estimate=output[0], target=target, input_length=fed["input_length"])


def flow_loss(model, fed, output):
    signal, length = fed["input_signal"], fed["input_length"]
    return model._compute_train_loss(input_signal=signal, target_signal=signal.flip(-1), input_length=length)


LOSSES = {
    "ctc": ctc_loss,
    "ctc_bpe": ctc_loss,
    "rnnt": rnnt_loss,
    "rnnt_fused": rnnt_loss,
    "rnnt_numba": rnnt_loss,
    "rnnt_bpe": rnnt_loss,
    "prompted": rnnt_loss,
    "hybrid": rnnt_loss,
    "hybrid_bpe": rnnt_loss,
    "hybrid_prompted": rnnt_loss,
    "talkers": rnnt_loss,
    "end": rnnt_loss,
    "hybrid_end": rnnt_loss,
    "attention": attention_loss,
    "multitask": multitask_loss,
    "speaker": class_loss,
    "classification": class_loss,
    "frames": frame_loss,
    "regression": regression_loss,
    "sortformer": speakers_loss,
    "contrastive": contrastive_loss,
    "masked_tokens": masked_loss,
    "enhancement": signal_loss,
    "predictive": signal_loss,
    "flow": flow_loss,
    "score": flow_loss,
    "bridge": flow_loss,
}


def tensors(output):
    """Return the tensors of an output as a recording names them."""
    if isinstance(output, torch.Tensor):
        return {"output": output}
    return {f"output.{place}": each for place, each in enumerate(output) if isinstance(each, torch.Tensor)}


def truth(name, mode):
    """Return what a run without nndiff gives: outputs, and where the model has a loss, that and the gradients."""
    model = ModelPT.restore_from(str(OUT / f"{name}.nemo"), map_location="cpu").train(mode == "train")
    fed = inputs(model)
    seed_all()
    output = model(**fed)
    found = tensors(output)
    if name in LOSSES:
        loss = LOSSES[name](model, fed, output)
        loss.backward()
        found |= {"loss": loss.reshape(())}
        found |= {f"grad:{key}": each.grad for key, each in model.named_parameters() if each.grad is not None}
    return {key: each.detach().numpy() for key, each in found.items()}


def plant(name):
    """Save the model with one weight of one layer a little larger."""
    model = ModelPT.restore_from(str(OUT / f"{name}.nemo"), map_location="cpu")
    weight = dict(model.named_parameters())[f"{PLANTED[name]}.weight"]
    with torch.no_grad():
        weight.view(-1)[0] += 0.05
    model.save_to(str(OUT / f"{name}-planted.nemo"))


def one(name):
    """Make everything there is of one model."""
    seed_all(0)
    build(name, OUT).save_to(str(OUT / f"{name}.nemo"))
    record = ("record", OUT / f"{name}.nemo", "--backward", *SIZES)
    if name not in (*PLANTED, *GENERAL):
        return {"forward": command(*record[:2], *SIZES, "-o", OUT / f"{name}.nnrec"),
                "backward": command(*record, "-o", OUT / f"{name}-backward.nnrec")}  # fmt: skip
    for mode in ("eval", "train"):
        np.savez(OUT / f"{name}-{mode}.npz", **truth(name, mode))
    if name in GENERAL:
        return general(name, record)
    plant(name)
    planted = ("record", OUT / f"{name}-planted.nemo", *record[2:])
    return {
        "eval": command(*record, "-o", OUT / f"{name}-eval.nnrec"),
        "again": command(*record, "-o", OUT / f"{name}-again.nnrec"),
        "train": command(*record, "--mode", "train", "-o", OUT / f"{name}-train.nnrec"),
        "planted": command(*planted, "-o", OUT / f"{name}-planted.nnrec"),
    }


def general(name, record):
    """Record a model without a loss to be had, in both modes, and where it takes no waveform, without inputs too."""
    given = GIVEN.get(GENERAL[name])
    fed = ()
    if given:
        np.savez(OUT / f"{name}-given.npz", **{key: each.numpy() for key, each in given.items()})
        fed = ("--input", OUT / f"{name}-given.npz")
    return {
        "forward": command(*record, "-o", OUT / f"{name}.nnrec"),
        "eval": command(*record, *fed, "-o", OUT / f"{name}-eval.nnrec"),
        "train": command(*record, *fed, "--mode", "train", "-o", OUT / f"{name}-train.nnrec"),
    }


WAY_OUT = """
from nemo.core.classes import ModelPT
import torch

def model():
    return ModelPT.restore_from({path!r}, map_location="cpu").eval()

def inputs():
    return dict(input_signal=0.1 * torch.randn(2, 4000), input_signal_length=torch.tensor([4000, 4000]))

def loss(model, inputs, output):
    encoded, lengths = output
    decoded, _, _ = model.decoder(targets=torch.tensor([[1, 2], [3, 4]]), target_length=torch.tensor([2, 2]))
    return model.joint(encoder_outputs=encoded, decoder_outputs=decoded).square().mean()
"""


def ways_out(told):
    """Do what the messages advise: a Python file with a loss, inputs that are drawn, labels that are given."""
    (OUT / "tdt.py").write_text(WAY_OUT.format(path=str(OUT / "tdt.nemo")))
    fed = inputs(None) | {"targets": labels(3, 4) + 1, "target_lengths": torch.tensor([3, 2])}
    np.savez(OUT / "labels.npz", **{name: each.numpy() for name, each in fed.items()})
    ragged = inputs(None) | {"input_signal_length": torch.tensor([SAMPLES, 2600])}
    np.savez(OUT / "ragged.npz", **{name: each.numpy() for name, each in ragged.items()})
    ctc, spec = OUT / "ctc.nemo", "spec=float32[2,40,20]"
    example = shlex.split(told.partition("for example ")[2].partition(" or from")[0])
    return {
        "example": command("record", OUT / "speaking.nemo", "--backward", *example, "-o", OUT / "example.nnrec"),
        "ragged": command("record", ctc, "--backward", "--input", OUT / "ragged.npz", "-o", OUT / "ragged.nnrec"),
        "file": command("record", OUT / "tdt.py", "--backward", "-o", OUT / "file.nnrec"),
        "spec": command("record", OUT / "vocoder.nemo", "--backward", "--input", spec, "-o", OUT / "spec.nnrec"),
        "labels": command("record", ctc, "--backward", "--input", OUT / "labels.npz", "-o", OUT / "labels.nnrec"),
    }


def main():
    torch.set_num_threads(1)  # models this small run no faster on two
    facts = {name: one(name) for name in ZOO}
    facts["ways_out"] = ways_out(facts["speaking"]["forward"]["stderr"])
    (OUT / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
