"""A Wasserstein GAN with gradient penalty, and a Hessian at the end: differentiated twice."""

import torch
from torch import autograd, nn

torch.manual_seed(0)
G = nn.Sequential(
    nn.Linear(4, 3 * 16), nn.ReLU(), nn.Unflatten(1, (3, 4, 4)), nn.Conv2d(3, 2, 3, padding=1)
)
D = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Softplus(), nn.Flatten(), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(len(real), 1, 1, 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = D(mixed)
    (slope,) = autograd.grad(
        outputs=score, inputs=mixed, grad_outputs=torch.ones_like(score),
        create_graph=True, retain_graph=True,
    )  # fmt: skip
    return 10 * (slope.view(len(real), -1).norm(2, dim=1) - 1).pow(2).mean()


for step in range(6):
    real = torch.randn(16, 2, 4, 4) * 0.5
    for _ in range(2):
        fake = G(torch.randn(16, 4)).detach()
        loss = D(fake).mean() - D(real).mean() + gradient_penalty(real, fake)
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        print(f"loss {loss.item()}")
    loss = -D(G(torch.randn(16, 4))).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    print(f"loss {loss.item()}")

x = torch.randn(1, 2, 4, 4)
hessian = torch.autograd.functional.hessian(lambda a: D(a).sum(), x)
print(f"loss {hessian.abs().sum().item()}")
