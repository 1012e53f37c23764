"""Memory channels: possible, populated, and the modules in them.

Sources in this order: SMBIOS (slot names; root only), EDAC (the kernel's drivers for memory with
error correction; any user), and the processor's model, which gives only the possible number.
Unknown values are None, with the reason: a wrong number here would lead a user to buy the wrong
memory.

A channel is 64 bits wide throughout. LPDDR, whose channels are narrower, is counted by its bits.
"""

from __future__ import annotations

from enum import StrEnum

from cputrain.machine.channel_findings import Module, from_edac, from_smbios, reject_impossible
from cputrain.machine.channel_maxima import channels_per_socket
from cputrain.machine.memory_warnings import memory_warnings
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

__all__ = ["ChannelSource", "Channels", "Module", "read_channels"]


class ChannelSource(StrEnum):
    """Source of the number of populated channels."""

    SMBIOS = "smbios"
    """The firmware's table: "DIMM_A1" and "DIMM_B1" hold a module, so two channels are in use."""

    EDAC = "edac"
    """The kernel's memory controller drivers: mc0 lists channels 0 and 1."""

    CPU_FAMILY = "cpu family"
    """Only the maximum is known: an Epyc 7542 has eight channels."""

    NONE = "none"
    """Neither number is known: a virtual machine, or a processor without a known maximum."""


class Channels(Record):
    """The memory channels of all sockets together."""

    populated: int | None = None
    """Channels with a module; None if unknown."""

    possible: int | None = None
    """Channels that the processors have; None if unknown."""

    speed_mt_per_s: int | None = None
    """Speed of the slowest module in MT/s, at which all modules run."""

    ranks: int | None = None
    """Smallest number of ranks of a populated channel."""

    modules: tuple[Module, ...] = ()
    """Installed modules, as far as they are listed."""

    slots: int | None = None
    """Module slots of the board; None if unknown."""

    source: ChannelSource = ChannelSource.NONE
    """Source of `populated`."""

    how: str = ""
    """Sentence on how the number of populated channels was determined; empty if unknown."""

    why_unknown: str | None = None
    """Reason as a sentence if `populated` or `possible` is None."""

    warnings: tuple[str, ...] = ()
    """Warnings on memory that limits speed: the finding, its known cost and the remedy."""


def read_channels(
    source: Source,
    *,
    vendor: str | None,
    family: int | None,
    model: int | None,
    model_name: str | None,
    sockets: int,
    virtual: bool,
) -> Channels:
    """Read the memory channels of the machine."""
    if virtual:
        return Channels(
            why_unknown="This is a virtual machine: its firmware emulates memory modules, and the "
            "host's memory channels are not visible from inside."
        )
    per_socket = channels_per_socket(vendor or "", family, model, model_name or "")
    possible = None if per_socket is None else per_socket * max(sockets, 1)
    smbios_finding = from_smbios(source, per_socket, possible)
    channel_source, finding = ChannelSource.SMBIOS, smbios_finding
    if smbios_finding.populated is None:
        edac_finding = reject_impossible(from_edac(source), possible)
        if edac_finding.populated is not None:
            channel_source = ChannelSource.EDAC
            finding = edac_finding.replace(
                slots=smbios_finding.slots, free_slots=smbios_finding.free_slots
            )
        else:
            channel_source = ChannelSource.NONE if possible is None else ChannelSource.CPU_FAMILY
            finding = smbios_finding.replace(why=f"{smbios_finding.why}; {edac_finding.why}")
    reasons = []
    if finding.populated is None:
        reasons.append(f"The number of channels in use is unknown: {finding.why}.")
    if possible is None:
        reasons.append(f"The number of channels of {model_name or 'this processor'} is unknown.")
    # EDAC reports no speeds; SMBIOS does.
    speeds = [
        m.speed_mt_per_s for m in smbios_finding.modules or finding.modules if m.speed_mt_per_s
    ]
    ranks = _fewest_ranks(finding.modules)
    return Channels(
        populated=finding.populated,
        possible=possible,
        speed_mt_per_s=min(speeds, default=None),
        ranks=ranks,
        modules=finding.modules,
        slots=finding.slots,
        source=channel_source,
        how=finding.how if finding.populated is not None else "",
        why_unknown=" ".join(reasons) or None,
        warnings=memory_warnings(
            smbios_finding.modules or finding.modules,
            sizes=_sizes(finding.modules),
            populated=finding.populated,
            max_populated=finding.max_populated,
            possible=possible,
            ranks=ranks,
            sockets=max(sockets, 1),
            free_slots=finding.free_slots,
        ),
    )


def _sizes(modules: tuple[Module, ...]) -> tuple[int, ...]:
    """Return the bytes of each populated channel; empty if any is unknown."""
    sizes: dict[str, int] = {}
    for module in modules:
        if module.channel is None or module.size_bytes is None:
            return ()
        sizes[module.channel] = sizes.get(module.channel, 0) + module.size_bytes
    return tuple(sizes.values())


def _fewest_ranks(modules: tuple[Module, ...]) -> int | None:
    ranks: dict[str, int] = {}
    for module in modules:
        if module.channel is None or module.ranks is None:
            return None
        ranks[module.channel] = ranks.get(module.channel, 0) + module.ranks
    return min(ranks.values(), default=None)
