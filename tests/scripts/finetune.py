"""A frozen backbone with a new head, then a part of it thawed with a rate of its own."""

import torch
from safetensors.torch import save_file
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, 2)
        self.fc = nn.Linear(16 * 9, classes)

    def features(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return nn.functional.adaptive_avg_pool2d(x, 3)

    def forward(self, x):
        x = self.features(x)
        return self.fc(x.view(x.shape[0], -1))


torch.manual_seed(4)
torch.save(ResNet().state_dict(), "pretrained.pt")
model = ResNet()
model.load_state_dict(torch.load("pretrained.pt"))
for p in model.parameters():
    p.requires_grad = False
model.fc = nn.Linear(16 * 9, 2)
x, y = torch.randn(16, 3, 12, 12), torch.randint(2, (16,))

# linear probe: features once, without gradients
model.eval()
with torch.inference_mode():
    print(f"loss {model(x).square().mean().item()}")
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01, momentum=0.9)
for _ in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")

model.train()
model.layer2.requires_grad_(True)
optimizer.add_param_group({"params": model.layer2.parameters(), "lr": 0.001})
for _ in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
assert model.stem[0].weight.grad is None

# prune through a view, as old scripts do, and go on
weight = model.layer2.conv2.weight
order = weight.data.abs().view(-1).argsort()
weight.data.view(-1)[order[: len(order) // 2]] = 0
print("zeros", int((weight == 0).sum()))
for _ in range(2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    weight.grad.view(-1)[order[: len(order) // 2]] = 0
    optimizer.step()
    print(f"loss {loss.item()}")
torch.save(model.state_dict(), "weights.pt")
save_file(model.state_dict(), "weights.safetensors")
