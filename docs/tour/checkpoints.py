"""Write the checkpoints and training runs of the README."""

import torch
from bert import model
from torch import nn
from training import train


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


if __name__ == "__main__":
    write_converted()
    train("runs/ref", shuffle_seed=0)
    train("runs/ours", shuffle_seed=1)
