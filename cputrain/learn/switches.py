"""Settings that can be switched between two steps of a running script."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.runtime.channels_last import ChannelsLast
    from cputrain.runtime.replicas import Replicas
    from cputrain.settings.core.setting import Applied


class StepSwitch:
    """A setting in effect that can be switched to other values.

    Args:
        torch: The module.
        applied: What carries out the setting.
    """

    num_settling = 1
    """Steps after a switch whose times do not count."""

    num_risked = 2.0
    """Steps whose time a try is expected to lose at most."""

    risked_s = 0.0
    """Seconds that it may take besides: to load modules, to start threads."""

    needs_twin = False
    """Whether results are compared before a value may stay."""

    is_monotonic = False
    """Whether candidates are ordered: after a slower one the rest is not tried."""

    def __init__(self, torch: ModuleType, applied: Any) -> None:
        self.torch = torch
        self.applied: Applied = applied

    @property
    def value(self) -> str:
        """Value in use, as a user would type it."""
        raise NotImplementedError

    def candidates(self) -> list[str]:
        """Return the values to try, the most promising first, for the models called so far."""
        raise NotImplementedError

    def use(self, value: str) -> None:
        """Switch to a value."""
        raise NotImplementedError

    def prepare(self, model: Any, value: str) -> None:
        """Apply a value to a copy of a model."""

    def discard(self) -> None:
        """Release what was made for candidates that are not used any more."""


class ThreadsSwitch(StepSwitch):
    """Number of intra-op threads.

    Results of other numbers of threads are what "the same result" means: none are compared.
    """

    is_monotonic = True

    @property
    def value(self) -> str:
        """Number in use."""
        return str(self.torch.get_num_threads())

    def candidates(self) -> list[str]:
        """Return half the number in use, a quarter, …, 1."""
        number = self.torch.get_num_threads()
        return [str(number >> halvings) for halvings in range(1, number.bit_length())]

    def use(self, value: str) -> None:
        """Set the number of threads."""
        self.torch.set_num_threads(int(value))


class ChannelsLastSwitch(StepSwitch):
    """Memory format of the weights of convolutions."""

    num_settling = 2
    num_risked = 1.0
    risked_s = 0.05
    needs_twin = True
    applied: ChannelsLast

    @property
    def value(self) -> str:
        """Whether weights are converted."""
        return "on" if self.applied.is_on else "off"

    def candidates(self) -> list[str]:
        """Return the other value, if a model that was called has convolutions."""
        if not self.applied.can_convert():
            return []
        return ["off" if self.applied.is_on else "on"]

    def use(self, value: str) -> None:
        """Convert the weights of all models, or convert them back."""
        self.applied.use(is_on=value == "on")

    def prepare(self, model: Any, value: str) -> None:
        """Convert the weights of a copy."""
        if value == "on":
            self.applied.convert_copy(model)


class ReplicasSwitch(StepSwitch):
    """Number of replicas that divide each batch; they are proved to be equal before they run."""

    num_settling = 4
    num_risked = 8.0
    risked_s = 0.3
    applied: Replicas

    @property
    def value(self) -> str:
        """Number in use."""
        return str(self.applied.count or 1)

    def candidates(self) -> list[str]:
        """Return the numbers that `--replicas auto` would try; 1, if there are several now."""
        from cputrain.split.execution.placement import places

        if self.applied.count is not None:
            return ["1"]
        return [str(count) for count in places(None) if count > 1]

    def use(self, value: str) -> None:
        """Divide the batches of the next calls among so many replicas."""
        self.applied.use(None if value == "1" else int(value))

    def discard(self) -> None:
        """End the replicas' threads."""
        self.applied.discard()


def switch_of(name: str, torch: ModuleType, value: Any) -> StepSwitch | None:
    """Apply a setting so that it can be switched; None if it cannot be."""
    if name == "threads":
        from cputrain.settings.threads import SETTING

        return ThreadsSwitch(torch, SETTING.apply(torch, value))
    if name == "channels_last":
        from cputrain.runtime.channels_last import ChannelsLast

        return ChannelsLastSwitch(torch, ChannelsLast(torch, is_on=value))
    if name == "replicas" and value != "auto":
        from cputrain.runtime.replicas import Replicas

        return ReplicasSwitch(torch, Replicas(torch, value, is_measured=False))
    return None
