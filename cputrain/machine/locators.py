"""Memory channels derived from the slot names that board vendors choose.

SMBIOS has no field for the channel, only two free-form strings. Examples:

    locator                       bank                        channel
    DIMM 0                        P0 CHANNEL A                P0 CHANNEL A       AMD's firmware
    DIMMC1                        P0_Node0_Channel2_Dimm0     P0 NODE0 CHANNEL 2 Supermicro
    DIMM_H2                       NODE 1 CHANNEL 1 DIMM 1     NODE1 CHANNEL 1    Cisco
    Controller0-ChannelA-DIMM0    BANK 0                      CONTROLLER0 CHANNEL A
    P1-DIMMA1, CPU0_DIMM_C1, DIMM_P0_A0, DDR4_B1, A1          the letter, and the processor if named
    PROC 1 DIMM 8, DIMM 3, DIMM1_CPU0                         unknown: the number names only a slot

On Dell's PowerEdge the letter is the processor, and the numbers are assigned to its channels in
turn (with six channels, A1 and A7 are on the first), as the "memory channels" table of each manual
shows.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP_PATTERN = r"[ _#:.\-]*"
_CHANNEL_PATTERN = (
    rf"(?<![A-Z])(?:CHANNEL|CHAN|CH){_GAP_PATTERN}(\d{{1,2}}(?!\d)|[A-Z](?=DIMM|[^A-Z]|$))"
)
# Channels are A to N; P and S stand for processors and sockets.
_LETTER_PATTERN = rf"(?:^|DIMM|DDR\d|[ _#:.\-]){_GAP_PATTERN}([A-N])[ _\-]?(\d{{1,2}})$"
_PLACE_PATTERN = (
    rf"(?<![A-Z])(CPU|PROC|SOCKET|P|SRCID|NODE|CONTROLLER|IMC|MC){_GAP_PATTERN}(\d{{1,2}})(?!\d)"
)
_POWEREDGE_PATTERN = r"^(?:DIMM[ _.]?)?([A-H])(\d{1,2})$"

MAX_SLOTS_PER_CHANNEL = 3
"""Upper bound of slots per channel; a name shared by more slots does not name a channel."""


def channel_of(locator: str, bank: str) -> str | None:
    """Return the channel in a slot's names; "P0_Node0_Channel2_Dimm0" gives "P0 NODE0 CHANNEL 2".

    None if neither name contains a channel.
    """
    import re

    locator, bank = locator.upper().strip(), bank.upper().strip()
    for pattern, word in ((_CHANNEL_PATTERN, "CHANNEL"), (_LETTER_PATTERN, "CHANNEL")):
        for first, second in ((bank, locator), (locator, bank)):
            match = re.search(pattern, first)
            if match:
                # The processor of the same string is preferred: one may count from 0, one from 1.
                place = re.findall(_PLACE_PATTERN, first) or re.findall(_PLACE_PATTERN, second)
                return " ".join([*(name + digits for name, digits in place), word, match[1]])
    return None


def channels_of(names: Sequence[tuple[str, str]]) -> tuple[tuple[str, ...] | None, str]:
    """Return the channel of every slot, or None and the reason.

    Args:
        names: Locator and bank of all slots of the board. Empty slots are needed too: they show
            whether the names name channels.
    """
    if len(set(names)) < len(names):
        duplicate = next(pair for pair in names if list(names).count(pair) > 1)
        return None, f"the firmware gives several slots the same name ({_quoted(duplicate)})"
    channels: list[str] = []
    for pair in names:
        channel = channel_of(*pair)
        if channel is None:
            return None, f"the slot names do not contain the channels ({_quoted(pair)})"
        channels.append(channel)
    for channel in dict.fromkeys(channels):
        if channels.count(channel) > MAX_SLOTS_PER_CHANNEL:
            return None, (
                f"the slot names put {channels.count(channel)} slots on one channel ({channel}), "
                f"and a channel has at most {MAX_SLOTS_PER_CHANNEL}"
            )
    return tuple(channels), ""


def poweredge_channels_of(
    names: Sequence[tuple[str, str]], channels_per_socket: int | None
) -> tuple[tuple[str, ...] | None, str]:
    """Return the channel of every slot of a Dell PowerEdge, or None and the reason.

    The slots A1, A2, … of processor A are assigned to its channels in turn.

    Args:
        names: Locator and bank of all slots of the board, empty slots included.
        channels_per_socket: Channels of each processor; None if unknown.
    """
    import re

    matches = [re.match(_POWEREDGE_PATTERN, locator.upper().strip()) for locator, _ in names]
    slots = [(match[1], int(match[2])) for match in matches if match]
    if len(slots) < len(names) or channels_per_socket is None:
        return None, (
            f"PowerEdge slot names ({_quoted(names[0])}) give the channel only if the processor's "
            "number of channels is known"
        )
    for letter in sorted({letter for letter, _ in slots}):
        numbers = sorted(number for letter_of_slot, number in slots if letter_of_slot == letter)
        if numbers != list(range(1, len(numbers) + 1)) or len(numbers) % channels_per_socket:
            return None, (
                f"the PowerEdge slots of processor {letter} are not evenly spread over its "
                f"channels: {len(numbers)} over {channels_per_socket}"
            )
    return tuple(
        f"CPU {letter_of_slot} CHANNEL {(n - 1) % channels_per_socket}"
        for letter_of_slot, n in slots
    ), ""


def _quoted(pair: tuple[str, str]) -> str:
    locator, bank = pair
    return f"{locator!r}, bank {bank!r}" if bank else repr(locator)
