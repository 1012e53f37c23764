"""A WaveNet on random sound, Adam: dilated convolutions in one dimension with gates."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional


class GatedLayer(nn.Module):
    """Dilated causal convolution with a gate; returns the next layer's input and a skip output."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.padding = dilation
        self.dilated = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.out = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, gate = self.dilated(functional.pad(x, (self.padding, 0))).chunk(2, dim=1)
        residual, skip = self.out(torch.tanh(value) * torch.sigmoid(gate)).chunk(2, dim=1)
        return x + residual, skip


class WaveNet(nn.Module):
    """WaveNet (van den Oord et al., 2016): class numbers of samples to logits of the next ones."""

    def __init__(self, classes: int, channels: int, layers: int, cycles: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, channels)
        self.layers = nn.ModuleList(
            GatedLayer(channels, 1 << layer) for _ in range(cycles) for layer in range(layers)
        )
        self.out = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(channels, channels, 1),
            nn.ReLU(),
            nn.Conv1d(channels, classes, 1),
        )

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.embedding(sound).transpose(1, 2)
        total = torch.zeros_like(x)
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        out: torch.Tensor = self.out(total)
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=4, help="batch size (default: 4)")
    parser.add_argument(
        "--length", type=int, default=4096, help="samples of a sound (default: 4096)"
    )
    parser.add_argument("--channels", type=int, default=64, help="channels (default: 64)")
    parser.add_argument(
        "--layers", type=int, default=10, help="layers with dilations 1, 2, 4, … (default: 10)"
    )
    parser.add_argument("--cycles", type=int, default=2, help="times that these are repeated")
    options = parser.parse_args()

    torch.manual_seed(0)
    classes = 256
    model = WaveNet(classes, options.channels, options.layers, options.cycles)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    sound = torch.randint(classes, (options.batch, options.length + 1))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(sound[:, :-1]), sound[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
