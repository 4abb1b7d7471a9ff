"""What the model does not get to see: blocks of frames, drawn at random in eval mode too."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class RandomBlockMasking(nn.Module):
    """Put one vector in place of blocks of frames."""

    def __init__(
        self,
        feat_in: int,
        mask_prob: float = 0.5,
        block_size: int = 48,
        mask_value: float | None = None,
        freeze: bool = True,
        allow_overlap: bool = False,
        max_mask_ratio: float = 0.8,  # NeMo takes it and does not use it
    ) -> None:
        super().__init__()
        self.block_size, self.mask_prob, self.allow_overlap = block_size, mask_prob, allow_overlap
        embedding = 0.1 * torch.randn(feat_in) if mask_value is None else torch.full((feat_in,), float(mask_value))
        is_trained = mask_value is None and not freeze
        self.mask_embedding = nn.Parameter(embedding, requires_grad=is_trained)

    def forward(self, input_feats: Tensor, input_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features with masked frames replaced, and 1 where they are: both (batch, mel, frames)."""
        draw = self.draw_overlapping if self.allow_overlap else self.draw_apart
        is_masked = draw(input_feats.shape[-1], input_lengths)[:, None]
        masked = torch.where(is_masked, self.mask_embedding[:, None], input_feats)
        return masked, is_masked.to(input_feats.dtype).expand_as(input_feats)

    def draw_overlapping(self, frames: int, lengths: Tensor) -> Tensor:
        """Return (batch, frames): a block may begin at any frame from which it fits, with probability mask_prob."""
        fits = torch.arange(frames, device=lengths.device) + self.block_size <= lengths[:, None]
        begins = (torch.rand(len(lengths), frames, device=lengths.device) < self.mask_prob) & fits
        within_block = functional.pad(begins.float(), (self.block_size - 1, 0))
        return functional.max_pool1d(within_block, kernel_size=self.block_size, stride=1).bool()

    def draw_apart(self, frames: int, lengths: Tensor) -> Tensor:
        """Return (batch, frames): blocks on a grid with a random offset, until a share mask_prob is covered."""
        blocks = torch.ceil(lengths * self.mask_prob / self.block_size).long()
        sizes = torch.full_like(lengths, self.block_size)
        shorter = lengths // (blocks + 1)  # for rows in which blocks of full size do not fit
        sizes = torch.where((blocks + 1) * sizes > lengths, shorter, sizes).clamp_min(1)
        slots = (lengths // sizes - 1).clamp_min(0)
        blocks = torch.minimum(blocks, slots)

        device = lengths.device
        scores = torch.rand(len(lengths), frames, device=device)
        scores = scores.masked_fill(torch.arange(frames, device=device) >= slots[:, None], -math.inf)
        most_blocks = math.ceil(frames * self.mask_prob / self.block_size)
        chosen = scores.topk(most_blocks, dim=1).indices
        is_used = torch.arange(most_blocks, device=device) < blocks[:, None]

        offsets = (torch.rand(len(lengths), device=device) * sizes).long()
        starts = chosen * sizes[:, None] + offsets[:, None]
        steps = torch.zeros(len(lengths), frames + 1, dtype=torch.int32, device=device)
        for edges, step in ((starts, is_used.int()), (starts + sizes[:, None], -is_used.int())):
            steps.scatter_add_(1, torch.where(is_used, edges, 0), step)
        return steps[:, :frames].cumsum(dim=1) > 0
