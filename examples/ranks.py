"""A small transformer trained by several ranks, which goes on where it was when one of them dies.

    python examples/ranks.py                                       # one process
    cputrain launch --nproc-per-node 2 examples/ranks.py           # two, with the same losses
    cputrain launch --nproc-per-node 2 --max-restarts 3 examples/ranks.py --checkpoint run.pt

Each step has the same batch, however many ranks divide it. With --checkpoint the state is written
after each few steps, and a start begins with what is there. It knows nothing of cputrain: torchrun
starts it as well.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH, WIDTH, BATCH = 64, 32, 64, 16


class Model(nn.Module):
    """Words, two layers of attention, words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Which word may follow each."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.out(self.layers(self.words(text) + self.places, mask=mask, is_causal=True))


def batch_of(step: int) -> torch.Tensor:
    """The whole batch of a step, the same in every rank: sequences that can be learned."""
    drawn = torch.Generator().manual_seed(step)
    first = torch.randint(WORDS, (BATCH, 1), generator=drawn)
    pace = torch.randint(1, 4, (BATCH, 1), generator=drawn)
    return (first + pace * torch.arange(LENGTH + 1)) % WORDS


def main() -> None:
    """Train, and print the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", default="", help="a file to begin with and to write")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    options = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if ranks > 1:
        distributed.init_process_group("gloo")

    torch.manual_seed(0)
    model: nn.Module = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    if options.checkpoint and os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
    whole = model
    if ranks > 1:
        model = DistributedDataParallel(model)

    for step in range(len(losses), options.steps):
        text = batch_of(step)[rank::ranks]
        made = model(text[:, :-1])
        loss = functional.cross_entropy(made.reshape(-1, WORDS), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if ranks > 1:
            distributed.all_reduce(mean)
        losses.append(mean.item() / ranks)
        if options.checkpoint and rank == 0 and len(losses) % options.every == 0:
            state = {"model": whole.state_dict(), "optimizer": optimizer.state_dict(),
                     "losses": losses}  # fmt: skip
            torch.save(state, f"{options.checkpoint}.new")
            os.replace(f"{options.checkpoint}.new", options.checkpoint)  # whole, or not at all

    if rank == 0:
        print(json.dumps({"losses": losses, "ranks": ranks}))
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
