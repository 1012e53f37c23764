"""The models of the cases, and their data."""

from __future__ import annotations

import torch
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.devices.cases import Case

CLASSES = 10
LENGTH = 64
"""Of the transformer's sequences."""

SIDE = 16
"""Of images, in pixels."""


class Spectral(nn.Module):
    """How channels vary together, on a scale on which that can be added: as of brain signals."""

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
    """A new one, always with the same weights."""
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
    """The samples of a step and their classes; always the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    shape = {
        "mlp": (case.width,),
        "conv": (3, SIDE, SIDE),
        "transformer": (LENGTH, case.width),
        "spectral": (4 * case.width, case.width),
    }[case.kind]
    samples = torch.randn(case.batch, *shape, generator=generator)
    return samples, torch.randint(CLASSES, (case.batch,), generator=generator)
