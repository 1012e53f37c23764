"""Scripts of others that divide their work among ranks run as they are."""

from __future__ import annotations

import json

import pytest

from tests.launch.programs import launch, ours, script
from tests.selected import some

ACCELERATE = """
import json, sys, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8)
model = torch.nn.Linear(8, 1)
here = Accelerator(cpu=True)
model, data, optimizer = here.prepare(
    model, data, torch.optim.SGD(model.parameters(), lr=0.1)
)
seen = 0
for samples, values in data:
    seen += len(samples)
    optimizer.zero_grad()
    here.backward(torch.nn.functional.mse_loss(model(samples), values))
    optimizer.step()
weights = here.unwrap_model(model).weight
every = here.gather(weights)
told = {'ranks': here.num_processes, 'seen': seen, 'alike': bool((every == weights).all())}
"""

LIGHTNING = """
import json, sys, torch, lightning
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    seen = 0
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        samples, values = batch
        self.seen += len(samples)
        return torch.nn.functional.mse_loss(self.layer(samples), values)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8)
model = Model()
trainer = lightning.Trainer(
    accelerator='cpu', strategy='ddp', devices=2, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model, data)
from torch import distributed
weights = model.layer.weight.detach()
every = [torch.empty_like(weights) for _ in range(trainer.world_size)]
distributed.all_gather(every, weights)
told = {'ranks': trainer.world_size, 'seen': model.seen,
        'alike': all(bool((one == weights).all()) for one in every)}
"""

TRANSFORMERS = """
import json, sys, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    seen = 0
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, samples, labels=None):
        self.seen += len(samples)
        made = self.layer(samples)
        return {'loss': torch.nn.functional.mse_loss(made, labels), 'logits': made}
torch.manual_seed(0)
data = [{'samples': torch.randn(8), 'labels': torch.randn(1)} for _ in range(64)]
model = Model()
trainer = Trainer(model, TrainingArguments(
    'out', use_cpu=True, per_device_train_batch_size=8, num_train_epochs=1, report_to=[],
    save_strategy='no', disable_tqdm=True, logging_strategy='no',
), train_dataset=data)
trainer.train()
from torch import distributed
weights = model.layer.weight.detach()
every = [torch.empty_like(weights) for _ in range(trainer.args.world_size)]
distributed.all_gather(every, weights)
told = {'ranks': trainer.args.world_size, 'seen': model.seen,
        'alike': all(bool((one == weights).all()) for one in every)}
"""

END = "sys.stdout.write(json.dumps(told) + chr(10))\n"


@pytest.mark.parametrize(
    "text",
    some([ACCELERATE, LIGHTNING, TRANSFORMERS], 1),
    ids=["accelerate", "lightning", "transformers"],
)
def test_a_framework_finds_its_ranks(tmp_path, text):
    script(tmp_path, text + END)
    done = launch(tmp_path, "--nproc-per-node", "2", "x.py")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"ranks"')]
    assert told == [{"ranks": 2, "seen": 32, "alike": True}] * 2
    assert len(ours(done)) == 1
