"""A DCGAN on random images, two Adam optimizers: a generator and a discriminator."""

import argparse
import json
import time

import torch
from torch import nn


def build_generator(noise_size: int, width: int) -> nn.Sequential:
    """Build the generator: noise to images of 64 x 64 pixels."""
    layers: list[nn.Module] = []
    in_channels = noise_size
    for out_channels, stride in ((8 * width, 1), (4 * width, 2), (2 * width, 2), (width, 2)):
        layers += [
            nn.ConvTranspose2d(
                in_channels, out_channels, 4, stride, 0 if stride == 1 else 1, bias=False
            ),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        ]
        in_channels = out_channels
    return nn.Sequential(*layers, nn.ConvTranspose2d(in_channels, 3, 4, 2, 1), nn.Tanh())


def build_discriminator(width: int) -> nn.Sequential:
    """Build the discriminator: images of 64 x 64 pixels to a logit."""
    layers: list[nn.Module] = []
    in_channels = 3
    for out_channels in (width, 2 * width, 4 * width, 8 * width):
        layers += [
            nn.Conv2d(in_channels, out_channels, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        in_channels = out_channels
    return nn.Sequential(*layers, nn.Conv2d(in_channels, 1, 4), nn.Flatten())


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument(
        "--width", type=int, default=32, help="channels at the highest resolution (default: 32)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    noise_size = 64
    generator, discriminator = (
        build_generator(noise_size, options.width), build_discriminator(options.width)
    )  # fmt: skip
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for model in (generator, discriminator)
    ]
    real = torch.randn(options.batch, 3, 64, 64).tanh()
    real_labels, fake_labels = torch.ones(options.batch, 1), torch.zeros(options.batch, 1)
    loss_fn = nn.BCEWithLogitsLoss()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        fake = generator(torch.randn(options.batch, noise_size, 1, 1))
        loss = loss_fn(discriminator(real), real_labels) + loss_fn(
            discriminator(fake.detach()), fake_labels
        )
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        generator_loss = loss_fn(discriminator(fake), real_labels)
        optimizers[0].zero_grad()
        generator_loss.backward()
        optimizers[0].step()
        losses += [loss.item(), generator_loss.item()]
        seconds.append(time.perf_counter() - begin)

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
