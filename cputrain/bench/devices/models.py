"""Models and batches of the device benchmark."""

from __future__ import annotations

import torch
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.devices.cases import DeviceCase

NUM_CLASSES = 10

SEQUENCE_LENGTH = 64
"""Sequence length of the transformer."""

IMAGE_SIZE = 16
"""Height and width of images in pixels."""


class SpectralClassifier(nn.Module):
    """Classifier on the matrix logarithm of channel covariances, as used for EEG signals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixed = nn.Linear(width, width)
        self.out = nn.Linear(width * width, NUM_CLASSES)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        mixed = self.mixed(signals)
        covariance = mixed.transpose(1, 2) @ mixed / mixed.shape[1]
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        log_covariance = (
            eigenvectors * eigenvalues.clamp_min(1e-4).log().unsqueeze(1)
        ) @ eigenvectors.mT
        out: torch.Tensor = self.out(log_covariance.flatten(1))
        return out


def build_model(case: DeviceCase) -> nn.Module:
    """Build a case's model, with the same initial weights in every call."""
    torch.manual_seed(0)
    width = case.width
    if case.kind == "mlp":
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, NUM_CLASSES))
    if case.kind == "conv":
        layers = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(4):
            layers += [
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            ]  # fmt: skip
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(width * IMAGE_SIZE * IMAGE_SIZE, NUM_CLASSES)
        )
    if case.kind == "spectral":
        return SpectralClassifier(width)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(width * SEQUENCE_LENGTH, NUM_CLASSES))


def make_batch(case: DeviceCase, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random samples and labels, seeded by the step number."""
    generator = torch.Generator().manual_seed(step)
    shape = {
        "mlp": (case.width,),
        "conv": (3, IMAGE_SIZE, IMAGE_SIZE),
        "transformer": (SEQUENCE_LENGTH, case.width),
        "spectral": (4 * case.width, case.width),
    }[case.kind]
    samples = torch.randn(case.batch, *shape, generator=generator)
    return samples, torch.randint(NUM_CLASSES, (case.batch,), generator=generator)
