"""Averaged weights, and copies of the model in the middle of training."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(24, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(nn.functional.avg_pool2d(x, 3).view(-1, 24))


x, y = torch.randn(64, 2, 8, 8), torch.randint(3, (64,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Net()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
best, best_loss = None, float("inf")
for epoch in range(4):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        total += loss.item()
        print(f"loss {loss.item()}")
    if epoch >= 2:
        swa.update_parameters(model)
        scheduler.step()
    if total < best_loss:
        best, best_loss = copy.deepcopy(model), total
        best_state = copy.deepcopy(model.state_dict())
update_bn(loader, swa)
for one in (model, ema, swa, best):
    one.eval()
    with torch.no_grad():
        print(f"loss {nn.functional.cross_entropy(one(x), y).item()}")
model.load_state_dict(best_state)
torch.save(model, "model.pt")
torch.save(best, "best.pt")
torch.save(ema.state_dict(), "weights.pt")
