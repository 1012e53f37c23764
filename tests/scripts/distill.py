"""A student that learns from a teacher, and from its own projections (a contrastive loss)."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)


class ConvNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()
        )
        self.classify = nn.Linear(width, 3)
        self.project = nn.Linear(width, 8)

    def embed(self, x):
        return self.encoder(x).mean((2, 3))

    def forward(self, x):
        return self.classify(self.embed(x))


teacher, student = ConvNet(8), ConvNet(4)
x, y = torch.randn(24, 3, 8, 8), torch.randint(3, (24,))
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(4):
    loss = F.cross_entropy(teacher(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")

teacher.eval().requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
T = 2.0
for _ in range(6):
    with torch.no_grad():
        soft = F.softmax(teacher(x) / T, dim=1)
    hard = F.cross_entropy(student(x), y)
    kl = F.kl_div(F.log_softmax(student(x) / T, dim=1), soft, reduction="batchmean") * T * T
    a, b = (F.normalize(student.project(student.embed(x + n * 0.1)), dim=1) for n in (0, 1))
    contrast = F.cross_entropy(a @ b.t() / 0.5, torch.arange(len(x)))
    loss = 0.5 * hard + 0.5 * kl + 0.1 * contrast
    optimizer.zero_grad()
    hard.backward(retain_graph=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
