"""Training scripts, each with one cause of slowness planted in it."""

from __future__ import annotations

BEGIN = """
import ctypes, os, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
"""

KEEPS_MEMORY = """
libc = ctypes.CDLL(None)
libc.mallopt(-3, 1 << 30), libc.mallopt(-1, 1 << 34), libc.mallopt(-2, 1 << 28)
"""

STEPS = """
for step in range(200):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WAITS = """
class Slow(Dataset):
    def __len__(self):
        return 10000
    def __getitem__(self, at):
        time.sleep(0.02)
        return torch.ones(64)
"""

LOADED = """
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
torch.set_num_threads(1)
for x in loader:
    optimizer.zero_grad()
    for _ in range(8):
        model(x).square().mean().backward()
    optimizer.step()
"""

PLANTED = {
    "input": BEGIN + WAITS + "loader = DataLoader(Slow(), batch_size=4, num_workers=1)" + LOADED,
    "overlap": BEGIN + WAITS.replace("0.02", "0.0005") + "loader = DataLoader(Slow(), batch_size=4)"
    + LOADED,
    "work": BEGIN + """
torch.set_num_threads(64)
model = nn.Sequential(*[nn.Conv2d(16, 16, 1) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(4, 16, 48, 48)
""" + STEPS,
    "memory": BEGIN + KEEPS_MEMORY + """
class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        y = x * self.scale
        for _ in range(6):
            y = (y * 0.5 + 0.25).abs() - 0.125
        return y
model = Chain()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(1 << 22)
""" + STEPS,
    "units": BEGIN + KEEPS_MEMORY + """
model = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.Conv2d(128, 128, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(8, 64, 32, 32)
""" + STEPS,
    "code": BEGIN + """
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(8, 1024)
""" + STEPS,
}  # fmt: skip
"""Scripts by the cause that must be found first."""

GOOD = BEGIN + KEEPS_MEMORY + """
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(3)]).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(1024, 1024).bfloat16()
for step in range(200):
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""  # fmt: skip
"""Script without a cause of slowness."""
