"""Record the stamps of the weights after each of the first steps, and end the run."""

from __future__ import annotations

import atexit

from cputrain.reproduce.stamp import stamp_of, state_of_models
from cputrain.runtime.trained_models import TrainedModels
from cputrain.runtime.trial import end_process, seed
from cputrain.runtime.trial_document import TrialDocument

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

        self._document = TrialDocument(fd)
        self._num_steps = stamps
        self._version = str(torch.__version__)
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
        document = {"torch": self._version, "steps": self._steps}
        self._document.write(document if self._steps else {})
