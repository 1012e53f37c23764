"""An image classifier with Lightning that is stopped after some epochs and gone on with."""

import argparse
import hashlib

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, width=8, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2), nn.ReLU(), nn.Dropout(0.2),
            nn.Flatten(), nn.Linear(width * 5 * 5, 3),
        )  # fmt: skip
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        print("loss", loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy)
        self.log("val_loss", nn.functional.cross_entropy(scores, y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def describe(value):
    """What must be the same however the checkpoint came to be."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}"
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return type(value).__name__ if isinstance(value, float) else repr(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()
    L.seed_everything(7, workers=True)
    x = torch.randn(72, 3, 12, 12)
    y = (x.mean((1, 2, 3)) * 40).long().clamp(-1, 1) + 1
    train, val = TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])
    saved = ModelCheckpoint(args.folder, monitor="val_loss", save_last=True, save_top_k=1)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", devices=1, logger=CSVLogger("logs"),
        callbacks=[saved, LearningRateMonitor()], enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1, accumulate_grad_batches=2,
        gradient_clip_val=1.0, deterministic=True,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    trainer.fit(
        Classifier(),
        DataLoader(train, batch_size=8, shuffle=True, generator=generator),
        DataLoader(val, batch_size=8),
        ckpt_path=args.resume,
    )
    for name, value in sorted(trainer.callback_metrics.items()):
        print(name, value.item())
    checkpoint = torch.load(f"{args.folder}/last.ckpt", weights_only=False)
    checkpoint.pop("callbacks")  # paths are in there
    print(describe(checkpoint))
    print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
