"""A loop with Accelerate: accumulation, clipping, a scheduler, saved and loaded state."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=4)
args = parser.parse_args()

set_seed(11)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
x = torch.randn(256, 10)
y = (x[:, :3].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=16)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for epoch in range(args.epochs):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"loss {accelerator.gather(loss.detach()).mean().item()}")
    accelerator.save_state("state")
accelerator.load_state("state")
model.eval()
with torch.no_grad():
    print(f"loss {F.cross_entropy(model(x), y).item()}")
accelerator.save(accelerator.unwrap_model(model).state_dict(), "weights.pt")
