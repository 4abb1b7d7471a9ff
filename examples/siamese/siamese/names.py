"""What the reference calls the parameters of our model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from nndiff.align import Rename
from nndiff.align.by_rule import apply_renames

# as for nndiff diff --rename: applied one after the other
RENAMES = (
    r"^backbone\.conv1\.=>trunk.embedder.embedder.convolution.",
    r"^backbone\.bn1\.=>trunk.embedder.embedder.normalization.",
    r"^backbone\.layer1\.(\d+)\.=>trunk.encoder.stages.0.layers.\1.",
    r"^backbone\.layer2\.(\d+)\.=>trunk.encoder.stages.1.layers.\1.",
    r"^backbone\.layer3\.(\d+)\.=>trunk.encoder.stages.2.layers.\1.",
    r"^backbone\.layer4\.(\d+)\.=>trunk.encoder.stages.3.layers.\1.",
    r"\.conv1\.=>.layer.0.convolution.",
    r"\.conv2\.=>.layer.1.convolution.",
    r"\.conv3\.=>.layer.2.convolution.",
    r"\.bn1\.=>.layer.0.normalization.",
    r"\.bn2\.=>.layer.1.normalization.",
    r"\.bn3\.=>.layer.2.normalization.",
    r"\.downsample\.0\.=>.shortcut.convolution.",
    r"\.downsample\.1\.=>.shortcut.normalization.",
    r"^mlp\.0\.=>fc1.",
    r"^mlp\.2\.=>fc2.",
)


def rename_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of our model by the names of the reference."""
    renames = [Rename.parse(rule) for rule in RENAMES]
    return {apply_renames(name, renames): tensor for name, tensor in weights.items()}
