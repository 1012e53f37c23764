"""Image models of timm with its optimizers, schedulers, augmentation and averaged weights."""

import hashlib
import io

import torch

# torchvision's own operators need a build for this very torch; timm only needs their names
library = torch.library.Library("torchvision", "FRAGMENT")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, random_seed


def train(name, optimizer_name, **options):
    random_seed(42)
    model = timm.create_model(name, num_classes=4, **options)
    if "resnet" in name:
        model = model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt=optimizer_name, lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=4, warmup_t=1, warmup_lr_init=1e-5)
    average = ModelEmaV3(model, decay=0.9)
    mixup = Mixup(mixup_alpha=0.2, num_classes=4)
    criterion = SoftTargetCrossEntropy()
    scaler = NativeScaler(device="cpu")
    size = model.default_cfg["input_size"][-1] if "vit" in name else 64
    for step in range(4):
        x, y = torch.randn(4, 3, size, size), torch.randint(4, (4,))
        if "resnet" in name:
            x = x.contiguous(memory_format=torch.channels_last)
        x, y = mixup(x, y)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, clip_mode="agc", parameters=model.parameters())
        average.update(model, step=step)
        scheduler.step(step + 1)
        print(name, "loss", loss.item(), optimizer.param_groups[0]["lr"])
    average.eval()
    with torch.no_grad():
        print(name, "average", average(x).double().abs().sum().item())
        print(name, "features", [tuple(f.shape) for f in [model.forward_features(x)]])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    strides = str([(key, value.dtype, value.stride()) for key, value in state.items()])
    print(name, "state", hashlib.sha256(strides.encode()).hexdigest())


train("resnet10t", "sgd")
train("mobilenetv3_small_050", "rmsproptf")
train("vit_tiny_patch16_224", "adamw", depth=2)
train("convnext_atto", "lamb", depths=(1, 1, 1, 1))
print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
