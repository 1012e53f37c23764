"""Models of the device benchmark, and their batches."""

from __future__ import annotations

import torch
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.devices.cases import Case

CLASSES = 10
LENGTH = 64
"""Sequence length of the transformer."""

SIDE = 16
"""Height and width of images in pixels."""


class Spectral(nn.Module):
    """Classifier on the matrix logarithm of channel covariances, as used for EEG signals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixed = nn.Linear(width, width)
        self.out = nn.Linear(width * width, CLASSES)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        mixed = self.mixed(signals)
        together = mixed.transpose(1, 2) @ mixed / mixed.shape[1]
        values, vectors = torch.linalg.eigh(together)
        logarithm = (vectors * values.clamp_min(1e-4).log().unsqueeze(1)) @ vectors.mT
        out: torch.Tensor = self.out(logarithm.flatten(1))
        return out


def model_of(case: Case) -> nn.Module:
    """Build a case's model, always with the same initial weights."""
    torch.manual_seed(0)
    width = case.width
    if case.kind == "mlp":
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))
    if case.kind == "conv":
        layers = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(4):
            layers += [
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            ]  # fmt: skip
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * SIDE * SIDE, CLASSES))
    if case.kind == "spectral":
        return Spectral(width)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(width * LENGTH, CLASSES))


def batch_of(case: Case, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples and labels of a step, deterministic by step number."""
    generator = torch.Generator().manual_seed(step)
    shape = {
        "mlp": (case.width,),
        "conv": (3, SIDE, SIDE),
        "transformer": (LENGTH, case.width),
        "spectral": (4 * case.width, case.width),
    }[case.kind]
    samples = torch.randn(case.batch, *shape, generator=generator)
    return samples, torch.randint(CLASSES, (case.batch,), generator=generator)
