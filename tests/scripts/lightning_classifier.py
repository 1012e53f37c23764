"""An image classifier with Lightning: validation, logging, checkpoints."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Shapes(L.LightningDataModule):
    def __init__(self, batch_size=16):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        x = torch.randn(128, 3, 12, 12)
        y = (x[:, 0, :6].mean((1, 2)) > x[:, 0, 6:].mean((1, 2))).long()
        self.train, self.val = random_split(TensorDataset(x, y), [96, 32])

    def train_dataloader(self):
        return DataLoader(
            self.train, self.batch_size, shuffle=True, num_workers=1, persistent_workers=True
        )

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)


class Classifier(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(8 * 6 * 6, 2)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.view(x.size(0), -1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        print(f"loss {loss.item()}")
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_acc", (out.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


if __name__ == "__main__":
    L.seed_everything(7, workers=True)
    best = ModelCheckpoint("checkpoints", filename="best", monitor="val_loss", save_last=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger("logs"),
        callbacks=[best, LearningRateMonitor()],
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        log_every_n_steps=2,
    )
    trainer.fit(Classifier(), datamodule=Shapes())
    print(f"loss {trainer.callback_metrics['val_loss'].item()}")
    model = Classifier.load_from_checkpoint(best.best_model_path)
    torch.save(model.state_dict(), "weights.pt")
