"""Saves everything in the middle of training, starts over from the file, and goes on."""

import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(3, 10, 10, generator=generator)
        return x, x.mean().view(1)


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(128, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    return model, optimizer, scheduler


def save(path, epoch, model, optimizer, scheduler):
    torch.save(
        {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        },
        path,
    )


def train(path, epochs):
    model, optimizer, scheduler = build()
    first = 0
    if os.path.exists(path):
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        torch.set_rng_state(checkpoint["rng"])
        first = checkpoint["epoch"] + 1
        print("resumed at epoch", first)
    loader = DataLoader(Pairs(), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    for epoch in range(first, epochs):
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            print(f"loss {loss.item()}")
        scheduler.step()
        save(path, epoch, model, optimizer, scheduler)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
train("weights.pt", 2)
train("weights.pt", 3)
