"""A DCGAN on random pictures, two Adams: two models that learn from each other."""

import argparse
import json
import time

import torch
from torch import nn


def maker(noise: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = noise
    for outside, stride in ((8 * width, 1), (4 * width, 2), (2 * width, 2), (width, 2)):
        layers += [
            nn.ConvTranspose2d(inside, outside, 4, stride, 0 if stride == 1 else 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        ]
        inside = outside
    return nn.Sequential(*layers, nn.ConvTranspose2d(inside, 3, 4, 2, 1), nn.Tanh())


def judge(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = 3
    for outside in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(inside, outside, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        inside = outside
    return nn.Sequential(*layers, nn.Conv2d(inside, 1, 4), nn.Flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=16, help="pictures in a step (default: 16)")
    parser.add_argument("--width", type=int, default=32, help="channels (default: 32)")
    options = parser.parse_args()

    torch.manual_seed(0)
    noise = 64
    makes, judges = maker(noise, options.width), judge(options.width)
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for model in (makes, judges)
    ]
    real = torch.randn(options.batch, 3, 64, 64).tanh()
    yes, no = torch.ones(options.batch, 1), torch.zeros(options.batch, 1)
    loss_of = nn.BCEWithLogitsLoss()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        made = makes(torch.randn(options.batch, noise, 1, 1))
        loss = loss_of(judges(real), yes) + loss_of(judges(made.detach()), no)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        fooled = loss_of(judges(made), yes)
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        losses += [loss.item(), fooled.item()]
        seconds.append(time.perf_counter() - begin)

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
