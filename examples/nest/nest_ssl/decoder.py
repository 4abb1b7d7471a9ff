"""From encoder output to log probabilities of tokens, and the loss over masked frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class MultiSoftmaxDecoder(nn.Module):
    """One linear layer, with a softmax for each book of codes."""

    def __init__(
        self,
        feat_in: int,
        num_classes: int,
        num_decoders: int = 1,
        use_bias: bool = False,
        squeeze_single: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes, self.num_decoders = num_classes, num_decoders
        self.is_squeezed = squeeze_single and num_decoders == 1
        projection = nn.Conv1d(feat_in, num_classes * num_decoders, kernel_size=1, bias=use_bias)
        nn.init.xavier_uniform_(projection.weight)
        self.decoder_layers = nn.Sequential(projection)

    def forward(self, encoder_output: Tensor) -> Tensor:
        """Return (batch, frames, classes, books), without the last axis if it is squeezed."""
        logits = self.decoder_layers(encoder_output).transpose(1, 2)
        logits = logits.reshape(*logits.shape[:2], self.num_classes, self.num_decoders)
        if self.is_squeezed:
            logits = logits.squeeze(-1)
        return functional.log_softmax(logits, dim=2)


class MLMLoss(nn.Module):
    """Mean negative log probability of the tokens whose frames were masked."""

    def __init__(self, combine_time_steps: int = 1, mask_threshold: float = 0.8) -> None:
        super().__init__()
        self.nll_loss = nn.NLLLoss()
        self.combine_time_steps, self.mask_threshold = combine_time_steps, mask_threshold

    def forward(self, spec_masks: Tensor, decoder_outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss; NaN if nothing was masked."""
        batch, _, frames = spec_masks.shape
        masks = spec_masks.transpose(1, 2).reshape(batch, frames // self.combine_time_steps, -1)
        is_judged = masks.mean(-1) > self.mask_threshold
        targets = functional.pad(targets, (0, is_judged.shape[-1] - targets.shape[-1]))
        return torch.mean(self.nll_loss(decoder_outputs[is_judged], targets[is_judged]))


class MultiMLMLoss(nn.Module):
    """The mean of that loss over the books of codes."""

    def __init__(
        self,
        combine_time_steps: int = 1,
        mask_threshold: float = 0.8,
        num_decoders: int = 1,
        squeeze_single: bool = False,
    ) -> None:
        super().__init__()
        self.num_decoders = num_decoders
        self.is_squeezed = squeeze_single and num_decoders == 1
        self.mlm_loss = MLMLoss(combine_time_steps, mask_threshold)

    def forward(
        self, masks: Tensor, decoder_outputs: Tensor, targets: Tensor, decoder_lengths: Tensor | None = None
    ) -> Tensor:
        """Return the loss; `decoder_lengths` is unused, here as in NeMo."""
        if self.is_squeezed:
            decoder_outputs, targets = decoder_outputs[..., None], targets[..., None]
        total = torch.zeros((), dtype=decoder_outputs.dtype, device=decoder_outputs.device)
        for book in range(self.num_decoders):
            total = total + self.mlm_loss(
                spec_masks=masks, decoder_outputs=decoder_outputs[..., book], targets=targets[..., book]
            )
        return total / self.num_decoders
