"""Fits a sine with L-BFGS: a closure that is called again and again within a step."""

import torch
from torch import nn, optim

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv1d(1, 8, 5, padding=2), nn.Tanh(), nn.Unflatten(1, (2, 4)), nn.Conv2d(2, 2, 3), nn.Tanh()
)
head = nn.Linear(2 * 2 * 14, 16)
t = torch.rand(32, 1, 16) * 6
target = torch.sin(t).squeeze(1)
parameters = [*model.parameters(), *head.parameters()]
optimizer = optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(head(model(t).view(32, -1)), target)
    loss.backward()
    return loss


for _ in range(12):
    print(f"loss {optimizer.step(closure).item()}")
