"""A small GPT on random tokens, AdamW and clipping: matmuls, attention, and a large softmax."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional


class TransformerBlock(nn.Module):
    """Transformer block: pre-norm causal self-attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            projected.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for projected in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Decoder-only transformer: token ids to next-token logits."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(text.shape[1])
        out: torch.Tensor = self.out(
            self.norm(self.blocks(self.words(text) + self.positions(positions)))
        )
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="timed steps (default: 8)")
    parser.add_argument("--batch", type=int, default=8, help="batch size in sequences (default: 8)")
    parser.add_argument(
        "--length", type=int, default=128, help="tokens in a sequence (default: 128)"
    )
    parser.add_argument("--width", type=int, default=256, help="embedding size (default: 256)")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks (default: 4)")
    parser.add_argument("--heads", type=int, default=8, help="attention heads (default: 8)")
    parser.add_argument("--words", type=int, default=8000, help="vocabulary size (default: 8000)")
    options = parser.parse_args()

    torch.manual_seed(0)
    words = options.words
    model = GPT(words, options.length, options.width, options.layers, options.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_fn = nn.CrossEntropyLoss()
    text = torch.randint(words, (options.batch, options.length + 1))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        logits = model(text[:, :-1])
        loss = loss_fn(logits.view(-1, words), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
