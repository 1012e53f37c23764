"""The memory modules as the firmware describes them: SMBIOS structures of types 16 and 17.

A table is a run of structures. Each has a header (type, length, handle), the rest of its `length`
bytes, and its strings, ended by two NUL bytes. Firmware gets this wrong in every possible way, so
nothing here raises: what was decoded before the first fault is kept, and `problem` names the fault.

The fields are those of DMTF's DSP0134 (System Management BIOS Reference Specification) 3.7.
"""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

TABLE = "/sys/firmware/dmi/tables/DMI"
ENTRY_POINT = "/sys/firmware/dmi/tables/smbios_entry_point"

ARRAY, DEVICE, END = 16, 17, 127
HEADER_BYTES = 4
SYSTEM_MEMORY = 0x03
# Lengths of the two structures in 3.7. Bytes after them are the vendor's own: never in a capture.
KNOWN_BYTES = {ARRAY: 0x17, DEVICE: 0x64, END: HEADER_BYTES}

KINDS = {
    0x07: "RAM", 0x0F: "SDRAM", 0x12: "DDR", 0x13: "DDR2", 0x14: "DDR2 FB-DIMM", 0x18: "DDR3",
    0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4",
    0x1F: "logical non-volatile", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5",
    0x24: "HBM3",
}  # fmt: skip
FORMS = {
    0x09: "DIMM", 0x0B: "row of chips", 0x0D: "SODIMM", 0x0F: "FB-DIMM", 0x10: "die", 0x11: "CAMM",
}  # fmt: skip
PERSISTENT = (0x05, 0x06, 0x07)  # NVDIMM-F, NVDIMM-P, Optane: memory technologies that are no DRAM


class MemoryDevice(Record):
    """One slot, or one soldered package, and what is in it."""

    size_bytes: int | None
    """0 for an empty slot, None where the firmware does not say."""

    speed_mt_per_s: int | None
    """The speed it runs at; the speed it is made for where only that is given."""

    rated_mt_per_s: int | None
    """The speed it is made for."""

    ranks: int | None

    width_bits: int | None
    """Data bits without those for error correction: 64 for a DIMM, 16 or 32 for LPDDR."""

    kind: str | None
    """"DDR4", "DDR5", "LPDDR5", …; None for a type this module does not know."""

    form: str | None

    locator: str
    """The name of the slot, as the board's maker chose it: "DIMM_A1", "PROC 1 DIMM 8"."""

    bank: str
    """A second name, as free as the first: "P0_Node0_Channel0_Dimm0", "BANK 0"."""

    persistent: bool = False
    """Memory that is no DRAM (Optane and the like)."""

    @property
    def populated(self) -> bool:
        """Whether something is in the slot; unknown sizes count, for empty slots say 0."""
        return self.size_bytes != 0


class MemoryTable(Record):
    """What a structure table says of the main memory."""

    devices: tuple[MemoryDevice, ...] = ()
    """All slots of system memory in the table's order, empty ones too."""

    announced_slots: int | None = None
    """How many slots the memory arrays (type 16) announce; firmware may list fewer devices."""

    version: str | None = None
    """The version of SMBIOS, from the entry point."""

    problem: str | None = None
    """What was found at which offset, when the table could not be read to its end."""

    @property
    def slots(self) -> int:
        """The number of slots: what is listed, or what is announced where that is more."""
        return max(len(self.devices), self.announced_slots or 0)

    @property
    def all_listed(self) -> bool:
        """Whether every slot is in the table, as far as it can be known."""
        if self.announced_slots is None:
            return self.problem is None
        return len(self.devices) >= self.announced_slots

    @property
    def modules(self) -> tuple[MemoryDevice, ...]:
        """The slots that hold something."""
        return tuple(device for device in self.devices if device.populated)


class Structure(Record):
    """One structure: its bytes up to `length`, and its strings."""

    type: int
    body: bytes
    strings: tuple[bytes, ...]

    def number(self, offset: int, width: int) -> int | None:
        """A little-endian field; None where the structure ends before it."""
        field = self.body[offset : offset + width]
        return int.from_bytes(field, "little") if len(field) == width else None

    def text(self, offset: int) -> str:
        """The string whose number is at this offset; empty for none, and for one not there."""
        index = self.number(offset, 1)
        if not index or index > len(self.strings):
            return ""
        found = self.strings[index - 1].decode("utf-8", "replace")
        return "".join(c if c.isprintable() else " " for c in found).strip()


def read_table(source: Source) -> MemoryTable | None:
    """This machine's table; None where there is none, or only root may read it."""
    table = source.raw(TABLE)
    return None if table is None else decode(table, source.raw(ENTRY_POINT, 64) or b"")


def decode(table: bytes, entry_point: bytes = b"") -> MemoryTable:
    """What a table says of the main memory; never raises, see `problem`."""
    structures, problem = walk(table)
    version, length = _entry(entry_point)
    if length is not None and length > len(table):
        problem = problem or (
            f"the entry point announces {length} bytes, and the table has {len(table)}"
        )
    arrays = [found for found in structures if found.type == ARRAY]
    # only arrays that are something else (flash, video memory) are left out: an absent or broken
    # array is no reason to lose its modules
    others = {a.number(2, 2) for a in arrays if a.number(5, 1) not in (SYSTEM_MEMORY, None)}
    announced = [a.number(0x0D, 2) or 0 for a in arrays if a.number(2, 2) not in others]
    return MemoryTable(
        devices=tuple(
            _device(found)
            for found in structures
            if found.type == DEVICE and found.number(4, 2) not in others
        ),
        announced_slots=sum(announced) or None,
        version=version,
        problem=problem,
    )


def redact(table: bytes) -> bytes:
    """The table with types 16, 17 and 127 only, and of their strings only the two locators.

    Manufacturer, serial number, asset tag, part number, firmware version and bytes of the vendor's
    own are gone. A table with a fault ends where the fault was, without type 127.
    """
    kept = []
    for found in walk(table)[0]:
        if found.type not in KNOWN_BYTES:
            continue
        body = bytearray(found.body[: KNOWN_BYTES[found.type]])
        body[1] = len(body)
        named = {found.number(0x10, 1), found.number(0x11, 1)} if found.type == DEVICE else set()
        strings = [
            text if index in named else b"-" for index, text in enumerate(found.strings, start=1)
        ]
        # a string set that is empty is two NUL bytes all the same
        kept.append(bytes(body) + (b"\0".join(strings) if strings else b"") + b"\0\0")
    return b"".join(kept)


def walk(table: bytes) -> tuple[list[Structure], str | None]:
    """The structures up to the end mark or the first fault, and that fault in words."""
    found: list[Structure] = []
    offset = 0
    while offset < len(table):
        at = f"at offset {offset} of {len(table)}"
        if offset + HEADER_BYTES > len(table):
            return found, f"{at}, a structure's header of {HEADER_BYTES} bytes is cut short"
        kind, length = table[offset], table[offset + 1]
        if length < HEADER_BYTES:
            return found, f"{at}, a structure of type {kind} gives its length as {length}, below 4"
        strings_at = offset + length
        if strings_at > len(table):
            return found, f"{at}, a structure of type {kind} and {length} bytes runs past the end"
        body = table[offset:strings_at]
        end = table.find(b"\0\0", strings_at)
        if kind == END:
            return [*found, Structure(type=kind, body=body, strings=())], None
        if end < 0:
            return found, f"{at}, the strings of a structure of type {kind} have no end (two NULs)"
        texts = table[strings_at:end]
        strings = tuple(texts.split(b"\0")) if texts else ()
        found.append(Structure(type=kind, body=body, strings=strings))
        offset = end + 2
    return found, f"the table stops at offset {offset} without its end mark (type {END})"


def _device(found: Structure) -> MemoryDevice:
    rated = _speed(found, 0x15, 0x54)
    width = found.number(0x0A, 2)
    return MemoryDevice(
        size_bytes=_size(found),
        speed_mt_per_s=_speed(found, 0x20, 0x58) or rated,
        rated_mt_per_s=rated,
        ranks=(found.number(0x1B, 1) or 0) & 0x0F or None,
        width_bits=width if width and width != 0xFFFF else None,
        kind=KINDS.get(found.number(0x12, 1) or 0),
        form=FORMS.get(found.number(0x0E, 1) or 0),
        locator=found.text(0x10),
        bank=found.text(0x11),
        persistent=found.number(0x28, 1) in PERSISTENT,
    )


def _size(found: Structure) -> int | None:
    size = found.number(0x0C, 2)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:  # too large for this field: the extended size, in MiB
        extended = found.number(0x1C, 4)
        return None if extended is None else (extended & 0x7FFF_FFFF) << 20
    return (size & 0x7FFF) << (10 if size & 0x8000 else 20)


def _speed(found: Structure, offset: int, extended: int) -> int | None:
    speed = found.number(offset, 2)
    if speed == 0xFFFF:
        speed = (found.number(extended, 4) or 0) & 0x7FFF_FFFF
    return speed or None


def _entry(entry_point: bytes) -> tuple[str | None, int | None]:
    """Version and exact table length; the 64-bit entry point knows only a maximum length."""
    if entry_point.startswith(b"_SM3_") and len(entry_point) >= 0x18:
        return f"{entry_point[7]}.{entry_point[8]}", None
    if entry_point.startswith(b"_SM_") and len(entry_point) >= 0x1F:
        length = int.from_bytes(entry_point[0x16:0x18], "little")
        return f"{entry_point[6]}.{entry_point[7]}", length
    return None, None
