"""A small CNN, SGD with momentum, and a DataLoader whose workers compute each sample."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ImageDataset(Dataset[tuple[torch.Tensor, int]]):
    """Random images smoothed by Fourier transforms; a stand-in for decoding and augmentation."""

    def __init__(self, image_size: int, num_smoothings: int) -> None:
        self.image_size, self.num_smoothings = image_size, num_smoothings

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        image = generator.standard_normal((3, self.image_size, self.image_size), dtype=np.float32)
        for _ in range(self.num_smoothings):
            image = np.fft.irfft2(np.fft.rfft2(image) * 0.99).astype(np.float32)
        return torch.from_numpy(image), index % 10


def conv_block(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """Build a 3x3 convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default: 20)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (default: 64)")
    parser.add_argument(
        "--image", type=int, default=64, help="image height and width in pixels (default: 64)"
    )
    parser.add_argument("--workers", type=int, default=8, help="loader workers (default: 8)")
    parser.add_argument(
        "--work", type=int, default=6, help="Fourier transforms per image (default: 6)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        *(conv_block(3, 64, 1), conv_block(64, 64, 1), conv_block(64, 128, 2)),
        *(conv_block(128, 128, 1), conv_block(128, 256, 2), conv_block(256, 256, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    loader = DataLoader(
        ImageDataset(options.image, options.work),
        batch_size=options.batch,
        num_workers=options.workers,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    )
    num_warm_up = 5
    losses: list[float] = []
    seconds: list[float] = []
    begin = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        end = time.perf_counter()
        seconds.append(end - begin)
        begin = end
        if len(losses) == num_warm_up + options.steps:
            break

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[num_warm_up:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
