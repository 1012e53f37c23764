"""Record the stamps of the weights after each of the first steps, and end the run."""

from __future__ import annotations

import atexit
import json
import os

from cputrain.reproduce.stamp import stamp_of, state_of_models
from cputrain.runtime.trained_models import TrainedModels
from cputrain.runtime.trial import end_process, seed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class StampRecorder:
    """Records stamps, and writes them when the run ends.

    Args:
        torch: The module.
        fd: File descriptor that the JSON document is written to.
        stamps: Optimizer steps after which the run ends.
    """

    def __init__(self, torch: ModuleType, *, fd: int, stamps: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._fd = fd
        self._num_steps = stamps
        self._version = str(torch.__version__)
        self._pid = os.getpid()
        self._models = TrainedModels(torch)
        self._steps: list[dict[str, Any]] = []
        seed(torch)
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._write)

    def _after_step(self, *_: object) -> None:
        state = state_of_models(self._models)
        tensors = {name: stamp_of({name: tensor}) for name, tensor in state.items()}
        self._steps.append({"weights": stamp_of(state), "tensors": tensors})
        if len(self._steps) == self._num_steps:
            self._write()
            end_process()

    def _write(self) -> None:
        if os.getpid() != self._pid or self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with open(fd, "w", encoding="utf-8") as file:
            json.dump({"torch": self._version, "steps": self._steps} if self._steps else {}, file)
