"""One training step of the README's model: the reference."""

from bert import inputs, model
from torch.nn.functional import cross_entropy

__all__ = ["inputs", "loss", "model"]


def loss(model, inputs, output):
    """Return the mean over the batch."""
    return cross_entropy(output, inputs[:, 0] % 2)
