"""`Graph`: captures the launches of operators, and replays them without Python in between."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch.optim.optimizer import register_optimizer_step_pre_hook

from cputrain.errors import CputrainError
from cputrain.opencl.device import CURRENT_DEVICE, devices
from cputrain.opencl.graphs.capture import CAPTURES, Capture
from cputrain.opencl.graphs.part import Part

if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device


class Graph:
    """The operators of a block of code on the current device, to be run again and again.

    The interface is that of `torch.accelerator.Graph`: operators in the block are not run but
    written down, `replay` runs them on the same memory. So copy new inputs into the tensors that
    the block has read, and read results from those that it has made. Random numbers differ from
    replay to replay as they would without a graph. What the block reads and makes keeps its memory
    as long as the graph.

    Args:
        keep_graph: As in torch; there is nothing to be kept.
        pool: As in torch; graphs share no memory.
        capture_error_mode: As in torch; other threads are never captured.
    """

    def __init__(
        self,
        keep_graph: bool = False,  # noqa: ARG002
        *,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        self.graph_pool, self.capture_error_mode = pool, capture_error_mode
        self._capture: Capture | None = None
        self._device: Device | None = None
        self._part: Part | None = None
        self._buffers: list[Any] = []
        self._hook: Any = None

    def capture_begin(self) -> None:
        """Begin to write down what this thread runs on the current device."""
        device = devices()[CURRENT_DEVICE.index]
        if self._capture is not None or self._part is not None:
            raise RuntimeError(
                "capture_begin: this graph has been captured already. Call reset() before."
            )
        if device in CAPTURES:
            raise RuntimeError(
                f"capture_begin: another graph is being captured on ocl:{device.index}. Call its "
                "capture_end() before."
            )
        self._capture = Capture(device)
        self._capture.begin()
        self._hook = register_optimizer_step_pre_hook(partial(_check_optimizer, self._capture))

    def capture_end(self) -> None:
        """End the capture; `replay` can be called from now on."""
        capture = self._take_capture()
        buffers = capture.end()
        draws = capture.draws()
        if not all(draw.seeds and draw.offsets for draw in draws):
            capture.device.unpin(buffers)
            raise CputrainError(
                "capture_end", "needs kernels that take the position of their random numbers",
                found="one that computes with it", do="Report this error.",
            )  # fmt: skip
        launches = capture.launches
        self._device, self._buffers = capture.device, buffers
        self._part = Part(capture.device, launches, draws, range(len(launches)))

    def instantiate(self) -> None:
        """Do nothing: `capture_end` has made all that `replay` needs."""

    def replay(self) -> None:
        """Run the operators again."""
        if self._part is None:
            raise RuntimeError(
                "replay: this graph has not been captured. Call capture_begin() and capture_end() "
                "before, or use the graph as a context manager."
            )
        self._part.run()

    def reset(self) -> None:
        """Drop what was captured; the graph can be captured again."""
        if self._capture is not None:
            self._abort()
        device, buffers = self._device, self._buffers
        self._device, self._part, self._buffers = None, None, []
        if device is not None:
            device.unpin(buffers)  # (commands that use them come before those that will)

    def pool(self) -> tuple[int, int]:
        """Return a token of this graph, as torch's does; graphs share no memory."""
        return (0, id(self))

    def __enter__(self) -> Graph:
        devices()[CURRENT_DEVICE.index].finish()
        self.capture_begin()
        return self

    def __exit__(self, error_type: Any, *_: object) -> None:
        if error_type is None:
            self.capture_end()
        else:
            self._abort()

    def __del__(self) -> None:
        self.reset()

    def _take_capture(self) -> Capture:
        capture = self._capture
        if capture is None:
            raise RuntimeError("capture_end: no capture has begun. Call capture_begin() before.")
        self._capture = None
        self._hook.remove()
        return capture

    def _abort(self) -> None:
        capture = self._take_capture()
        capture.device.unpin(capture.end())


def _check_optimizer(capture: Capture, optimizer: Any, *_: object) -> None:
    """Raise an error where an optimizer counts steps on the CPU: replays would not count."""
    if capture.is_of_this_thread and any(
        not group.get("capturable", True) for group in optimizer.param_groups
    ):
        raise RuntimeError(
            f"{type(optimizer).__name__}.step() is called while a graph is captured, and its "
            f"parameter group has capturable=False: its steps are counted on the CPU. Make it by "
            f"{type(optimizer).__name__}(…, capturable=True)."
        )
