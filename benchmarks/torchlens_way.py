"""TorchLens on the model of bench_recording.py, beside a bare forward pass: prints [[wall, cpu], [wall, cpu]]."""

from __future__ import annotations

import json

import torch
import torchlens

from bench_recording import BATCH, LENGTH, bare, model
from timing import in_turns


def main() -> None:
    net = model()
    inputs = {"input_ids": torch.randint(0, 1000, (BATCH, LENGTH))}
    alone = bare(net, inputs)
    (forward,) = in_turns(alone, rounds=3)  # before TorchLens has wrapped anything

    def traced() -> object:
        with torch.no_grad():
            return torchlens.trace(net, inputs["input_ids"])  # of version 2; input_ids is the first argument

    (theirs,) = in_turns(traced, rounds=2)
    print(json.dumps([[theirs, theirs.cpu], [forward, forward.cpu]]))


if __name__ == "__main__":
    main()
