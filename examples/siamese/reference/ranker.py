"""The reference's network: transformers' ResNet as the trunk, and two linear layers on the difference of features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel


class PhotoRanker(nn.Module):
    """Give the log-probabilities that the left or the right photo of a pair is the better one."""

    def __init__(self, depths: Sequence[int], base_channels: int, hidden: int) -> None:
        super().__init__()
        channels = [base_channels * 4 * 2**stage for stage in range(len(depths))]
        config = ResNetConfig(
            embedding_size=base_channels, hidden_sizes=channels, depths=list(depths), layer_type="bottleneck"
        )
        self.trunk = ResNetModel(config)
        self.fc1 = nn.Linear(channels[-1], hidden)
        self.fc2 = nn.Linear(hidden, 2)

    def embed(self, photos: Tensor) -> Tensor:
        """Return the pooled features of photos."""
        features: Tensor = self.trunk(pixel_values=photos).pooler_output
        return features.flatten(start_dim=1)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        """Return log-probabilities [pairs, 2]."""
        left, right = (self.embed(photos) for photos in pair)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(left - right))), dim=-1)
