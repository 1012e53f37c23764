"""torch.jit and torch.fx: scripted and traced models that are trained, saved and loaded."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(4 * 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.max_pool2d(F.relu(self.conv(x)), 2))
        return self.fc(x.view(x.size(0), -1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, n: int = 2) -> Tensor:
        x = x + F.scaled_dot_product_attention(x, x, x)
        out = self.net(x)
        for i in range(n):
            if out.sum() > 0:
                out = out * 0.9
        return out


def train(model, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for _ in range(4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item()}")


torch.manual_seed(0)
x, y = torch.randn(8, 3, 10, 10), torch.randint(2, (8,))

scripted = torch.jit.script(Gated())
train(scripted, scripted.parameters())
scripted.save("scripted.pt")
print(f"loss {torch.jit.load('scripted.pt')(x).square().mean().item()}")

# a traced model within another
traced = torch.jit.trace(Net(), x, check_trace=False)
whole = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), traced)
train(whole, whole.parameters())

# trained as it is, then traced for use elsewhere
plain = Net()
train(plain, plain.parameters())
plain.eval()
traced = torch.jit.trace(plain, x)
traced.save("traced.pt")
scripted = torch.jit.script(plain)
assert torch.allclose(scripted(x), plain(x), atol=1e-6)
print(f"loss {torch.jit.load('traced.pt')(x).square().mean().item()}")
assert torch.allclose(traced(x), plain(x), atol=1e-2)
symbolic = fx.symbolic_trace(plain.train())
train(symbolic, symbolic.parameters())
exported = torch.export.export(plain.eval(), (x,))
print(f"loss {exported.module()(x).square().mean().item()}")
torch.save(plain.state_dict(), "weights.pt")
