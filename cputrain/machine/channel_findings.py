"""What each source says of the memory channels: the firmware's table, and the kernel's drivers."""

from __future__ import annotations

from cputrain.machine.edac import read_edac
from cputrain.machine.locators import channels_of, poweredge_channels_of
from cputrain.machine.smbios import TABLE, read_table
from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.smbios import MemoryDevice, MemoryTable
    from cputrain.machine.source import Source

CHANNEL_BITS = 64


class Module(Record):
    """A memory module; or, from EDAC without modules, the memory of one channel."""

    size_bytes: int | None
    speed_mt_per_s: int | None
    ranks: int | None
    locator: str
    channel: str | None
    """The name of its channel, as far as the slot's name tells it."""

    kind: str | None = None
    """"DDR4", "DDR5", "LPDDR5", …"""

    rated_mt_per_s: int | None = None
    """The speed it is made for; it may run slower."""


class ChannelFinding(Record):
    """One source's answer; `populated` is None where it has none, and `why` says why."""

    modules: tuple[Module, ...] = ()
    populated: int | None = None
    slots: int | None = None
    at_most: int | None = None
    """No more channels than this are in use, since each of the modules is on one."""

    free_slots: bool = True
    """Whether there may be an empty slot on an unused channel."""

    how: str = ""
    why: str = ""


def from_smbios(source: Source, per_socket: int | None, possible: int | None) -> ChannelFinding:
    """What the firmware says, with the channels that its slot names tell."""
    table = read_table(source)
    if table is None:
        return ChannelFinding(
            why=f"{TABLE} cannot be read (only root may, and not every machine has it)"
        )
    slots = [d for d in table.devices if not d.persistent and not (d.kind or "").startswith("HBM")]
    held = [device for device in slots if device.populated]
    if not held:
        return ChannelFinding(why=f"the SMBIOS table lists no memory module{_problem(table)}")
    names = [(device.locator, device.bank) for device in slots]
    if _is_poweredge(source):
        told, why = poweredge_channels_of(names, per_socket)
    else:
        told, why = channels_of(names)
    channels: list[str | None] = list(told) if told else [None] * len(slots)
    modules = tuple(
        _module(device, channel)
        for device, channel in zip(slots, channels, strict=True)
        if device.populated
    )
    found = ChannelFinding(
        modules=modules,
        slots=table.slots,
        # a soldered package may serve several channels
        at_most=len(held) if table.all_listed and not _narrow(held) else None,
        free_slots=len(held) < len(slots) or not table.all_listed,
        why=f"{why}{_problem(table)}",
    )
    if table.problem is not None and not table.all_listed:
        return found.replace(why=f"the SMBIOS table is damaged: {table.problem}")
    if told is None:
        # firmware that names slots alike, or leaves some out, says nothing by their number either
        countable = table.all_listed and len(set(names)) == len(names) == table.slots
        if possible is None or not countable:
            return found
        return _by_number(found, len(held), len(slots), possible)
    populated = _count(held, [c for c in channels if c is not None and c in _used(modules)])
    if populated is None:
        return found.replace(why="the SMBIOS table does not say how wide the LPDDR channels are")
    how = f"The slot names of SMBIOS, such as {_name(held[0])}, name the channels."
    return checked(found.replace(populated=populated, how=how), possible)


def from_edac(source: Source) -> ChannelFinding:
    """What the kernel's memory controller drivers say."""
    edac = read_edac(source)
    if edac.why_unknown is not None:
        return ChannelFinding(why=edac.why_unknown)
    modules = tuple(
        Module(
            size_bytes=entry.size_bytes,
            speed_mt_per_s=None,
            ranks=entry.ranks,
            locator=entry.label,
            channel=entry.channel,
            kind=entry.kind,
        )
        for entry in edac.modules
    )
    how = "The kernel's EDAC driver lists the channels that hold memory."
    return ChannelFinding(modules=modules, populated=len(_used(modules)), how=how)


def _by_number(found: ChannelFinding, held: int, slots: int, possible: int) -> ChannelFinding:
    """Without channel names: as many slots as channels, or all slots full, tell it too."""
    if slots == possible:
        populated, so = held, "each channel is taken to have one"
    elif held == slots and slots % possible == 0:
        populated, so = possible, "all filled, each channel is taken to have its share of them"
    else:
        return found
    how = f"An assumption: there are {slots} slots for {possible} channels, and {so}; {found.why}."
    return found.replace(populated=populated, how=how)


def checked(found: ChannelFinding, possible: int | None) -> ChannelFinding:
    """More channels than the processor has: then the names mean something else."""
    if found.populated is None or possible is None or found.populated <= possible:
        return found
    why = f"{found.populated} channels would be in use by the names given, of {possible} there are"
    return found.replace(populated=None, why=why)


def _count(held: list[MemoryDevice], channels: list[str]) -> int | None:
    """Channels of 64 bits: LPDDR names narrower ones, so its bits are counted."""
    if not _narrow(held):
        return len(set(channels))
    if any(device.width_bits is None for device in held):
        return None
    return max(1, sum(device.width_bits or 0 for device in held) // CHANNEL_BITS)


def _narrow(held: list[MemoryDevice]) -> bool:
    return any((device.kind or "").startswith("LPDDR") for device in held)


def _used(modules: tuple[Module, ...]) -> set[str]:
    return {module.channel for module in modules if module.channel is not None}


def _module(device: MemoryDevice, channel: str | None) -> Module:
    return Module(
        size_bytes=device.size_bytes,
        speed_mt_per_s=device.speed_mt_per_s,
        ranks=device.ranks,
        locator=device.locator,
        channel=channel,
        kind=device.kind,
        rated_mt_per_s=device.rated_mt_per_s,
    )


def _is_poweredge(source: Source) -> bool:
    vendor = text(source, "/sys/class/dmi/id/sys_vendor") or ""
    return vendor.startswith("Dell") and "PowerEdge" in (
        text(source, "/sys/class/dmi/id/product_name") or ""
    )


def _problem(table: MemoryTable) -> str:
    return f" (the table is damaged: {table.problem})" if table.problem else ""


def _name(device: MemoryDevice) -> str:
    return f"{device.locator!r}, bank {device.bank!r}" if device.bank else repr(device.locator)
