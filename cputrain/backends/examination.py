"""Examination of a backend in its process: train, evaluate and time single layers.

Results are written to an .npz file; `comparison` compares them with the default's.
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
    from cputrain.backends.backend import Backend, ModelCall

NUM_UPDATES = 20
"""Number of optimizer steps before the weights are compared."""

CHANGE_FACTOR = 1.5
"""Factor by which a weight is multiplied in place between two calls."""


class Examination:
    """Handler of examination requests, which are dictionaries decoded from JSON.

    A request with "layer", "training" and "write" trains or evaluates a layer and writes the
    results to the file "write"; one with "layer", "training" and "seconds" times it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._layer_runs: dict[tuple[str, bool], _LayerRun] = {}

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Process a request and return its answer."""
        layer, training = request["layer"], request["training"]
        if "write" not in request:
            return {"step": self._layer_runs[layer, training].mean_step_time(request["seconds"])}
        layer_run = self._layer_runs[layer, training] = _LayerRun(
            self._backend, layer, training=training
        )
        results = layer_run.train() if training else layer_run.evaluate()
        arrays: Any = {name: tensor.detach().numpy() for name, tensor in results.items()}
        np.savez(request["write"], **arrays)
        return {}


class _LayerRun:
    """A layer with its batch and optimizer, run by a backend."""

    def __init__(self, backend: Backend, layer: str, *, training: bool) -> None:
        make_model, make_batch = LAYERS[layer]
        torch.manual_seed(1)
        self._model = make_model().train(training)
        self._batch = make_batch()
        self._training = training
        with torch.no_grad():
            shape = make_model().eval()(self._batch).shape
        self._target = torch.randn(shape)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05)
        optimizer = self._optimizer if training else None
        self._run: ModelCall = backend.activate(self._model, optimizer, training=training)

    def train(self) -> dict[str, torch.Tensor]:
        """Train, and return losses, first gradients, final weights and outputs after changes."""
        results: dict[str, torch.Tensor] = {}
        losses = []
        for update in range(NUM_UPDATES):
            losses.append(self._step(update == 0, results))
        results["loss"] = torch.tensor(losses, dtype=torch.float64)
        # A backend may store parameters in another layout; state_dict returns them in torch's.
        for name, tensor in self._model.state_dict().items():
            if tensor.is_floating_point():
                results[f"weight {name}"] = tensor.clone()
        self._change_weights(results)
        return results

    def _change_weights(self, results: dict[str, torch.Tensor]) -> None:
        """Change each weight in place, then all by a fused optimizer; record every output.

        A backend that caches weights returns stale outputs here. Fused optimizer kernels change
        weights without incrementing the tensors' versions.
        """
        for name, weight in self._weights():
            with torch.no_grad():
                weight.mul_(CHANGE_FACTOR)
            results[f"after {name} changed"] = self._output()
        weights = [weight for _, weight in self._weights()]
        for weight in weights:
            weight.grad = weight.detach().clone()
        torch.optim.SGD(weights, lr=1 - 1 / CHANGE_FACTOR, fused=True).step()
        results["after a fused update"] = self._output()

    def _output(self) -> torch.Tensor:
        return self._run(self._model, self._batch).detach().clone()  # type: ignore[no-any-return]

    def _step(self, is_first: bool, results: dict[str, torch.Tensor]) -> float:
        output: Any = self._run(self._model, self._batch)
        loss: Any = (output - self._target).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        if is_first:
            results["output"] = output.detach().clone()
            for name, weight in self._weights():
                assert weight.grad is not None
                results[f"gradient {name}"] = weight.grad.clone()
        self._optimizer.step()
        return float(loss)

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [pair for pair in self._model.named_parameters() if pair[1].requires_grad]

    def evaluate(self) -> dict[str, torch.Tensor]:
        """Return outputs before and after each weight is changed in place."""
        results: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            results["output"] = self._run(self._model, self._batch).clone()
            self._change_weights(results)
        return results

    def mean_step_time(self, seconds: float) -> float:
        """Return the mean step time in seconds, over at least `seconds` seconds of steps."""
        num_steps, start = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - start) < seconds or not num_steps:
            if self._training:
                self._step(False, {})
            else:
                with torch.no_grad():
                    self._run(self._model, self._batch)
            num_steps += 1
        return elapsed_s / num_steps
