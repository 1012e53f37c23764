"""DistributedDataParallel with one process."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

store = os.path.join(tempfile.mkdtemp(), "store")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.SyncBatchNorm(8) if torch.cuda.is_available() else nn.BatchNorm2d(8),
    nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 2),
)  # fmt: skip
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(2, (64,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if i % 2 == 0:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        value = loss.detach().clone()
        dist.all_reduce(value)
        print(f"loss {value.item()}")
    model.eval()
    with torch.no_grad():
        print(f"loss {model.module(data.tensors[0]).square().mean().item()}")
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "weights.pt")
dist.destroy_process_group()
