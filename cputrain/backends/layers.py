"""Layers with which a backend is examined: small models and their batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Attention(nn.Module):
    """Causal multi-head self-attention with 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.input_projection = nn.Linear(256, 768)
        self.output_projection = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size, length, width = x.shape
        heads = (
            self.input_projection(x)
            .view(batch_size, length, 3, 4, width // 4)
            .permute(2, 0, 3, 1, 4)
        )
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        output: torch.Tensor = self.output_projection(
            attended.transpose(1, 2).reshape(batch_size, length, width)
        )
        return output


class Recurrent(nn.Module):
    """An LSTM with a linear layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.output_projection = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output_projection(self.lstm(x)[0][:, -1])
        return output


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)),
        lambda: torch.randn(128, 512),
    ),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)
        ),
        lambda: torch.randn(8, 16, 32, 32),
    ),
    "norm": (
        lambda: nn.Sequential(
            nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.LayerNorm(512),
        ),
        lambda: torch.randn(8, 16, 32, 32),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(1000, 128), nn.Linear(128, 64)),
        lambda: torch.randint(1000, (64, 32)),
    ),
    "attention": (Attention, lambda: torch.randn(8, 64, 256)),
    "lstm": (Recurrent, lambda: torch.randn(16, 20, 64)),
}  # fmt: skip
"""For each kind of layer, a function that creates the model and one that creates its batch."""
