"""An LSTM language model on random tokens, Adam: many small matmuls in sequence."""

import argparse
import json
import time

import torch
from torch import nn


class LSTMLanguageModel(nn.Module):
    """LSTM language model: token ids to next-token logits."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.words(text))
        out: torch.Tensor = self.out(states)
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument(
        "--batch", type=int, default=20, help="batch size in sequences (default: 20)"
    )
    parser.add_argument("--length", type=int, default=35, help="tokens in a sequence (default: 35)")
    parser.add_argument(
        "--width", type=int, default=200, help="embedding and hidden size (default: 200)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    words = 10_000
    model = LSTMLanguageModel(words, options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    text = torch.randint(words, (options.batch, options.length + 1))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(text[:, :-1]).view(-1, words), text[:, 1:].reshape(-1))
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
