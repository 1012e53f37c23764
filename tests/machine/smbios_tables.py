"""Builds SMBIOS structure tables, byte by byte as firmware writes them, for the tests."""

from __future__ import annotations

from pathlib import Path

DDR4, DDR5, LPDDR5, RAM = 0x1A, 0x22, 0x23, 0x07
DIMM, SODIMM, CHIPS = 0x09, 0x0D, 0x0B
SERIAL, ASSET, PART, MAKER = "S3R1AL42", "ASSET77", "M393A4K40DB2-CVF", "Samsung"


def structure(kind: int, handle: int, fields: bytes, strings: tuple[str, ...] = ()) -> bytes:
    """One structure: header, fields, and its strings with their two NULs."""
    header = bytes([kind, 4 + len(fields)]) + handle.to_bytes(2, "little")
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return header + fields + texts + b"\0"


def array(devices: int, handle: int = 0x1000, use: int = 0x03) -> bytes:
    """A physical memory array (type 16) that announces so many slots."""
    fields = bytes([0x03, use, 0x06]) + (0x8000_0000).to_bytes(4, "little")
    fields += (0xFFFE).to_bytes(2, "little") + devices.to_bytes(2, "little") + bytes(8)
    return structure(16, handle, fields)


def device(
    locator: str,
    bank: str = "",
    *,
    gib: float = 32,
    size: int | None = None,
    speed: int = 3200,
    configured: int | None = None,
    ranks: int = 2,
    kind: int = DDR4,
    form: int = DIMM,
    width: int = 64,
    technology: int = 0x03,
    handle: int = 0x1100,
    array_handle: int = 0x1000,
    length: int = 0x5C,
) -> bytes:
    """A memory device (type 17); `gib` 0 is an empty slot, `size` is the raw field."""
    body = bytearray(0x5C)
    empty = gib == 0 and size is None

    def put(offset: int, value: int, width: int) -> None:
        body[offset : offset + width] = value.to_bytes(width, "little")

    strings: list[str] = []

    def name(offset: int, text: str) -> None:
        if text:
            strings.append(text)
            body[offset] = len(strings)

    put(0x04, array_handle, 2)
    put(0x06, 0xFFFE, 2)
    put(0x08, 0xFFFF if empty else width + 8, 2)
    put(0x0A, 0xFFFF if empty else width, 2)
    mib = int(gib * 1024)
    if size is not None:
        put(0x0C, size, 2)
    elif mib >= 0x7FFF:
        put(0x0C, 0x7FFF, 2)
        put(0x1C, mib, 4)
    else:
        put(0x0C, mib, 2)
    body[0x0E] = 0x02 if empty else form
    body[0x12] = 0x02 if empty else kind
    if not empty:
        configured = speed if configured is None else configured
        for value, short, extended in ((speed, 0x15, 0x54), (configured, 0x20, 0x58)):
            put(short, min(value, 0xFFFF), 2)
            put(extended, value if value >= 0xFFFF else 0, 4)
        body[0x1B] = ranks
        body[0x28] = technology
    name(0x10, locator)
    name(0x11, bank)
    name(0x17, MAKER)
    name(0x18, SERIAL)
    name(0x19, ASSET)
    name(0x1A, PART)
    return structure(17, handle, bytes(body[4:length]), tuple(strings))


def end() -> bytes:
    """The end of the table (type 127)."""
    return structure(127, 0xFEFF, b"")


def table(*devices: bytes, announced: int | None = None) -> bytes:
    """A whole table: other structures before and between, the array, the devices, the end."""
    bios = structure(0, 0, bytes(20), ("American Megatrends", "1.0", "01/01/2024"))
    system = structure(1, 1, bytes(23), ("Maker", "Board", "SYSTEM-" + SERIAL))
    slots = len(devices) if announced is None else announced
    return b"".join([bios, system, array(slots), *devices, end()])


def entry_point(major: int, minor: int, length: int = 4096) -> bytes:
    """The 64-bit entry point of SMBIOS 3."""
    return b"_SM3_\0" + bytes([24, major, minor, 0, 1, 0]) + length.to_bytes(4, "little") + bytes(8)


def old_entry_point(major: int, minor: int, length: int) -> bytes:
    """The 32-bit entry point, which knows the table's exact length."""
    head = b"_SM_\0" + bytes([31, major, minor]) + bytes(8) + b"_DMI_\0"
    return head + length.to_bytes(2, "little") + bytes(7)


def epyc_half() -> bytes:
    """An Epyc 7542 with 4 of its 8 channels in use, two slots a channel."""
    return table(
        *(
            device(
                f"DIMM {slot}",
                f"P0 CHANNEL {channel}",
                gib=32 if slot == 1 and channel in "ACEG" else 0,
                speed=3200,
                configured=2933,
            )
            for channel in "ABCDEFGH"
            for slot in (0, 1)
        )
    )


def desktop_single_rank() -> bytes:
    """A desktop with two single-rank modules, one on each channel."""
    return table(
        device("DIMM_A1", "BANK 0", gib=0),
        device("DIMM_A2", "BANK 1", gib=16, ranks=1, kind=DDR5, speed=4800, configured=6000),
        device("DIMM_B1", "BANK 2", gib=0),
        device("DIMM_B2", "BANK 3", gib=16, ranks=1, kind=DDR5, speed=4800, configured=6000),
    )


def uneven() -> bytes:
    """A desktop with 32 GiB on one channel and 16 on the other, at two speeds."""
    return table(
        device("ChannelA-DIMM0", "BANK 0", gib=16, speed=3200, configured=2666),
        device("ChannelA-DIMM1", "BANK 1", gib=16, speed=3200, configured=2666),
        device("ChannelB-DIMM0", "BANK 2", gib=16, speed=2666),
        device("ChannelB-DIMM1", "BANK 3", gib=0),
    )


def qemu() -> bytes:
    """What QEMU makes up for a guest."""
    return table(device("DIMM 0", "", gib=16, kind=RAM, speed=0, ranks=0, length=0x28))


def place(root: Path, files: dict[str, bytes | str]) -> None:
    """Write files into a tree that stands for a machine's root."""
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
