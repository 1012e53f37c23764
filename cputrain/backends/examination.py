"""What the process of one backend does: it trains and evaluates layers, and times them.

It judges nothing. What came out is written to a file of arrays, to be put beside the default's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from cputrain.backends.layers import LAYERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.backends.backend import Backend, Run

UPDATES = 20
"""Of the weights, before they are compared."""

CHANGED = 1.5
"""What a weight is multiplied by, in place, between two calls."""


class Examination:
    """Requests are {"layer", "training", "write"} or {"layer", "training", "seconds"}."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ready: dict[tuple[str, bool], _Ready] = {}

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a request and return its answer."""
        layer, training = request["layer"], request["training"]
        if "write" not in request:
            return {"step": self._ready[layer, training].timed(request["seconds"])}
        ready = self._ready[layer, training] = _Ready(self._backend, layer, training=training)
        found = ready.trained() if training else ready.evaluated()
        arrays: Any = {name: one.detach().numpy() for name, one in found.items()}
        np.savez(request["write"], **arrays)
        return {}


class _Ready:
    """A layer, its batch and its optimizer, run by a backend."""

    def __init__(self, backend: Backend, layer: str, *, training: bool) -> None:
        make, batch = LAYERS[layer]
        torch.manual_seed(1)
        self._model = make().train(training)
        self._batch = batch()
        self._training = training
        with torch.no_grad():
            shape = make().eval()(self._batch).shape
        self._target = torch.randn(shape)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05)
        optimizer = self._optimizer if training else None
        self._run: Run = backend.activate(self._model, optimizer, training=training)

    def trained(self) -> dict[str, torch.Tensor]:
        """Train, and return losses, first gradients, final weights and outputs after changes."""
        found: dict[str, torch.Tensor] = {}
        losses = []
        for update in range(UPDATES):
            losses.append(self._step(update == 0, found))
        found["loss"] = torch.tensor(losses, dtype=torch.float64)
        # a backend may keep parameters in an order of its own, and tells them in torch's here
        for name, one in self._model.state_dict().items():
            if one.is_floating_point():
                found[f"weight {name}"] = one.clone()
        self._change(found)
        return found

    def _change(self, found: dict[str, torch.Tensor]) -> None:
        """Write to each weight in its place: the output must be another one.

        An optimizer's fused kernel writes to all of them, and no version of a tensor tells.
        """
        for name, weight in self._weights():
            with torch.no_grad():
                weight.mul_(CHANGED)
            found[f"after {name} changed"] = self._output()
        weights = [weight for _, weight in self._weights()]
        for weight in weights:
            weight.grad = weight.detach().clone()
        torch.optim.SGD(weights, lr=1 - 1 / CHANGED, fused=True).step()
        found["after a fused update"] = self._output()

    def _output(self) -> torch.Tensor:
        return self._run(self._model, self._batch).detach().clone()  # type: ignore[no-any-return]

    def _step(self, first: bool, found: dict[str, torch.Tensor]) -> float:
        output: Any = self._run(self._model, self._batch)
        loss: Any = (output - self._target).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        if first:
            found["output"] = output.detach().clone()
            for name, one in self._weights():
                assert one.grad is not None
                found[f"gradient {name}"] = one.grad.clone()
        self._optimizer.step()
        return float(loss)

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [pair for pair in self._model.named_parameters() if pair[1].requires_grad]

    def evaluated(self) -> dict[str, torch.Tensor]:
        """Return outputs before and after each weight is changed in place."""
        found: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            found["output"] = self._run(self._model, self._batch).clone()
            self._change(found)
        return found

    def timed(self, seconds: float) -> float:
        """Return the mean step time in seconds, over at least `seconds` seconds of steps."""
        count, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < seconds or not count:
            if self._training:
                self._step(False, {})
            else:
                with torch.no_grad():
                    self._run(self._model, self._batch)
            count += 1
        return took / count
