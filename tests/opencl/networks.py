"""Networks that people train: forward, backward and a step, by kernels alone."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional

import cputrain.opencl  # noqa: F401

pytest.importorskip("PIL", reason="needs torchvision and what it needs")
if torch.version.cuda is None and find_spec("torchvision"):
    # its wheel may be one for CUDA, whose operators are not found here, and it asks for these two
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
models = pytest.importorskip("torchvision.models", reason="needs torchvision's definitions")

pytestmark = pytest.mark.usefixtures("forbidden")

NAMES = (
    "alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0",
    "inception_v3", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large",
    "mobilenet_v3_small", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_0", "efficientnet_b0",
    "efficientnet_b4", "regnet_y_400mf",
)  # fmt: skip

LEAST = {"inception_v3": 139}
"""Pixels of a side that a network needs, where 64 are too few for its last norms."""

OWN = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def made(name):
    model = getattr(models, name)(num_classes=10, **OWN.get(name, {}))
    for layer in model.modules():  # the numbers that are drawn there are others
        if isinstance(layer, nn.Dropout) or type(layer).__name__ == "StochasticDepth":
            layer.p = 0.0
    return model


def stepped(model, x, y):
    """Output, gradients, and parameters and buffers after a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    out = model(x)
    functional.cross_entropy(out, y).backward()
    optimizer.step()
    gradients = [one.grad.cpu() for one in model.parameters()]
    return [out.detach().cpu()], gradients, [one.cpu() for one in model.state_dict().values()]


def apart(found, expected):
    """How far all are from where they should be, of how long they are together."""
    whole = sum(float(one.double().norm() ** 2) for one in expected) ** 0.5
    parts = (
        float((one - other).double().norm()) for one, other in zip(found, expected, strict=True)
    )
    return max(parts) / whole


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_on_the_cpu(name):
    """In float64 but for rounding. In float32 about as well as the CPU does: networks make much of
    rounding, where it has another element be the largest, or a norm has few of them."""
    model = made(name)
    side = LEAST.get(name, 64)
    x, y = torch.randn(3, 3, side, side), torch.tensor([1, 3, 7])
    expected = stepped(copy.deepcopy(model).double(), x.double(), y)
    for kind in (torch.float64, torch.float32):
        found = stepped(copy.deepcopy(model).to("ocl", kind), x.to("ocl", kind), y.to("ocl"))
        own = stepped(copy.deepcopy(model), x, y) if kind is torch.float32 else None
        for at, exact in enumerate(expected):
            close = 1e-8 if own is None else 1e-2 + 20 * apart(own[at], exact)
            assert apart(found[at], exact) < close
