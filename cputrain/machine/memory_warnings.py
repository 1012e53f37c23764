"""What about the memory modules costs speed: the finding, what it is known to cost, the remedy."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.channel_findings import Module


def memory_warnings(
    modules: tuple[Module, ...],
    *,
    sizes: tuple[int, ...],
    populated: int | None,
    at_most: int | None,
    possible: int | None,
    ranks: int | None,
    sockets: int,
    free_slots: bool,
) -> tuple[str, ...]:
    """All that applies; `sizes` is the memory of each populated channel."""
    soldered = any((module.kind or "").startswith("LPDDR") for module in modules)
    found = [
        _unused(populated, at_most, possible, free_slots),
        None if soldered else _single_rank(ranks),
        _mixed_speeds(modules),
        _uneven(sizes),
        _uneven_sockets(populated, sockets),
    ]
    return tuple(warning for warning in found if warning is not None)


def _unused(
    populated: int | None, at_most: int | None, possible: int | None, free_slots: bool
) -> str | None:
    in_use = at_most if populated is None else populated
    if possible is None or in_use is None or in_use >= possible:
        return None
    finding = f"{in_use} of {possible} memory channels are in use"
    if populated is None:
        finding = f"at most {finding}, for there are no more modules than that"
    remedy = (
        "Put modules like the present ones into slots of the unused channels."
        if free_slots
        else "Every slot of this board is taken, so the unused channels need another board."
    )
    return f"{finding}; 8 against 4 channels was about +20 % in PyTorch on an Epyc 7542. {remedy}"


def _single_rank(ranks: int | None) -> str | None:
    if ranks != 1:
        return None
    return (
        "at least one memory channel has a single rank; two ranks against one was about 5 %. "
        "Use dual-rank modules, or a second module on each channel."
    )


def _mixed_speeds(modules: tuple[Module, ...]) -> str | None:
    for speeds in (
        {module.rated_mt_per_s for module in modules if module.rated_mt_per_s},
        {module.speed_mt_per_s for module in modules if module.speed_mt_per_s},
    ):
        if len(speeds) > 1:
            slow, fast = min(speeds), max(speeds)
            return (
                f"memory modules of {slow} and {fast} MT/s are mixed, and all run at the slowest's "
                f"speed: up to {100 * (fast - slow) / fast:.0f} % of the bandwidth is lost. "
                f"Replace those below {fast} MT/s."
            )
    return None


def _uneven(sizes: tuple[int, ...]) -> str | None:
    if len(set(sizes)) < 2:
        return None
    least, most = min(sizes), max(sizes)
    full = sum(size == most for size in sizes)
    return (
        f"the memory per channel runs from {least / 2**30:.0f} to {most / 2**30:.0f} GiB: only as "
        f"much as the smallest has is spread over all {len(sizes)} channels, and the last part has "
        f"the bandwidth of {full}. Give every channel the same amount."
    )


def _uneven_sockets(populated: int | None, sockets: int) -> str | None:
    if populated is None or populated % sockets == 0:
        return None
    return (
        f"{populated} memory channels do not go evenly over {sockets} sockets: the socket with "
        "fewer has that much less bandwidth, and all wait for it where they work together. "
        "Give every socket the same modules in the same slots."
    )
