"""Train networks on one device, one after the other."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from cputrain.bench.networks.definitions import network
from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

WARM = 3
"""Warm-up steps, in which programs are compiled and kernels tuned."""


def run(names: Sequence[str], device: str, batch: int, side: int, steps: int) -> dict[str, Any]:
    """Return step times and host times of each network, and the loss of its first step."""
    if device.startswith("ocl"):
        import cputrain.opencl  # noqa: F401  (registers it)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        where = torch.empty(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            "--devices", "must be there", found=f"{device}: {str(error).splitlines()[0]}"
        ) from None
    module: Any = getattr(torch, where.type)
    return {
        "of": "the CPU" if where.type == "cpu" else module.get_device_name(where),
        "networks": {
            name: _trained(name, where, batch, side, steps, module) for name in names
        },
    }  # fmt: skip


def _trained(
    name: str, where: torch.device, batch: int, side: int, steps: int, module: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = network(name)
    model.train()
    x, y = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))
    model, x, y = model.to(where), x.to(where), y.to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    finish: Callable[[], None] = getattr(module, "synchronize", lambda: None)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    first = step().item()
    for _ in range(WARM - 1):
        step()
    finish()
    seconds, asked = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        asked.append(time.perf_counter() - begin)
        finish()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds, "asked": asked, "loss": first}
