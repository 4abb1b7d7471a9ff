"""What the model must predict: the code nearest to a random projection of each few frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nest_ssl.config import ConfigError


class RandomProjectionVectorQuantizer(nn.Module):
    """Project frames at random and name the nearest code of each book, as in BEST-RQ; nothing is trained."""

    def __init__(
        self,
        feat_in: int,
        code_dim: int,
        num_classes: int,
        num_books: int,
        dist_fn: str = "cosine",
        squeeze_single: bool = False,
        combine_time_steps: int = 1,
    ) -> None:
        super().__init__()
        if dist_fn != "l2":  # with "cosine" NeMo 3.0.0 fails itself: its codes are float64 and its features float32
            raise ConfigError(f"RandomProjectionVectorQuantizer: dist_fn is {dist_fn!r}, and the port has 'l2'")
        self.num_books, self.num_classes, self.code_dim = num_books, num_classes, code_dim
        self.combine_time_steps = combine_time_steps
        self.is_squeezed = squeeze_single and num_books == 1
        self.proj = nn.Linear(feat_in * combine_time_steps, num_books * code_dim, bias=False)
        nn.init.xavier_normal_(self.proj.weight)
        codes = torch.randn(num_books, num_classes, code_dim).double()
        self.codebooks = nn.Parameter(functional.normalize(codes, dim=-1))
        self.requires_grad_(False)

    def forward(self, input_signal: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (batch, code, tokens, books) and their numbers (batch, tokens, books)."""
        batch, _, frames = input_signal.shape
        tokens = frames // self.combine_time_steps
        combined = input_signal.transpose(1, 2).reshape(batch, tokens, -1)
        points = self.proj(combined).view(batch, tokens, self.num_books, self.code_dim)
        points = functional.normalize(points, dim=-1)
        distances = points[..., None] - self.codebooks.transpose(1, 2)
        numbers = distances.norm(dim=-2).argmin(dim=-1)
        first_of_book = self.num_classes * torch.arange(self.num_books, device=numbers.device)
        rows = (numbers + first_of_book).transpose(1, 2).reshape(-1)
        codes = functional.embedding(rows, self.codebooks.view(-1, self.code_dim))
        codes = codes.view(batch, tokens, self.code_dim, self.num_books).transpose(1, 2)
        return (codes.squeeze(-1), numbers.squeeze(-1)) if self.is_squeezed else (codes, numbers)
