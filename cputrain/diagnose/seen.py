"""What was seen of a run: figures of one step, whoever reads them."""

from __future__ import annotations

from cputrain.bench.compare import median
from cputrain.record import Record
from cputrain.runtime.counted import others_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Operator(Record):
    """One, with tensors of one form, in one place of the model: of a step."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    phase: str
    """ "forward", "backward" or "optimizer"."""

    layer: str
    """The module that called it, or whose gradient it is."""

    calls: float
    seconds: float
    flops: float
    bytes: float
    """Read and written, all calls together, if no cache helped."""

    numbers: float
    """Of the largest tensor that it takes or makes, all calls together."""

    channels_last: bool

    elementwise: bool
    """Whether it goes number by number, so that a compiler makes one of several."""

    computed_in: str = ""
    """The type it may be computed in, where the script allows fewer bits than its tensors have."""

    def __post_init__(self) -> None:
        """Nothing is less than none."""
        for name in ("calls", "seconds", "flops", "bytes", "numbers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.name} is {getattr(self, name)}")

    @property
    def computes(self) -> str:
        """The type that its speed is to be held against."""
        return self.computed_in or self.dtype

    @property
    def flops_per_s(self) -> float:
        """Operations in a second; 0 where they or their time are not known."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes in a second; 0 where they or their time are not known."""
        return self.bytes / self.seconds if self.seconds else 0.0


class Seen(Record):
    """One step, in the middle of several; times are seconds."""

    step: float
    spread: float
    """How far apart the middle half of the steps was, as a part of that."""

    wait: float
    """For a DataLoader's next batch."""

    backward: float
    optimizer: float
    threads: int

    steps: int
    """How many were timed."""

    operators: tuple[Operator, ...]

    line: tuple[tuple[int, float, float], ...]
    """One step as it went when each operator was timed: which of them, its begin, its seconds."""

    kinds: dict[str, str]
    """The class of each layer, by its name."""

    optimizers: tuple[dict[str, Any], ...]
    loaders: tuple[str, ...]
    """Kinds of iterators that were waited for."""

    counted: dict[str, float]
    """What the system counted in a step: pages, seconds of user and system, switches."""

    clock: float
    """Hertz in the mean; 0 where that is not told."""

    highest_clock: float
    """The highest that was met."""

    placed: dict[str, float]
    """Bytes on each memory node, without those of files."""

    tiny: float
    """The part of results that were denormal numbers."""

    others_traced: float = 0.0
    """CPUs that others used while operators were timed."""

    def __post_init__(self) -> None:
        """A step takes time, and its line is of its operators."""
        if self.step <= 0 or self.threads < 1:
            raise ValueError(f"a step of {self.step} s with {self.threads} threads")
        for name in ("wait", "backward", "optimizer", "spread"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if any(not 0 <= which < len(self.operators) for which, _, _ in self.line):
            raise ValueError("a line with operators that are not told")

    @property
    def forward(self) -> float:
        """Seconds of a step that are none of the others': the script's own lines, too."""
        return max(0.0, self.step - self.wait - self.backward - self.optimizer)

    @property
    def computing(self) -> float:
        """Seconds of all operators."""
        return sum(one.seconds for one in self.operators)

    @property
    def busy(self) -> float:
        """CPUs that this process has at work, in the mean."""
        own = self.counted.get("user_seconds", 0.0) + self.counted.get("system_seconds", 0.0)
        return own / self.step

    @property
    def others(self) -> float:
        """CPUs that others used while steps were timed: other programs, or other machines."""
        return others_seconds(self.counted) / self.step

    @property
    def whole(self) -> float:
        """Seconds that shares are of: a step, or longer where timing its operators made it so."""
        return max(self.step, self.wait + self.computing)

    @property
    def between(self) -> float:
        """Seconds of a step that are neither an operator's nor waiting: Python's, mostly."""
        return max(0.0, self.step - self.wait - self.computing)


def seen_of(document: dict[str, Any]) -> Seen:
    """From what the watcher within the run wrote."""
    many = max(1, len(document["optimizers"]))
    steps = _together(document["steps"], many)
    traced = document["traced"] or 1
    seconds = sorted(one["seconds"] for one in steps)
    middle = median(seconds)
    quarter = max(0, len(seconds) // 4)
    operators = tuple(
        Operator(
            **{**one, "shapes": tuple(map(tuple, one["shapes"])),
               "calls": one["calls"] / traced, "seconds": one["seconds"] / traced,
               "flops": one["flops"] * one["calls"] / traced,
               "bytes": one["bytes"] * one["calls"] / traced,
               "numbers": one["numbers"] * one["calls"] / traced},
        )
        for one in document["operators"]
    )  # fmt: skip
    return Seen(
        step=middle,
        spread=(seconds[-1 - quarter] - seconds[quarter]) / middle,
        wait=median([one["wait"] for one in steps]),
        backward=median([one["backward"] for one in steps]),
        optimizer=median([one["optimizer"] for one in steps]),
        threads=document["threads"],
        steps=len(steps),
        operators=operators,
        line=tuple((which, begin, seconds) for which, begin, seconds in document["line"]),
        kinds=document["kinds"],
        optimizers=tuple(document["optimizers"]),
        loaders=tuple(document["loaders"]),
        counted={name: value / len(steps) for name, value in document["counted"].items()},
        clock=sum(document["clocks"]) / max(1, len(document["clocks"])),
        highest_clock=max(document["clocks"], default=0.0),
        placed=document["placed"],
        tiny=document["tiny"],
        others_traced=document.get("others_traced", 0.0),
    )


def _together(steps: list[dict[str, float]], many: int) -> list[dict[str, float]]:
    """Where several optimizers take turns, one step of each is a step."""
    whole = len(steps) - len(steps) % many
    return [
        {name: sum(one[name] for one in steps[at : at + many]) for name in steps[0]}
        for at in range(0, whole, many)
    ]
