"""Record two trainings of the README's model: ours clips its gradients from the third epoch on."""

import bert
import torch
from train_ours import loss

import nndiff

BATCHES = 10  # of an epoch


def train(path: str, clip_from: int | None = None) -> None:
    """Train three epochs with SGD and record every step."""
    net = bert.model().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    batches = torch.randint(0, 1000, (BATCHES, *bert.inputs().shape), generator=torch.Generator().manual_seed(0))
    with nndiff.TrainingRecorder(path, model=net, optimizer=optimizer) as recorder:
        for epoch in range(3):
            for number, batch in enumerate(batches):
                optimizer.zero_grad()
                output = net(batch)
                value = loss(net, batch, output)
                value.backward()
                if clip_from is not None and epoch >= clip_from:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                accuracy = (output.argmax(1) == batch[:, 0] % 2).float().mean()
                recorder.step(epoch=epoch, batch=number, data=batch, scalars={"loss": value, "acc": accuracy})


if __name__ == "__main__":
    train("runs/ref")
    train("runs/ours", clip_from=2)
