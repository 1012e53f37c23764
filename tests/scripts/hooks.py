"""Weight and spectral norm, old and new, and hooks on everything that has them."""

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

warnings.simplefilter("ignore", FutureWarning)  # the old weight_norm


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


torch.manual_seed(2)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Conv2d(3, 6, 3)),
    nn.ReLU(),
    parametrizations.spectral_norm(nn.Conv2d(6, 6, 3)),
    nn.ReLU(inplace=True),
    nn.utils.weight_norm(nn.Conv2d(6, 4, 1)),
    nn.utils.spectral_norm(nn.Conv2d(4, 4, 1)),
    nn.Conv2d(4, 4, 3, padding=1),
    nn.Flatten(),
    nn.Linear(4 * 16, 6),
    nn.Linear(6, 6),
    nn.Linear(6, 1),
)
parametrize.register_parametrization(model[9], "weight", Symmetric())

seen = {"forward": 0, "backward": 0, "pre": 0, "grad": 0.0}
features = {}


def count(kind):
    def hook(*args):
        seen[kind] += 1

    return hook


def keep(module, args, output):
    features["conv"] = output.detach()


model[6].register_forward_hook(keep)
model[6].register_forward_pre_hook(count("pre"))
model[8].register_full_backward_hook(count("backward"))
model.register_forward_hook(count("forward"))
model[8].weight.register_hook(lambda grad: grad * 0.5)
model[10].weight.register_post_accumulate_grad_hook(
    lambda p: seen.__setitem__("grad", seen["grad"] + p.grad.abs().sum().item())
)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(8):
    x = torch.randn(8, 3, 8, 8)
    loss = (model(x) - x.mean((1, 2, 3)).view(-1, 1)).square().mean()
    loss = loss + 0.01 * features["conv"].view(8, -1).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
print(seen["forward"], seen["pre"], seen["backward"])
print(f"loss {seen['grad']}")
parametrize.remove_parametrizations(model[0], "weight")
nn.utils.remove_weight_norm(model[4])
nn.utils.remove_spectral_norm(model[5])
torch.save(model.state_dict(), "weights.pt")
