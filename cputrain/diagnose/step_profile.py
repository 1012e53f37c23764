"""Profile of one training step: its phases, its operators and the system's counters."""

from __future__ import annotations

from statistics import median

from cputrain.record import Record
from cputrain.runtime.counters import other_cpu_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class OperatorTime(Record):
    """Calls in one step of an operator with the same shapes, dtype, phase and module."""

    name: str
    """Name of the operator without its namespace, such as "mm"."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the first tensors among its arguments."""

    dtype: str
    """Dtype of the first tensor, such as "float32"; empty without tensors."""

    phase: str
    """Phase of the step: "forward", "backward" or "optimizer"."""

    layer: str
    """Qualified name of the module that calls the operator, or whose gradient it computes."""

    calls: float
    """Number of calls in a step."""

    seconds: float
    """Time of all calls in seconds."""

    flops: float
    """Floating-point operations of all calls; 0 if they are not counted."""

    bytes: float
    """Bytes that all calls read and write, as if no cache helped."""

    numbers: float
    """Elements of the largest argument or result, summed over all calls."""

    channels_last: bool
    """Whether the first tensor is a batch of images in the channels-last memory format."""

    elementwise: bool
    """Whether the operator is pointwise, so that a compiler can fuse it with its neighbors."""

    computed_in: str = ""
    """Lower-precision dtype that the script allows torch to compute in; empty if none."""

    def __post_init__(self) -> None:
        """Reject negative values."""
        for name in ("calls", "seconds", "flops", "bytes", "numbers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.name} is {getattr(self, name)}")

    @property
    def compute_dtype(self) -> str:
        """Return the dtype whose peak FLOP/s bounds the operator."""
        return self.computed_in or self.dtype

    @property
    def flops_per_s(self) -> float:
        """Return the FLOP/s; 0 if the operations or their time are unknown."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Return the bytes per second; 0 if the bytes or their time are unknown."""
        return self.bytes / self.seconds if self.seconds else 0.0


class StepProfile(Record):
    """Median step of a run, and operators of the traced steps behind it; times are in seconds."""

    step: float
    """Median time of an undisturbed step."""

    spread: float
    """Interquartile range of the step times, as a fraction of the median."""

    wait: float
    """Time in which the step waits for the DataLoader's next batch."""

    backward: float
    """Time in `torch.autograd.backward`."""

    optimizer: float
    """Time in the steps of the optimizers."""

    threads: int
    """Intra-op threads of torch."""

    steps: int
    """Number of undisturbed steps that were timed."""

    operators: tuple[OperatorTime, ...]
    """Operators, averaged over the traced steps."""

    line: tuple[tuple[int, float, float], ...]
    """Timeline of one traced step: index in `operators`, start and duration of each call."""

    kinds: dict[str, str]
    """Class name of each module by qualified name."""

    optimizers: tuple[dict[str, Any], ...]
    """Name, size and fusibility of each optimizer."""

    loaders: tuple[str, ...]
    """Class names of the DataLoader iterators."""

    counted: dict[str, float]
    """Growth of the system's counters in a step: CPU seconds, page faults, context switches."""

    clock: float
    """Mean CPU clock in hertz; 0 if unknown."""

    highest_clock: float
    """Highest observed CPU clock in hertz; 0 if unknown."""

    placed: dict[str, float]
    """Bytes of the process on each NUMA node, without file mappings."""

    tiny: float
    """Fraction of sampled results that are denormal numbers."""

    tensor_bytes: float = 0.0
    """Bytes of the tensors that a step reads or writes, each counted once; 0 if unknown."""

    others_traced: float = 0.0
    """Mean number of CPUs that other processes used while operators were traced."""

    def __post_init__(self) -> None:
        """Reject times that cannot be, and a timeline with unknown operators."""
        if self.step <= 0 or self.threads < 1:
            raise ValueError(f"a step of {self.step} s with {self.threads} threads")
        for name in ("wait", "backward", "optimizer", "spread"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if any(not 0 <= index < len(self.operators) for index, _, _ in self.line):
            raise ValueError("line has an index that is not in operators")

    @property
    def forward(self) -> float:
        """Return the seconds of a step outside the other phases, with the script's own code."""
        return max(0.0, self.step - self.wait - self.backward - self.optimizer)

    @property
    def computing(self) -> float:
        """Return the seconds of all operators."""
        return sum(operator.seconds for operator in self.operators)

    @property
    def busy_cpus(self) -> float:
        """Return the mean number of CPUs that the process uses."""
        cpu_s = self.counted.get("user_seconds", 0.0) + self.counted.get("system_seconds", 0.0)
        return cpu_s / self.step

    @property
    def other_cpus(self) -> float:
        """Return the mean number of CPUs that other programs and virtual machines used."""
        return other_cpu_seconds(self.counted) / self.step

    @property
    def instrumented_step(self) -> float:
        """Return the seconds of a step whose operators are timed: the base of their shares."""
        return max(self.step, self.wait + self.computing)

    @property
    def between(self) -> float:
        """Return the seconds of a step outside operators and waiting: mostly Python's."""
        return max(0.0, self.step - self.wait - self.computing)


def step_profile_of(document: dict[str, Any]) -> StepProfile:
    """Return the profile from the document that `runtime/diagnosing.py` writes."""
    num_optimizers = max(1, len(document["optimizers"]))
    steps = _whole_steps(document["steps"], num_optimizers)
    num_traced = document["traced"] or 1
    step_times = sorted(step["seconds"] for step in steps)
    median_s = median(step_times)
    quarter = max(0, len(step_times) // 4)
    operators = tuple(
        OperatorTime(
            **{**entry, "shapes": tuple(map(tuple, entry["shapes"])),
               "calls": entry["calls"] / num_traced, "seconds": entry["seconds"] / num_traced,
               "flops": entry["flops"] * entry["calls"] / num_traced,
               "bytes": entry["bytes"] * entry["calls"] / num_traced,
               "numbers": entry["numbers"] * entry["calls"] / num_traced},
        )
        for entry in document["operators"]
    )  # fmt: skip
    return StepProfile(
        step=median_s,
        spread=(step_times[-1 - quarter] - step_times[quarter]) / median_s,
        wait=median([step["wait"] for step in steps]),
        backward=median([step["backward"] for step in steps]),
        optimizer=median([step["optimizer"] for step in steps]),
        threads=document["threads"],
        steps=len(steps),
        operators=operators,
        line=tuple((index, begin, seconds) for index, begin, seconds in document["line"]),
        kinds=document["kinds"],
        optimizers=tuple(document["optimizers"]),
        loaders=tuple(document["loaders"]),
        counted={name: value / len(steps) for name, value in document["counted"].items()},
        clock=sum(document["clocks"]) / max(1, len(document["clocks"])),
        highest_clock=max(document["clocks"], default=0.0),
        placed=document["placed"],
        tiny=document["tiny"],
        tensor_bytes=document["tensor_bytes"] / num_traced,
        others_traced=document.get("others_traced", 0.0),
    )


def _whole_steps(steps: list[dict[str, float]], num_optimizers: int) -> list[dict[str, float]]:
    """Return the times of training steps, each the sum of one step of every optimizer."""
    end = len(steps) - len(steps) % num_optimizers
    return [
        {
            name: sum(step[name] for step in steps[begin : begin + num_optimizers])
            for name in steps[0]
        }
        for begin in range(0, end, num_optimizers)
    ]
