"""Checks of Split's arguments, with messages that say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cputrain.counting import counted
from cputrain.errors import UsageError, argument_error
from cputrain.split.devices import available

MAX_REPLICAS = 1024


def count_of(replicas: int | str) -> int | None:
    """Return the number of replicas; None for "auto"."""
    if isinstance(replicas, str) and replicas == "auto":
        return None
    if (
        isinstance(replicas, bool)
        or not isinstance(replicas, int)
        or not 1 <= replicas <= MAX_REPLICAS
    ):
        raise argument_error(replicas, int, str)(
            "replicas", 'must be "auto" or a whole number from 1 to 1024', found=repr(replicas),
            do='Leave it out for "auto".',
        )  # fmt: skip
    return replicas


def check_reproducible(count: int, devices: object, replicas: object, shares: object) -> None:
    """Raise an error unless the number of shards is one, and what it replaces is left out."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_REPLICAS:
        raise argument_error(count, int)(
            "reproducible", f"must be a whole number from 1 to {MAX_REPLICAS}, or None",
            found=repr(count), do="Split(model, reproducible=16), for example.",
        )  # fmt: skip
    for name, value in (("devices", devices), ("replicas", replicas), ("shares", shares)):
        if not (isinstance(value, str) and value == "auto"):
            raise UsageError(
                "reproducible", f"must be given without {name}", found=f"{name}={value!r}",
                do=f"Leave out one of the two: {count} shards are computed by whatever cores there "
                "are.",
            )  # fmt: skip


def devices_of(devices: str | Sequence[str]) -> list[torch.device]:
    """Return the requested devices; an empty list for the CPU alone."""
    names = tuple(devices) if isinstance(devices, (tuple, list)) else (devices,)
    if len(names) == 1 and isinstance(names[0], str) and names[0] in ("auto", "cpu"):
        return []
    checked: list[torch.device] = []
    for name in names:
        problem = ""
        try:
            device = available(name)
        except (RuntimeError, AssertionError, TypeError) as error:
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
        if problem or device in checked:
            raise argument_error(name, str, torch.device)(
                "devices", 'must be "auto", "cpu", or devices that are there, each once',
                found=f"{name!r} ({problem or 'twice'})",
                do='Split(model, ("cuda", "cpu")), for example.',
            )  # fmt: skip
        checked.append(device)
    if not checked:
        raise UsageError(
            "devices", "must name one at least", found=repr(devices), do='"auto" is the default.'
        )
    return checked


def shares_of(
    shares: str | Sequence[float], count: int | None, devices: Sequence[torch.device]
) -> list[float] | None:
    """Return one relative shard size for each device, or each replica; None for "auto"."""
    if isinstance(shares, str) and shares == "auto":
        return None
    is_sequence = isinstance(shares, Sequence) and not isinstance(shares, str)
    is_valid = is_sequence and all(
        isinstance(share, int | float) and 0 < share < float("inf") for share in shares
    )
    expected = len(devices) or count
    if not is_valid or len(shares) != expected:
        receivers = counted(len(devices), "device") if devices else f"{count or 'auto'} replicas"
        raise argument_error(shares, Sequence)(
            "shares", 'must be "auto" or a positive number for each '
            + ("device" if devices else "replica"),
            found=f"{shares!r} for {receivers}",
            do="Split(model, replicas=2, shares=(3, 1)), for example.",
        )  # fmt: skip
    return [float(share) for share in shares]
