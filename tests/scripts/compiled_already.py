"""torch.compile by the script itself: of a model, in place, of a step, by a decorator."""

import os

import torch
import torch.nn.functional as F
from torch import nn

BACKEND = os.environ.get("BACKEND", "inductor")


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc = nn.Linear(8 * 9, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = F.adaptive_avg_pool2d(x, 3)
        return self.fc(x.view(-1, 8 * 9))


torch.manual_seed(0)
x = torch.randn(8, 3, 10, 10)
y = torch.randint(4, (8,))

# as it is, before anything was compiled
baseline = LeNet()
optimizer = torch.optim.SGD(baseline.parameters(), lr=0.1)
for _ in range(3):
    loss = F.cross_entropy(baseline(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")

# the same model, and a wrapped one
compiled = torch.compile(baseline, backend=BACKEND)
for _ in range(3):
    loss = F.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
with torch.no_grad():
    print(f"loss {F.cross_entropy(compiled.eval()(x), y).item()}")
torch.save(compiled.state_dict(), "weights.pt")

# in place
in_place = nn.Sequential(nn.Flatten(), nn.Linear(300, 16), nn.ReLU(), nn.Linear(16, 4))
in_place.compile(backend=BACKEND)
optimizer = torch.optim.Adam(in_place.parameters(), lr=0.01)
for _ in range(3):
    loss = F.cross_entropy(in_place(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")

# a whole step
model = LeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@torch.compile(backend=BACKEND)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for _ in range(4):
    print(f"loss {train_step(x, y).item()}")


# a part of it, whole
@torch.compile(backend=BACKEND, fullgraph=True)
def loss_of(x, y):
    return F.cross_entropy(model(x), y)


hook = model.register_forward_hook(lambda module, args, out: None)
print(f"loss {loss_of(x, y).item()}")
