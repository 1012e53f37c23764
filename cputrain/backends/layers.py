"""The kinds of layers that a backend is examined with: small models, and what they are given."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Attention(nn.Module):
    """A causal one, with heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards = nn.Linear(256, 768)
        self.outwards = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        heads = self.inwards(x).view(count, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        mixed: torch.Tensor = self.outwards(found.transpose(1, 2).reshape(count, length, width))
        return mixed


class Recurrent(nn.Module):
    """An LSTM, of which the last output counts."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.last = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.lstm(x)[0][:, -1])
        return found


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
"""What makes each, and a batch for it."""
