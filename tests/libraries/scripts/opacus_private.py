"""Differentially private training with opacus: gradients of each sample, noise, accounting."""

import hashlib
import warnings

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(8 * 5 * 5 + 4, 2)

    def forward(self, x, kind):
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.cat([h.flatten(1), self.embed(kind).flatten(1)], 1))


def train(mode):
    torch.manual_seed(0)
    x, kind = torch.randn(64, 1, 12, 12), torch.randint(10, (64, 1))
    y = (x.mean((1, 2, 3)) > 0).long()
    model = ModuleValidator.fix(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(x, kind, y), batch_size=16)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1,
        max_grad_norm=1.0, grad_sample_mode=mode,
        noise_generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    for epoch in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
        ) as batches:
            for inputs, kinds, targets in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs, kinds), targets)
                loss.backward()
                norms = [p.grad_sample.flatten(1).norm(dim=1).sum() for p in model.parameters()]
                print(mode, "loss", len(inputs), loss.item(), sum(norms).item())
                optimizer.step()
        print(mode, "epsilon", engine.get_epsilon(1e-5))
    for name, value in model.state_dict().items():
        print(mode, name, tuple(value.shape), value.stride(), value.double().abs().sum().item())


train("hooks")
train("ew")
train("functorch")
print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
