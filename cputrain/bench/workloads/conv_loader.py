"""A small convolutional network whose samples are made by busy loader workers."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Random images smoothed by Fourier transforms; a stand-in for decoding and augmentation."""

    def __init__(self, size: int, work: int) -> None:
        self.size, self.work = size, work

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        picture = generator.standard_normal((3, self.size, self.size), dtype=np.float32)
        for _ in range(self.work):
            picture = np.fft.irfft2(np.fft.rfft2(picture) * 0.99).astype(np.float32)
        return torch.from_numpy(picture), index % 10


def block(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default: 20)")
    parser.add_argument("--batch", type=int, default=64, help="pictures in a step (default: 64)")
    parser.add_argument("--image", type=int, default=64, help="height and width (default: 64)")
    parser.add_argument("--workers", type=int, default=8, help="loader processes (default: 8)")
    parser.add_argument("--work", type=int, default=6, help="smoothings a picture (default: 6)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        *(block(3, 64, 1), block(64, 64, 1), block(64, 128, 2)),
        *(block(128, 128, 1), block(128, 256, 2), block(256, 256, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    loader = DataLoader(
        Pictures(options.image, options.work),
        batch_size=options.batch,
        num_workers=options.workers,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    )
    warm_up = 5
    losses: list[float] = []
    seconds: list[float] = []
    begin = time.perf_counter()
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(pictures), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        end = time.perf_counter()
        seconds.append(end - begin)
        begin = end
        if len(losses) == warm_up + options.steps:
            break

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[warm_up:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
