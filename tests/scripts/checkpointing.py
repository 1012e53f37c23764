"""Activations that are computed again in the backward pass, in both ways that torch has."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


class Net(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.head = nn.Linear(8, 4)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x.mean((2, 3)))


torch.manual_seed(0)
x, y = torch.randn(8, 3, 10, 10), torch.randint(4, (8,))
for reentrant in (False, True):
    model = Net(reentrant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item()}")

# without a model around it; the blocks have been trained by themselves before
blocks = nn.Sequential(*(Block(4) for _ in range(4)))
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(4, 4, 8, 8)
for step in range(8):
    if step < 3:
        out = x
        for block in blocks:
            out = block(out)
    elif step < 6:
        out = checkpoint_sequential(blocks, 2, x, use_reentrant=False)
    else:
        with torch.autograd.graph.save_on_cpu():
            out = blocks(x)
    loss = (out - x.flip(0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
