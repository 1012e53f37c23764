"""Memory modules from the firmware's SMBIOS table: structures of types 16 and 17.

A table is a sequence of structures. Each has a header (type, length, handle), the rest of its
`length` bytes, and its strings, terminated by two NUL bytes. Firmware gets this wrong in many ways,
so no function raises: the structures before the first error are kept, and `problem` describes it.

The fields are those of DMTF's DSP0134 (System Management BIOS Reference Specification) 3.7.
"""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

TABLE_PATH = "/sys/firmware/dmi/tables/DMI"
ENTRY_POINT_PATH = "/sys/firmware/dmi/tables/smbios_entry_point"

MEMORY_ARRAY, MEMORY_DEVICE, END_OF_TABLE = 16, 17, 127
HEADER_BYTES = 4
SYSTEM_MEMORY = 0x03
# Lengths of the structures in 3.7. Captures omit vendor-specific bytes beyond them.
STRUCTURE_BYTES = {MEMORY_ARRAY: 0x17, MEMORY_DEVICE: 0x64, END_OF_TABLE: HEADER_BYTES}

MEMORY_TYPES = {
    0x07: "RAM", 0x0F: "SDRAM", 0x12: "DDR", 0x13: "DDR2", 0x14: "DDR2 FB-DIMM", 0x18: "DDR3",
    0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4",
    0x1F: "logical non-volatile", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5",
    0x24: "HBM3",
}  # fmt: skip
FORM_FACTORS = {
    0x09: "DIMM", 0x0B: "row of chips", 0x0D: "SODIMM", 0x0F: "FB-DIMM", 0x10: "die", 0x11: "CAMM",
}  # fmt: skip
PERSISTENT_TECHNOLOGIES = (0x05, 0x06, 0x07)  # NVDIMM-F, NVDIMM-P, Optane


class MemoryDevice(Record):
    """A slot and its module, or a soldered package."""

    size_bytes: int | None
    """Size in bytes; 0 for an empty slot, None if the firmware does not report it."""

    speed_mt_per_s: int | None
    """Configured speed in MT/s; the rated speed if only that is given."""

    rated_mt_per_s: int | None
    """Rated speed in MT/s."""

    ranks: int | None
    """Number of ranks; None if unknown."""

    width_bits: int | None
    """Data bits without error correction bits: 64 for a DIMM, 16 or 32 for LPDDR."""

    kind: str | None
    """Memory type: "DDR4", "DDR5", "LPDDR5", …; None if it is not in `MEMORY_TYPES`."""

    form: str | None
    """Form factor: "DIMM", "SODIMM", …; None if it is not in `FORM_FACTORS`."""

    locator: str
    """Name of the slot, chosen by the board's vendor: "DIMM_A1", "PROC 1 DIMM 8"."""

    bank: str
    """Second name of the slot, also free-form: "P0_Node0_Channel0_Dimm0", "BANK 0"."""

    persistent: bool = False
    """Whether the module is persistent memory, such as Optane, and not DRAM."""

    @property
    def populated(self) -> bool:
        """Whether the slot has a module; an unknown size counts, as empty slots report 0."""
        return self.size_bytes != 0


class MemoryTable(Record):
    """Main memory as described by an SMBIOS table."""

    devices: tuple[MemoryDevice, ...] = ()
    """Slots of system memory in the table's order, empty slots included."""

    announced_slots: int | None = None
    """Number of slots according to the memory arrays (type 16); firmware may list fewer."""

    version: str | None = None
    """SMBIOS version, from the entry point."""

    problem: str | None = None
    """Description and offset of the first error; None if the table is valid."""

    @property
    def slots(self) -> int:
        """Number of slots: the larger of the listed and the announced number."""
        return max(len(self.devices), self.announced_slots or 0)

    @property
    def all_listed(self) -> bool:
        """Whether the table lists every slot, as far as is known."""
        if self.announced_slots is None:
            return self.problem is None
        return len(self.devices) >= self.announced_slots

    @property
    def modules(self) -> tuple[MemoryDevice, ...]:
        """Slots that have a module."""
        return tuple(device for device in self.devices if device.populated)


class Structure(Record):
    """An SMBIOS structure: its first `length` bytes, and its strings."""

    type: int
    """Type of the structure, such as 17 for a memory device."""

    body: bytes
    """Header and fields."""

    strings: tuple[bytes, ...]
    """Strings, which fields refer to by number from 1."""

    def number(self, offset: int, width: int) -> int | None:
        """Return a little-endian field of `width` bytes; None if the structure is too short."""
        field = self.body[offset : offset + width]
        return int.from_bytes(field, "little") if len(field) == width else None

    def text(self, offset: int) -> str:
        """Return the string whose number is at `offset`; empty if the string is absent."""
        index = self.number(offset, 1)
        if not index or index > len(self.strings):
            return ""
        string = self.strings[index - 1].decode("utf-8", "replace")
        return "".join(c if c.isprintable() else " " for c in string).strip()


def read_table(source: Source) -> MemoryTable | None:
    """Read the machine's memory table; return None if it is absent or unreadable."""
    table = source.raw(TABLE_PATH)
    return None if table is None else decode_table(table, source.raw(ENTRY_POINT_PATH, 64) or b"")


def decode_table(table: bytes, entry_point: bytes = b"") -> MemoryTable:
    """Decode the main memory from an SMBIOS table; errors are described in `problem`.

    Args:
        table: The structures.
        entry_point: The entry point, which gives version and length; may be empty.
    """
    structures, problem = parse_structures(table)
    version, length = _parse_entry_point(entry_point)
    if length is not None and length > len(table):
        problem = problem or (
            f"the entry point announces {length} bytes, but the table has {len(table)}"
        )
    arrays = [structure for structure in structures if structure.type == MEMORY_ARRAY]
    # Only arrays known to be other memory (flash, video memory) are skipped; the modules of an
    # absent or broken array are kept.
    other_arrays = {
        array.number(2, 2) for array in arrays if array.number(5, 1) not in (SYSTEM_MEMORY, None)
    }
    announced = [
        array.number(0x0D, 2) or 0 for array in arrays if array.number(2, 2) not in other_arrays
    ]
    return MemoryTable(
        devices=tuple(
            _memory_device(structure)
            for structure in structures
            if structure.type == MEMORY_DEVICE and structure.number(4, 2) not in other_arrays
        ),
        announced_slots=sum(announced) or None,
        version=version,
        problem=problem,
    )


def redact_table(table: bytes) -> bytes:
    """Return a table with only structures of types 16, 17 and 127, and only locator strings.

    Manufacturer, serial number, asset tag, part number, firmware version and vendor-specific bytes
    are removed. An invalid table is cut at the first error, without type 127.
    """
    redacted = []
    for structure in parse_structures(table)[0]:
        if structure.type not in STRUCTURE_BYTES:
            continue
        body = bytearray(structure.body[: STRUCTURE_BYTES[structure.type]])
        body[1] = len(body)
        locator_strings = (
            {structure.number(0x10, 1), structure.number(0x11, 1)}
            if structure.type == MEMORY_DEVICE
            else set()
        )
        strings = [
            text if index in locator_strings else b"-"
            for index, text in enumerate(structure.strings, start=1)
        ]
        # An empty string set is two NUL bytes, too.
        redacted.append(bytes(body) + (b"\0".join(strings) if strings else b"") + b"\0\0")
    return b"".join(redacted)


def parse_structures(table: bytes) -> tuple[list[Structure], str | None]:
    """Return the structures up to the end mark or the first error, and the error or None."""
    structures: list[Structure] = []
    offset = 0
    while offset < len(table):
        position = f"at offset {offset} of {len(table)}"
        if offset + HEADER_BYTES > len(table):
            return structures, f"{position}, a structure's {HEADER_BYTES}-byte header is truncated"
        structure_type, length = table[offset], table[offset + 1]
        if length < HEADER_BYTES:
            return structures, (
                f"{position}, a structure of type {structure_type} has length {length}, below 4"
            )
        strings_at = offset + length
        if strings_at > len(table):
            return structures, (
                f"{position}, a structure of type {structure_type} and {length} bytes "
                "exceeds the table"
            )
        body = table[offset:strings_at]
        end = table.find(b"\0\0", strings_at)
        if structure_type == END_OF_TABLE:
            return [*structures, Structure(type=structure_type, body=body, strings=())], None
        if end < 0:
            return structures, (
                f"{position}, the strings of a structure of type {structure_type} "
                "are not terminated by two NULs"
            )
        texts = table[strings_at:end]
        strings = tuple(texts.split(b"\0")) if texts else ()
        structures.append(Structure(type=structure_type, body=body, strings=strings))
        offset = end + 2
    return structures, (
        f"the table stops at offset {offset} without its end mark (type {END_OF_TABLE})"
    )


def _memory_device(structure: Structure) -> MemoryDevice:
    rated = _speed(structure, 0x15, 0x54)
    width = structure.number(0x0A, 2)
    return MemoryDevice(
        size_bytes=_size(structure),
        speed_mt_per_s=_speed(structure, 0x20, 0x58) or rated,
        rated_mt_per_s=rated,
        ranks=(structure.number(0x1B, 1) or 0) & 0x0F or None,
        width_bits=width if width and width != 0xFFFF else None,
        kind=MEMORY_TYPES.get(structure.number(0x12, 1) or 0),
        form=FORM_FACTORS.get(structure.number(0x0E, 1) or 0),
        locator=structure.text(0x10),
        bank=structure.text(0x11),
        persistent=structure.number(0x28, 1) in PERSISTENT_TECHNOLOGIES,
    )


def _size(structure: Structure) -> int | None:
    size = structure.number(0x0C, 2)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:  # too large for this field: the extended size, in MiB
        extended = structure.number(0x1C, 4)
        return None if extended is None else (extended & 0x7FFF_FFFF) << 20
    return (size & 0x7FFF) << (10 if size & 0x8000 else 20)


def _speed(structure: Structure, offset: int, extended: int) -> int | None:
    speed = structure.number(offset, 2)
    if speed == 0xFFFF:
        speed = (structure.number(extended, 4) or 0) & 0x7FFF_FFFF
    return speed or None


def _parse_entry_point(entry_point: bytes) -> tuple[str | None, int | None]:
    """Return SMBIOS version and table length; the 64-bit entry point has only a maximum length."""
    if entry_point.startswith(b"_SM3_") and len(entry_point) >= 0x18:
        return f"{entry_point[7]}.{entry_point[8]}", None
    if entry_point.startswith(b"_SM_") and len(entry_point) >= 0x1F:
        length = int.from_bytes(entry_point[0x16:0x18], "little")
        return f"{entry_point[6]}.{entry_point[7]}", length
    return None, None
