"""A training of the README's model that records itself; from epoch 1 on it shuffles its data."""

import bert
import torch
from train_ours import loss

import nndiff

EPOCHS, SAMPLES, BATCH_SIZE = 3, 64, 8


def train(path: str, shuffle_seed: int) -> None:
    """Train three epochs with AdamW and record every step."""
    net = bert.model().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    samples = torch.randint(0, 1000, (SAMPLES, 16), generator=torch.Generator().manual_seed(0))
    shuffling = torch.Generator().manual_seed(shuffle_seed)
    with nndiff.TrainingRecorder(path, model=net, optimizer=optimizer) as recorder:
        for epoch in range(EPOCHS):
            order = torch.randperm(SAMPLES, generator=shuffling) if epoch else torch.arange(SAMPLES)
            for number, batch in enumerate(samples[order].split(BATCH_SIZE)):
                optimizer.zero_grad()
                output = net(batch)
                value = loss(net, batch, output)
                value.backward()
                optimizer.step()
                accuracy = (output.argmax(1) == batch[:, 0] % 2).float().mean()
                recorder.step(epoch=epoch, batch=number, data=batch, scalars={"loss": value, "acc": accuracy})
