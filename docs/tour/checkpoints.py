"""Write the checkpoints of the README."""

import torch
from bert import inputs, model
from torch import nn
from train_ours import loss


def write_converted() -> None:
    """Write bert.pt, and converted.pt with another prefix and transposed linear weights, as in JAX."""
    net = model()
    weights = net.state_dict()
    torch.save(weights, "bert.pt")
    converted = {}
    for name, weight in weights.items():
        is_linear = isinstance(net.get_submodule(name.rpartition(".")[0]), nn.Linear)
        converted[f"encoder.{name}"] = weight.T.contiguous() if is_linear and weight.ndim == 2 else weight
    torch.save(converted, "converted.pt")


def write_training_run(name: str, weight_decay: float) -> None:
    """Train two steps and write NAME-step1.ckpt and NAME-step2.ckpt."""
    net = model().train()
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=weight_decay)
    for step in (1, 2):
        batch = inputs()
        optimizer.zero_grad()
        loss(net, batch, net(batch)).backward()
        optimizer.step()
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{name}-step{step}.ckpt")


if __name__ == "__main__":
    write_converted()
    write_training_run("ours", weight_decay=0.01)
    write_training_run("theirs", weight_decay=0.1)
