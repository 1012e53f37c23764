"""What torch.nn.utils, swa_utils, amp and ao do to models: parametrizations, pruning, averages."""

import copy
import hashlib
import io
import warnings

import torch
from torch import nn
from torch.ao.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    fuse_modules_qat,
    get_default_qat_qconfig,
    prepare_qat,
)
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize, prune
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn


def net():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 3),
    )  # fmt: skip


def fit(tag, model, steps=3, *, optimizer=None, scheduler=None, after=None, scaler=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        x, y = torch.randn(9, 3, 8, 8), torch.randint(3, (9,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            norm = clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None:
            scheduler.step()
        if after is not None:
            after(model)
        state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8]
        print(tag, "loss", loss.item(), norm.item(), state)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    for name, value in torch.load(file).items():
        if isinstance(value, torch.Tensor):
            print(tag, name, value.dtype, value.stride(), value.double().abs().sum().item())


model = net()
model[0] = parametrizations.weight_norm(model[0])
model[3] = parametrizations.spectral_norm(model[3])
model[7] = parametrizations.orthogonal(model[7])
fit("parametrized", model)
parametrize.remove_parametrizations(model[0], "weight")
fit("removed", model)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model = net()
    model[0] = nn.utils.weight_norm(model[0])
    model[3] = nn.utils.spectral_norm(model[3])
fit("hooked norms", model)

model = net()
fit("unpruned", model)
prune.l1_unstructured(model[0], "weight", 0.3)
prune.ln_structured(model[3], "weight", 0.25, n=2, dim=0)
fit("pruned", model)
prune.remove(model[0], "weight")
fit("pruned", model, 2)

model = net()
average, swa = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def update(model):
    average.update_parameters(model)
    swa.update_parameters(model)


fit("average", model, 4, optimizer=optimizer, scheduler=SWALR(optimizer, 0.01), after=update)
update_bn([torch.randn(4, 3, 8, 8) for _ in range(2)], swa)
for name, value in swa.state_dict().items():
    print("swa", name, value.double().abs().sum().item())

scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
fit("scaler", net(), scaler=scaler)
print(scaler.state_dict())

model = net()
optimizers = {param: torch.optim.Adam([param], lr=0.01) for param in model.parameters()}


def step_in_backward(param):
    optimizers[param].step()
    optimizers[param].zero_grad()


for param in model.parameters():
    param.register_post_accumulate_grad_hook(step_in_backward)
x = torch.randn(8, 3, 8, 8)
for _ in range(3):
    loss = model(x).square().mean()
    loss.backward()
    print("in backward", loss.item())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.square() @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return 2 * x * grad.mm(weight), grad.t().mm(x.square())


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return Square.apply(self.body(x), self.head.weight)


torch.manual_seed(2)
model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    loss = model(torch.randn(6, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("function", loss.item(), loss.dtype)


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.conv, self.norm = QuantStub(), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.relu, self.head, self.dequant = nn.ReLU(), nn.Linear(8 * 36, 3), DeQuantStub()

    def forward(self, x):
        x = self.relu(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.head(x.reshape(len(x), -1)))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model = Quantized()
    model.qconfig = get_default_qat_qconfig("fbgemm")
    model = prepare_qat(fuse_modules_qat(model, [["conv", "norm", "relu"]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x), torch.arange(8) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("quantized", loss.item())
    print("quantized", tuple(convert(copy.deepcopy(model).eval())(x).shape))
