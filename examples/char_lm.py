"""A small GPT that learns to write, one character after another.

The text it reads is made up by a few rules; at the end it writes some lines of its own.

    python examples/char_lm.py
"""

import argparse
import random
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 2


def make_text(sentences: int) -> str:
    rng = random.Random(0)
    sizes = ["small", "big", "old", "young"]
    animals = ["fox", "hen", "cat", "owl", "goat"]
    deeds = ["sees", "follows", "paints", "feeds"]
    times = ["in the morning", "at noon", "before supper", "when it rains"]
    lines = (
        f"The {rng.choice(sizes)} {rng.choice(animals)} {rng.choice(deeds)} "
        f"the {rng.choice(sizes)} {rng.choice(animals)} {rng.choice(times)}.\n"
        for _ in range(sentences)
    )
    return "".join(lines)


class Block(nn.Module):
    """Attention, then a small network at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.to_qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        return self.head(self.blocks(self.letters(tokens) + self.places(places)))


def write(model: CharGPT, alphabet: str, length: int) -> str:
    tokens = torch.tensor([[alphabet.index("\n")]])
    with torch.no_grad():
        for _ in range(length):
            scores = model(tokens[:, -CONTEXT:])[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(scores.softmax(-1), 1)], dim=1)
    return "".join(alphabet[token] for token in tokens[0].tolist()).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="how long to learn (default: 150)")
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    text = make_text(2_000)
    alphabet = "".join(sorted(set(text)))
    number = {letter: place for place, letter in enumerate(alphabet)}
    data = torch.tensor([number[letter] for letter in text])
    model = CharGPT(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    begin = time.perf_counter()
    for step in range(1, steps + 1):
        starts = torch.randint(len(data) - CONTEXT, (32, 1))
        pieces = data[starts + torch.arange(CONTEXT + 1)]
        scores = model(pieces[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0 or step == steps:
            print(f"step {step:4d}  loss {loss.item():.6f}")
    speed = step / (time.perf_counter() - begin)
    print(f"{speed:.2f} steps/s; the model writes:\n")
    print(write(model, alphabet, 150))


if __name__ == "__main__":
    main()
