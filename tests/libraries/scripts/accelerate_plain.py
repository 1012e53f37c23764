"""A loop with Accelerate: accumulation, clipping, a scheduler, saved and loaded state."""

import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(11)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    project_config=ProjectConfiguration("state", automatic_checkpoint_naming=True),
)
x = torch.randn(96, 3, 10, 10)
y = (x.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.GELU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(512, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=16)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(2):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                print("norm", accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print("loss", accelerator.gather_for_metrics(loss.detach()).mean().item())
    accelerator.save_state()
accelerator.load_state("state/checkpoints/checkpoint_0")
model.eval()
with torch.no_grad():
    print("loss", nn.functional.cross_entropy(model(x), y).item())
print(accelerator.state.distributed_type, accelerator.mixed_precision, accelerator.num_processes)
plain = accelerator.unwrap_model(model)
print(type(plain).__name__, [(k, v.dtype) for k, v in accelerator.get_state_dict(model).items()])
print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
