"""Networks that people train: forward, backward and a step, by kernels alone."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch.nn import functional

import cputrain.opencl  # noqa: F401
from cputrain.bench.networks.cases import NETWORKS
from cputrain.bench.networks.definitions import build_network
from tests.selected import cases
from tests.torchvision_folder import FOLDER, is_there

sys.path.append(str(FOLDER))
if not is_there():
    pytest.skip("needs torchvision's definitions", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("forbidden")

LEAST = {"inception_v3": 139}
"""Pixels of a side that a network needs, where 64 are too few for its last norms."""


def stepped(model, x, y):
    """Output, gradients, and parameters and buffers after a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    out = model(x)
    functional.cross_entropy(out, y).backward()
    optimizer.step()
    gradients = [one.grad for one in model.parameters()]
    return [out.detach()], gradients, list(model.state_dict().values())


def network_and_step(name):
    """A network, images, labels, and what a step gives in float64."""
    model = build_network(name, classes=10)
    side = LEAST.get(name, 64)
    x, y = torch.randn(3, 3, side, side), torch.tensor([1, 3, 7])
    return model, x, y, stepped(copy.deepcopy(model).double(), x.double(), y)


def apart(found, expected):
    """How far all are from where they should be, of how long they are together."""
    whole = sum(float(one.double().norm() ** 2) for one in expected) ** 0.5
    parts = (
        float((one.cpu() - other).double().norm())
        for one, other in zip(found, expected, strict=True)
    )
    return max(parts) / whole


@pytest.fixture(autouse=True)
def _memory():
    yield
    torch.ocl.empty_cache()


OTHERS_HAVE = {"vgg16", "wide_resnet50_2", "efficientnet_b4"}
"""Networks whose kinds of layers others have, in fewer or narrower ones."""

SHORT = {"mobilenet_v3_small"}
"""A network of the kinds of layers that others have as well."""

IN_FLOAT32 = [*SHORT, "resnet18", "googlenet", "densenet161"]
"""Networks that `make test-all` trains in float32 as well: to compile its kernels takes as long."""


@pytest.mark.parametrize(
    "name", cases([name for name in NETWORKS if name not in OTHERS_HAVE], SHORT)
)
def test_it_trains_as_on_the_cpu(name):
    """In float64 but for rounding."""
    model, x, y, expected = network_and_step(name)
    found = stepped(
        copy.deepcopy(model).to("ocl", torch.float64), x.to("ocl").double(), y.to("ocl")
    )
    for one, exact in zip(found, expected, strict=True):
        assert apart(one, exact) < 1e-8


@pytest.mark.long
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_it_trains_in_float32_about_as_well_as_the_cpu(name):
    """Networks make much of rounding, where it has another element be the largest, or a norm has
    few of them."""
    model, x, y, expected = network_and_step(name)
    found = stepped(copy.deepcopy(model).to("ocl"), x.to("ocl"), y.to("ocl"))
    for one, exact, on_cpu in zip(found, expected, stepped(model, x, y), strict=True):
        assert apart(one, exact) < 1e-2 + 20 * apart(on_cpu, exact)
