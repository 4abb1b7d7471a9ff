"""The same training step in the other code base: the loss is a sum, so every gradient is twice as large."""

from bert import inputs, model
from torch.nn.functional import cross_entropy

__all__ = ["inputs", "loss", "model"]


def loss(model, inputs, output):
    """Return the sum over the batch."""
    return cross_entropy(output, inputs[:, 0] % 2, reduction="sum")
