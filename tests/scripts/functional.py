"""torch.func: an ensemble by vmap, gradients of each sample, a step of MAML."""

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)


def make():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.Tanh(),
        nn.Linear(8, 1),
    )


x = torch.randn(8, 2, 8, 8)
y = x.mean((1, 2, 3)).unsqueeze(1)

# an ensemble
models = [make() for _ in range(3)]
params, buffers = stack_module_state(models)
base = make().to("meta")


def call(p, b, data):
    return functional_call(base, (p, b), (data,))


out = vmap(call, in_dims=(0, 0, None))(params, buffers, x)
print(f"loss {(out - y).square().mean().item()}")

# gradients of each sample, clipped one by one
model = make()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_of(p, a, b):
    return (functional_call(model, p, (a.unsqueeze(0),)) - b).square().mean()


for _ in range(4):
    p = {name: value.detach() for name, value in model.named_parameters()}
    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(p, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    scale = (1 / norms).clamp(max=1)
    for name, value in model.named_parameters():
        value.grad = torch.einsum("n...,n->...", each[name], scale) / len(x)
    optimizer.step()
    print(f"loss {(model(x) - y).square().mean().item()}")

# a step inside of a step
meta = make()
optimizer = torch.optim.SGD(meta.parameters(), lr=0.05)
for _ in range(4):
    fast = dict(meta.named_parameters())
    inner = (functional_call(meta, fast, (x[:4],)) - y[:4]).square().mean()
    slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
    fast = {n: w - 0.1 * g for (n, w), g in zip(fast.items(), slopes, strict=True)}
    loss = (functional_call(meta, fast, (x[4:],)) - y[4:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
