"""Train networks in sequence on one device and time their steps."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from cputrain.bench.networks.definitions import build_network
from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Autocast's dtypes, as they are appended to a device."""

NUM_WARM_UP_STEPS = 6
"""Warm-up steps, in which programs are compiled, kernels tuned and calls captured."""


def run(names: Sequence[str], device: str, batch: int, side: int, steps: int) -> dict[str, Any]:
    """Return the device's name, and each network's step times, host times and first loss.

    Args:
        names: Names of the networks.
        device: Name of the device; with "+graph", steps are captured and replayed, with "+float16"
            or "+bfloat16", models and losses are called under autocast.
        batch: Number of images of a step.
        side: Height and width of images.
        steps: Number of steps that are timed.

    Raises:
        UsageError: The device is not available.
    """
    device_name, *modes = device.split("+")
    autocast = next((DTYPES[mode] for mode in modes if mode in DTYPES), None)
    if set(modes) - DTYPES.keys() - ({"graph"} if device_name.startswith("ocl") else set()):
        raise UsageError(
            "--devices", "must be names of devices, +graph (ocl only), +float16 or +bfloat16",
            found=device,
        )  # fmt: skip
    if device_name.startswith("ocl"):
        import cputrain.opencl  # noqa: F401  (registers the device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        torch_device = torch.empty(1, device=device_name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            "--devices", "must be available", found=f"{device_name}: {str(error).splitlines()[0]}"
        ) from None
    device_module: Any = getattr(torch, torch_device.type)
    return {
        "of": (
            "the CPU"
            if torch_device.type == "cpu"
            else device_module.get_device_name(torch_device)
        ),
        "networks": {
            network: _train(
                network, torch_device, batch, side, steps, device_module, autocast,
                is_captured="graph" in modes,
            )
            for network in names
        },
    }  # fmt: skip


def _train(
    name: str, torch_device: torch.device, batch: int, side: int, steps: int, device_module: Any,
    autocast: torch.dtype | None, *, is_captured: bool,
) -> dict[str, Any]:  # fmt: skip
    torch.manual_seed(0)
    model = build_network(name)
    model.train()
    images, labels = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))
    model, images, labels = model.to(torch_device), images.to(torch_device), labels.to(torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    synchronize: Callable[[], None] = getattr(device_module, "synchronize", lambda: None)

    def eager_step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(torch_device.type, autocast, enabled=autocast is not None):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    step: Callable[[], object] = eager_step
    first_loss = eager_step().item()
    for _ in range(NUM_WARM_UP_STEPS - 1):
        eager_step()
    synchronize()
    if is_captured:
        from cputrain.opencl import Graph

        with Graph() as graph:
            step()
        step = graph.replay
    seconds, host_seconds = [], []
    for _ in range(steps):
        start_s = time.perf_counter()
        step()
        host_seconds.append(time.perf_counter() - start_s)
        synchronize()
        seconds.append(time.perf_counter() - start_s)
    return {"seconds": seconds, "asked": host_seconds, "loss": first_loss}
