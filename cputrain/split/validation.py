"""What a user asks of Split: checked, and told where it cannot be."""

from __future__ import annotations

import torch

from cputrain.errors import UsageError
from cputrain.split.devices import available

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def count_of(replicas: int | str) -> int | None:
    """The number of replicas; None for what is fastest."""
    if replicas == "auto":
        return None
    if isinstance(replicas, bool) or not isinstance(replicas, int) or not 1 <= replicas <= 1024:
        raise UsageError(
            "replicas", 'must be "auto" or a whole number from 1 to 1024', found=repr(replicas),
            do='Leave it out for "auto".',
        )  # fmt: skip
    return replicas


def devices_of(devices: str | Sequence[str]) -> list[torch.device]:
    """Those that were asked for; none where that is the CPU alone."""
    given = (devices,) if isinstance(devices, str | torch.device) else tuple(devices)
    if given in (("auto",), ("cpu",)):
        return []
    found: list[torch.device] = []
    for name in given:
        problem = ""
        try:
            device = available(name)
        except (RuntimeError, AssertionError, TypeError) as error:
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
        if problem or device in found:
            raise UsageError(
                "devices", 'must be "auto", "cpu", or devices that are there, each once',
                found=f"{name!r} ({problem or 'twice'})",
                do='Split(model, ("cuda", "cpu")), for example.',
            )  # fmt: skip
        found.append(device)
    if not found:
        raise UsageError(
            "devices", "must name one at least", found=repr(devices), do='"auto" is the default.'
        )
    return found


def shares_of(
    shares: str | Sequence[float], count: int | None, devices: Sequence[torch.device]
) -> list[float] | None:
    """One for each device, or each replica; None where they are to be found."""
    if shares == "auto":
        return None
    good = not isinstance(shares, str) and all(
        isinstance(one, int | float) and 0 < one < float("inf") for one in shares
    )
    expected = len(devices) or count
    if not good or len(shares) != expected:
        whom = f"{len(devices)} devices" if devices else f"{count or 'auto'} replicas"
        raise UsageError(
            "shares", 'must be "auto" or a positive number for each '
            + ("device" if devices else "replica"),
            found=f"{shares!r} for {whom}",
            do="Split(model, replicas=2, shares=(3, 1)), for example.",
        )  # fmt: skip
    return [float(one) for one in shares]
