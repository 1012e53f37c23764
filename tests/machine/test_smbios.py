"""What the decoder makes of SMBIOS tables, good ones and broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.machine.smbios import (
    ENTRY_POINT_PATH,
    TABLE_PATH,
    decode_table,
    read_table,
    redact_table,
)
from cputrain.machine.source import RootSource
from tests.machine.smbios_tables import (
    ASSET,
    DDR5,
    MAKER,
    PART,
    SERIAL,
    array,
    desktop_single_rank,
    device,
    end,
    entry_point,
    epyc_half,
    old_entry_point,
    place,
    structure,
    table,
    uneven,
)

GIB = 1 << 30
EPYC = epyc_half()


def test_modules_and_slots_of_an_epyc_are_told() -> None:
    """Every field of a populated slot is decoded, and empty slots are counted too."""
    found = decode_table(EPYC)
    assert found.problem is None
    assert (found.slots, len(found.modules), found.all_listed) == (16, 4, True)
    module = found.modules[0]
    assert module.size_bytes == 32 * GIB
    assert (module.speed_mt_per_s, module.rated_mt_per_s) == (2933, 3200)
    assert (module.ranks, module.width_bits) == (2, 64)
    assert (module.kind, module.form) == ("DDR4", "DIMM")
    assert (module.locator, module.bank) == ("DIMM 1", "P0 CHANNEL A")


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (0, 0),
        (0xFFFF, None),
        (0x4000, 16 * GIB),
        (0x8000 | 512, 512 << 10),
        (0x7FFE, 0x7FFE << 20),
    ],
)
def test_the_size_field_has_three_special_meanings(raw: int, size: int | None) -> None:
    """0 is an empty slot, all ones unknown, and bit 15 turns MiB into KiB."""
    assert decode_table(table(device("A1", size=raw))).devices[0].size_bytes == size


def test_sizes_of_32_gib_and_more_are_in_the_extended_field() -> None:
    """0x7FFF sends the reader to the extended size, in MiB."""
    assert decode_table(table(device("A1", gib=256))).devices[0].size_bytes == 256 * GIB


def test_an_extended_size_that_is_cut_off_is_unknown() -> None:
    """A structure of SMBIOS 2.6 has no extended size to be sent to."""
    found = decode_table(table(device("A1", size=0x7FFF, length=0x1C)))
    assert found.devices[0].size_bytes is None
    assert found.devices[0].populated


def test_speeds_above_65534_are_in_the_extended_fields() -> None:
    """SMBIOS 3.3 has 32 bits for both speeds."""
    module = decode_table(table(device("A1", kind=DDR5, speed=80000, configured=70000))).modules[0]
    assert (module.rated_mt_per_s, module.speed_mt_per_s) == (80000, 70000)


def test_the_rated_speed_stands_in_for_an_absent_configured_one() -> None:
    """Old firmware knows only one speed, and some gives the other as 0."""
    for old in (device("A1", speed=1333, length=0x1B), device("A1", speed=1333, configured=0)):
        assert decode_table(table(old)).modules[0].speed_mt_per_s == 1333


def test_unknown_ranks_and_speeds_are_none() -> None:
    """0 means unknown in both fields."""
    module = decode_table(table(device("A1", ranks=0, speed=0))).modules[0]
    assert (module.ranks, module.speed_mt_per_s) == (None, None)


def test_memory_that_is_no_main_memory_is_left_out() -> None:
    """A flash chip has a memory device too, in an array whose use is not system memory."""
    flash = array(1, handle=0x2000, use=0x05) + device("Flash", array_handle=0x2000)
    found = decode_table(array(1) + device("A1") + flash + end())
    assert [slot.locator for slot in found.devices] == ["A1"]
    assert found.announced_slots == 1


def test_persistent_memory_is_marked() -> None:
    """Optane sits in a memory slot, and is no DRAM."""
    assert decode_table(table(device("A1", technology=0x07))).modules[0].persistent


def test_slots_that_the_firmware_leaves_out_are_counted_by_the_array() -> None:
    """Some firmware lists populated slots only."""
    found = decode_table(table(device("A1"), announced=4))
    assert (found.slots, found.all_listed) == (4, False)


def test_the_version_comes_from_either_entry_point() -> None:
    """The 64-bit one of SMBIOS 3 and the 32-bit one before it."""
    assert decode_table(EPYC, entry_point(3, 6)).version == "3.6"
    assert decode_table(EPYC, old_entry_point(2, 8, len(EPYC))).version == "2.8"
    assert decode_table(EPYC, b"_SM_ but cut").version is None


def test_a_table_shorter_than_announced_is_said() -> None:
    """The 32-bit entry point knows the exact length."""
    found = decode_table(EPYC, old_entry_point(2, 8, len(EPYC) + 100))
    assert found.problem is not None
    assert str(len(EPYC) + 100) in found.problem


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (bytes([17, 3, 0, 0]), "has length 3"),
        (bytes([17, 0x5C, 0, 0]), "exceeds the table"),
        (bytes([17, 5, 0]), "is truncated"),
        (bytes([17, 6, 0, 0, 0, 0]) + b"text", "are not terminated"),
        (b"", "without its end mark"),
    ],
)
def test_a_fault_is_named_with_its_offset_and_keeps_what_came_before(
    fault: bytes, words: str
) -> None:
    """The modules before the fault are there, and the problem says where it was."""
    good = array(2) + device("A1")
    found = decode_table(good + fault)
    assert [slot.locator for slot in found.devices] == ["A1"]
    assert found.problem is not None
    assert words in found.problem
    assert f"offset {len(good)}" in found.problem


def test_a_string_number_without_a_string_is_an_empty_name() -> None:
    """Firmware points to strings that it forgot."""
    body = bytearray(device("A1", length=0x28))
    body[0x11] = 99
    assert decode_table(array(1) + bytes(body) + end()).devices[0].bank == ""


@settings(deadline=None)  # shared machines stall
@given(st.integers(0, len(EPYC)))
def test_a_table_cut_at_any_byte_still_decodes(at: int) -> None:
    """The devices found are the first ones of the whole table."""
    found = decode_table(EPYC[:at])
    assert found.devices == decode_table(EPYC).devices[: len(found.devices)]
    assert found.problem is not None or found.devices == decode_table(EPYC).devices or at == 0
    redact_table(EPYC[:at])


@settings(deadline=None)  # shared machines stall
@given(st.integers(0, len(EPYC) - 1), st.integers(0, 255))
def test_a_table_with_any_byte_changed_still_decodes(at: int, value: int) -> None:
    """Whatever is in it, neither decoding nor redacting raises."""
    changed = EPYC[:at] + bytes([value]) + EPYC[at + 1 :]
    decode_table(changed)
    redact_table(changed)


@settings(deadline=None)  # shared machines stall
@given(st.binary(max_size=300), st.binary(max_size=40))
def test_garbage_decodes_to_something(garbage: bytes, entry: bytes) -> None:
    """Not even a table's outline is needed."""
    assert decode_table(garbage, entry).slots >= 0
    redact_table(garbage)


@pytest.mark.parametrize("whole", [EPYC, desktop_single_rank(), uneven()])
def test_a_redacted_table_says_the_same_without_saying_whose_it_is(whole: bytes) -> None:
    """The memory is all there; maker, serial, asset tag and part number are not."""
    redacted = redact_table(whole)
    assert decode_table(redacted) == decode_table(whole)
    for secret in (SERIAL, ASSET, PART, MAKER, "American Megatrends"):
        assert secret.encode() not in redacted


def test_redaction_drops_the_bytes_that_the_specification_does_not_know() -> None:
    """What a vendor adds behind the last known field may be anything."""
    long = structure(17, 1, bytes(0x60) + b"SECRET", ("A1",))
    assert b"SECRET" not in redact_table(array(1) + long + end())


def test_redacting_twice_changes_nothing() -> None:
    """A redacted table is a table."""
    assert redact_table(redact_table(EPYC)) == redact_table(EPYC)
    assert redact_table(b"") == b""


def test_the_table_is_read_from_sysfs(tmp_path: Path) -> None:
    """Table and entry point are two files."""
    place(tmp_path, {TABLE_PATH: EPYC, ENTRY_POINT_PATH: entry_point(3, 3)})
    found = read_table(RootSource(str(tmp_path)))
    assert found is not None
    assert (len(found.modules), found.version) == (4, "3.3")


def test_a_machine_without_a_table_has_none(tmp_path: Path) -> None:
    """Most readers are not root, and some machines have no such table."""
    assert read_table(RootSource(str(tmp_path))) is None
