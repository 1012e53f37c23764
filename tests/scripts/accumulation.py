"""Accumulated and clipped gradients, a gradient scaler, and options that look like others'."""

import argparse
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--accumulate", "-a", type=int, default=4)
parser.add_argument("--plan", choices=["a", "b"], default="a")
parser.add_argument("--threads", default="none")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--budget", default="low")
parser.add_argument("--amp", action="store_true")
parser.add_argument("rest", nargs="*")
args = parser.parse_args()
print("options", args.steps, args.plan, args.threads, args.compile, args.budget, args.rest)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(50, 16), nn.Flatten(), nn.LayerNorm(128), nn.Linear(128, 64), nn.ReLU(),
    nn.Linear(64, 50),
)  # fmt: skip
decay = [p for p in model.parameters() if p.dim() > 1]
other = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer.zero_grad(set_to_none=True)
for step in range(1, args.steps + 1):
    tokens = torch.randint(50, (16, 8))
    with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
        loss = nn.functional.cross_entropy(model(tokens), tokens.sum(1) % 50) / args.accumulate
    scaler.scale(loss).backward()
    print(f"loss {loss.item() * args.accumulate}")
    if step % args.accumulate == 0:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"loss {norm.item()}")
sys.exit(3 if "fail" in args.rest else 0)
