"""The process that takes steps by JAX, beside one that takes them by torch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from cputrain.bench.steps import jax_steps
from cputrain.errors import UsageError

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor


class JaxProcess:
    """Steps of a network by JAX, in an interpreter that has it.

    Args:
        python: The interpreter.
        model: Linear layers with activations between them.
        loss: The loss.
        batch: Inputs and targets.
        num_threads: Number of threads: one, or all.
    """

    def __init__(
        self, python: str, model: nn.Module, loss: Any, batch: tuple[Tensor, Tensor],
        num_threads: int,
    ) -> None:  # fmt: skip
        arrays: dict[str, Any] = {
            "inputs": batch[0].numpy(), "targets": batch[1].numpy(),
            "activation": type(list(model.children())[1]).__name__, "loss": type(loss).__name__,
        }  # fmt: skip
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
        for number, layer in enumerate(layers):
            arrays[f"weight{number}"] = layer.weight.detach().numpy()
            arrays[f"bias{number}"] = layer.bias.detach().numpy()
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environ = dict(os.environ) | ({"XLA_FLAGS": flags} if num_threads == 1 else {})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "network.npz")
            np.savez(path, **arrays)
            try:
                self._process = subprocess.Popen(
                    [python, jax_steps.__file__, str(path)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
                )  # fmt: skip
            except OSError as error:
                raise _error(python, error.strerror or "cannot be run") from error
            self._python = python
            self.losses = [float(word) for word in self._read().split()]
            """Losses of the first steps."""

    def seconds(self, duration: float) -> float:
        """Take steps for so many seconds, and return the time of one."""
        assert self._process.stdin is not None
        print(duration, file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise _error(self._python, "it ended; its error is above")
        return line


def _error(python: str, problem: str) -> UsageError:
    return UsageError(
        "--jax", "must be an interpreter with JAX and Optax", found=f"{python}: {problem}",
        do="Make an environment for it: pip install jax optax",
    )  # fmt: skip
