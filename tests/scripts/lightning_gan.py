"""Two optimizers in turns, by Lightning's manual optimization."""

import lightning as L
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, z):
        return self.generator(z)

    def training_step(self, real, batch_idx):
        opt_g, opt_d = self.optimizers()
        z = torch.randn(len(real), 4)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        self.toggle_optimizer(opt_g)
        g_loss = bce(self.discriminator(self(z)), ones)
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        fake = self(z).detach()
        d_loss = (bce(self.discriminator(real), ones) + bce(self.discriminator(fake), zeros)) / 2
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        print(f"loss {g_loss.item()}\nloss {d_loss.item()}")

    def configure_optimizers(self):
        betas = (0.5, 0.999)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=betas)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=betas)
        return [opt_g, opt_d]


L.seed_everything(1)
ring = torch.linspace(0, 6.28, 192)
data = torch.stack([ring.cos(), ring.sin()], 1)
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(GAN(), DataLoader(data, batch_size=32, shuffle=True))
