"""Populated memory channels according to each source: the SMBIOS table and the EDAC drivers."""

from __future__ import annotations

from cputrain.machine.edac import read_edac
from cputrain.machine.locators import channels_of, poweredge_channels_of
from cputrain.machine.smbios import TABLE_PATH, read_table
from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.smbios import MemoryDevice, MemoryTable
    from cputrain.machine.source import Source

CHANNEL_BITS = 64


class Module(Record):
    """A memory module; where EDAC lists no modules, the memory of one channel."""

    size_bytes: int | None
    """Size in bytes; None if unknown."""

    speed_mt_per_s: int | None
    """Speed in MT/s; None if unknown."""

    ranks: int | None
    """Number of ranks; None if unknown."""

    locator: str
    """Name of the slot."""

    channel: str | None
    """Name of the module's channel; None if the slot's name does not contain it."""

    kind: str | None = None
    """"DDR4", "DDR5", "LPDDR5", …"""

    rated_mt_per_s: int | None = None
    """Speed that the module is specified for, in MT/s; it may run slower."""


class ChannelFinding(Record):
    """Channels according to one source; if `populated` is None, `why` gives the reason."""

    modules: tuple[Module, ...] = ()
    """Installed modules."""

    populated: int | None = None
    """Channels with a module; None if unknown."""

    slots: int | None = None
    """Module slots of the board; None if unknown."""

    max_populated: int | None = None
    """Upper bound of the populated channels: the number of modules, each on one channel."""

    free_slots: bool = True
    """Whether there may be an empty slot on an unused channel."""

    how: str = ""
    """Sentence on how `populated` was determined."""

    why: str = ""
    """Reason why `populated` is unknown, without capital and period."""


def from_smbios(source: Source, per_socket: int | None, possible: int | None) -> ChannelFinding:
    """Return modules from the SMBIOS table, with channels derived from the slot names.

    Args:
        source: The system to read.
        per_socket: Channels per socket; None if unknown. Dell's slot names need it.
        possible: Channels of all sockets; None if unknown.
    """
    table = read_table(source)
    if table is None:
        return ChannelFinding(
            why=f"{TABLE_PATH} cannot be read (it needs root, and some machines have none)"
        )
    slots = [d for d in table.devices if not d.persistent and not (d.kind or "").startswith("HBM")]
    modules_present = [device for device in slots if device.populated]
    if not modules_present:
        return ChannelFinding(
            why=f"the SMBIOS table lists no memory module{_problem_suffix(table)}"
        )
    names = [(device.locator, device.bank) for device in slots]
    if _is_poweredge(source):
        slot_channels, why = poweredge_channels_of(names, per_socket)
    else:
        slot_channels, why = channels_of(names)
    channels: list[str | None] = list(slot_channels) if slot_channels else [None] * len(slots)
    modules = tuple(
        _module(device, channel)
        for device, channel in zip(slots, channels, strict=True)
        if device.populated
    )
    finding = ChannelFinding(
        modules=modules,
        slots=table.slots,
        # A soldered LPDDR package may serve several channels.
        max_populated=len(modules_present)
        if table.all_listed and not _is_lpddr(modules_present)
        else None,
        free_slots=len(modules_present) < len(slots) or not table.all_listed,
        why=f"{why}{_problem_suffix(table)}",
    )
    if table.problem is not None and not table.all_listed:
        return finding.replace(why=f"the SMBIOS table is damaged: {table.problem}")
    if slot_channels is None:
        # Slot counts mean something only if each slot is listed once, under a name of its own.
        countable = table.all_listed and len(set(names)) == len(names) == table.slots
        if possible is None or not countable:
            return finding
        return _infer_from_counts(finding, len(modules_present), len(slots), possible)
    populated = _num_channels(
        modules_present, [c for c in channels if c is not None and c in _channel_names(modules)]
    )
    if populated is None:
        return finding.replace(why="the SMBIOS table does not say how wide the LPDDR channels are")
    how = (
        f"The channels are read from SMBIOS slot names, such as {_quoted_name(modules_present[0])}."
    )
    return reject_impossible(finding.replace(populated=populated, how=how), possible)


def from_edac(source: Source) -> ChannelFinding:
    """Return modules and channels from the kernel's EDAC memory controller drivers."""
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
    return ChannelFinding(modules=modules, populated=len(_channel_names(modules)), how=how)


def _infer_from_counts(
    finding: ChannelFinding, num_modules: int, num_slots: int, possible: int
) -> ChannelFinding:
    """Infer populated channels from counts: one slot per channel, or all slots filled."""
    if num_slots == possible:
        populated, assumption = num_modules, "each channel is assumed to have one slot"
    elif num_modules == num_slots and num_slots % possible == 0:
        populated, assumption = possible, "all are filled, evenly over the channels"
    else:
        return finding
    how = (
        f"An assumption: there are {num_slots} slots for {possible} channels, and {assumption}; "
        f"{finding.why}."
    )
    return finding.replace(populated=populated, how=how)


def reject_impossible(finding: ChannelFinding, possible: int | None) -> ChannelFinding:
    """Discard a count above the processor's channels, as the slot names then mean something else.

    Args:
        finding: Channels according to one source.
        possible: Channels of all sockets; None if unknown, which accepts every count.
    """
    if finding.populated is None or possible is None or finding.populated <= possible:
        return finding
    why = (
        f"{finding.populated} channels would be in use by the slot names, but only {possible} exist"
    )
    return finding.replace(populated=None, why=why)


def _num_channels(devices: list[MemoryDevice], channels: list[str]) -> int | None:
    """Return the number of 64-bit channels; LPDDR's narrower channels are counted by their bits."""
    if not _is_lpddr(devices):
        return len(set(channels))
    if any(device.width_bits is None for device in devices):
        return None
    return max(1, sum(device.width_bits or 0 for device in devices) // CHANNEL_BITS)


def _is_lpddr(devices: list[MemoryDevice]) -> bool:
    return any((device.kind or "").startswith("LPDDR") for device in devices)


def _channel_names(modules: tuple[Module, ...]) -> set[str]:
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


def _problem_suffix(table: MemoryTable) -> str:
    return f" (the table is damaged: {table.problem})" if table.problem else ""


def _quoted_name(device: MemoryDevice) -> str:
    return f"{device.locator!r}, bank {device.bank!r}" if device.bank else repr(device.locator)
