"""Which memory channel a slot is on, told from the names that board makers give to slots.

SMBIOS has no field for the channel, only two free texts. In use are, among others:

    locator                       bank                        channel
    DIMM 0                        P0 CHANNEL A                P0 CHANNEL A       AMD's firmware
    DIMMC1                        P0_Node0_Channel2_Dimm0     P0 NODE0 CHANNEL 2 Supermicro
    DIMM_H2                       NODE 1 CHANNEL 1 DIMM 1     NODE1 CHANNEL 1    Cisco
    Controller0-ChannelA-DIMM0    BANK 0                      CONTROLLER0 CHANNEL A
    P1-DIMMA1, CPU0_DIMM_C1, DIMM_P0_A0, DDR4_B1, A1          the letter, and the processor if named
    PROC 1 DIMM 8, DIMM 3, DIMM1_CPU0                         not told: a number names a slot only

Dell's PowerEdge is the other way round: the letter is the processor, and the numbers go over the
channels in turn (a processor with six channels has A1 and A7 on the first one), as the "memory
channels" table in each of their manuals shows.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = r"[ _#:.\-]*"
_CHANNEL = rf"(?<![A-Z])(?:CHANNEL|CHAN|CH){_GAP}(\d{{1,2}}(?!\d)|[A-Z](?=DIMM|[^A-Z]|$))"
# A to N: P and S are processors and sockets
_LETTER = rf"(?:^|DIMM|DDR\d|[ _#:.\-]){_GAP}([A-N])[ _\-]?(\d{{1,2}})$"
_PLACE = rf"(?<![A-Z])(CPU|PROC|SOCKET|P|SRCID|NODE|CONTROLLER|IMC|MC){_GAP}(\d{{1,2}})(?!\d)"
_POWEREDGE = r"^(?:DIMM[ _.]?)?([A-H])(\d{1,2})$"

MOST_SLOTS_PER_CHANNEL = 3
"""More slots than this under one name mean that the name is not a channel's."""


def channel_of(locator: str, bank: str) -> str | None:
    """The channel that a slot's names tell, or None: "P0_Node0_Channel2_Dimm0" gives
    "P0 NODE0 CHANNEL 2"."""
    import re

    locator, bank = locator.upper().strip(), bank.upper().strip()
    for pattern, word in ((_CHANNEL, "CHANNEL"), (_LETTER, "CHANNEL")):
        for own, other in ((bank, locator), (locator, bank)):
            found = re.search(pattern, own)
            if found:
                # the processor of the same text: the two may count from 0 and from 1
                place = re.findall(_PLACE, own) or re.findall(_PLACE, other)
                return " ".join([*(name + digits for name, digits in place), word, found[1]])
    return None


def channels_of(names: Sequence[tuple[str, str]]) -> tuple[tuple[str, ...] | None, str]:
    """The channel of every slot (locator, bank), or None with the reason.

    All slots of the board, the empty ones too: they show what the names mean.
    """
    if len(set(names)) < len(names):
        twice = next(pair for pair in names if list(names).count(pair) > 1)
        return None, f"the firmware gives several slots the same name ({_quoted(twice)})"
    channels: list[str] = []
    for pair in names:
        channel = channel_of(*pair)
        if channel is None:
            return None, f"the slot names do not tell the channels ({_quoted(pair)})"
        channels.append(channel)
    for channel in dict.fromkeys(channels):
        if channels.count(channel) > MOST_SLOTS_PER_CHANNEL:
            return None, (
                f"the slot names put {channels.count(channel)} slots on one channel ({channel}), "
                f"and no channel takes more than {MOST_SLOTS_PER_CHANNEL}"
            )
    return tuple(channels), ""


def poweredge_channels_of(
    names: Sequence[tuple[str, str]], channels_per_socket: int | None
) -> tuple[tuple[str, ...] | None, str]:
    """The same for Dell's PowerEdge, where slots A1, A2, … of processor A go round its channels."""
    import re

    found = [re.match(_POWEREDGE, locator.upper().strip()) for locator, _ in names]
    slots = [(match[1], int(match[2])) for match in found if match]
    if len(slots) < len(names) or channels_per_socket is None:
        return None, (
            f"PowerEdge slot names ({_quoted(names[0])}) tell the channel only together with the "
            "processor's number of channels"
        )
    for letter in sorted({letter for letter, _ in slots}):
        numbers = sorted(number for at, number in slots if at == letter)
        if numbers != list(range(1, len(numbers) + 1)) or len(numbers) % channels_per_socket:
            return None, (
                f"the {len(numbers)} PowerEdge slots of processor {letter} do not go evenly over "
                f"its {channels_per_socket} channels"
            )
    return tuple(f"CPU {at} CHANNEL {(n - 1) % channels_per_socket}" for at, n in slots), ""


def _quoted(pair: tuple[str, str]) -> str:
    locator, bank = pair
    return f"{locator!r}, bank {bank!r}" if bank else repr(locator)
