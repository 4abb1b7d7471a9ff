"""The ranker: one ResNet for both photos, and an MLP that judges the difference of their features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from siamese.settings import Settings

EXPANSION = 4  # a block gives this many times the channels it works with


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, EXPANSION * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(EXPANSION * width)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels != EXPANSION * width:
            projection = nn.Conv2d(channels, EXPANSION * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(EXPANSION * width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features after the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A ResNet without its classifier, with the names of torchvision."""

    def __init__(self, depths: list[int], width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.features = width
        for stage, depth in enumerate(depths):
            blocks = []
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Bottleneck(self.features, width << stage, stride))
                self.features = EXPANSION * width << stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, photos: Tensor) -> Tensor:
        """Return a vector of features for each photo."""
        x: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(photos))))
        for name, layer in self.named_children():
            if name.startswith("layer"):
                x = layer(x)
        return x.mean((2, 3))


class SiameseRanker(nn.Module):
    """Score which of two photos is better."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.backbone = ResNet(settings.depths, settings.width)
        self.mlp = nn.Sequential(
            nn.Linear(self.backbone.features, settings.mlp_width), nn.ReLU(), nn.Linear(settings.mlp_width, 2)
        )
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = settings.batch_norm_momentum

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return two logits for each pair: the first is better, the second is better."""
        logits: Tensor = self.mlp(self.backbone(first) - self.backbone(second))
        return logits


def make_ranker(settings: Settings) -> SiameseRanker:
    """Return a ranker with the weights that the seed gives."""
    torch.manual_seed(settings.seed)
    return SiameseRanker(settings)
