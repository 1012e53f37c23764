"""How many memory channels are said to be there and in use, and when nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.machine.channel_maxima import channels_per_socket
from cputrain.machine.channels import Channels, ChannelSource, read_channels
from cputrain.machine.edac import EDAC_FOLDER
from cputrain.machine.locators import channel_of, channels_of
from cputrain.machine.smbios import TABLE_PATH
from cputrain.machine.source import RootSource
from tests.machine.smbios_tables import (
    DDR4,
    DDR5,
    LPDDR5,
    desktop_single_rank,
    device,
    epyc_half,
    place,
    qemu,
    table,
    uneven,
)

AMD, INTEL = "AuthenticAMD", "GenuineIntel"
EPYC_7542 = (AMD, 0x17, 0x31, "AMD EPYC 7542 32-Core Processor")
RYZEN = (AMD, 0x19, 0x61, "AMD Ryzen 9 7950X 16-Core Processor")
GOLD = (INTEL, 6, 0x55, "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz")
UNHEARD_OF = ("Unheard", 1, 1, "Unheard Of 9000")

Cpu = tuple[str, int | None, int | None, str]


def read(
    root: Path,
    cpu: Cpu,
    files: dict[str, bytes | str] | None = None,
    *,
    sockets: int = 1,
    virtual: bool = False,
) -> Channels:
    """The channels of a machine that has these files and this processor."""
    place(root, files or {})
    vendor, family, model, name = cpu
    return read_channels(
        RootSource(str(root)),
        vendor=vendor,
        family=family,
        model=model,
        model_name=name,
        sockets=sockets,
        virtual=virtual,
    )


def edac(*modules: tuple[str, str, str, str], name: str = "Skylake Socket#0 IMC#0") -> dict[
    str, bytes | str
]:  # fmt: skip
    """The files of EDAC modules: (controller, folder, location, MiB)."""
    files: dict[str, bytes | str] = {}
    for controller, folder, location, size in modules:
        files[f"{EDAC_FOLDER}/{controller}/mc_name"] = f"{name}\n"
        files[f"{EDAC_FOLDER}/{controller}/{folder}/size"] = f"{size}\n"
        files[f"{EDAC_FOLDER}/{controller}/{folder}/dimm_location"] = f"{location} \n"
        files[f"{EDAC_FOLDER}/{controller}/{folder}/dimm_label"] = f"{controller} {location}\n"
        files[f"{EDAC_FOLDER}/{controller}/{folder}/dimm_mem_type"] = "Registered-DDR4\n"
    return files


def test_an_epyc_with_half_its_channels_is_told_and_warned_of(tmp_path: Path) -> None:
    """Four modules on channels A, C, E and G of eight: the loss and the remedy are said."""
    found = read(tmp_path, EPYC_7542, {TABLE_PATH: epyc_half()})
    assert (found.populated, found.possible, found.source) == (4, 8, ChannelSource.SMBIOS)
    assert (found.speed_mt_per_s, found.ranks, found.slots) == (2933, 2, 16)
    assert [module.channel for module in found.modules] == [f"P0 CHANNEL {c}" for c in "ACEG"]
    assert found.why_unknown is None
    (warning,) = found.warnings
    assert "4 of 8 memory channels" in warning
    assert "+20 %" in warning
    assert "slots of the unused channels" in warning


def test_single_rank_modules_are_warned_of(tmp_path: Path) -> None:
    """Both channels are in use, with one rank each."""
    found = read(tmp_path, RYZEN, {TABLE_PATH: desktop_single_rank()})
    assert (found.populated, found.possible, found.ranks) == (2, 2, 1)
    (warning,) = found.warnings
    assert "about +5 %" in warning


def test_mixed_speeds_and_uneven_channels_are_warned_of(tmp_path: Path) -> None:
    """Three modules on two channels, one of them slower."""
    found = read(tmp_path, RYZEN, {TABLE_PATH: uneven()})
    assert (found.populated, found.speed_mt_per_s) == (2, 2666)
    mixed, amount = found.warnings
    assert "2666 and 3200 MT/s" in mixed
    assert "17 %" in mixed
    assert "from 16 to 32 GiB" in amount


def test_sockets_with_unequal_channels_are_warned_of(tmp_path: Path) -> None:
    """Eleven channels over two sockets cannot be the same on both."""
    slots = table(
        *(
            device(f"CPU{cpu}_DIMM_{letter}1", gib=0 if (cpu, letter) == (1, "F") else 32)
            for cpu in (0, 1)
            for letter in "ABCDEF"
        )
    )
    found = read(tmp_path, GOLD, {TABLE_PATH: slots}, sockets=2)
    assert (found.populated, found.possible) == (11, 12)
    assert any("2 sockets share 11 memory channels" in warning for warning in found.warnings)


def test_a_board_without_free_slots_needs_another_board(tmp_path: Path) -> None:
    """Telling somebody to fill slots that are not there helps nobody."""
    full = table(*(device(f"DIMM_{letter}1") for letter in "ABCD"))
    (warning,) = read(tmp_path, EPYC_7542, {TABLE_PATH: full}).warnings
    assert "another board" in warning


def test_a_virtual_machine_is_not_believed(tmp_path: Path) -> None:
    """The modules of QEMU are inventions, and the host's channels are not the guest's."""
    found = read(tmp_path, EPYC_7542, {TABLE_PATH: qemu()}, virtual=True)
    assert (found.populated, found.possible, found.modules) == (None, None, ())
    assert found.source is ChannelSource.NONE
    assert found.why_unknown is not None
    assert "virtual machine" in found.why_unknown
    assert found.warnings == ()


def test_without_any_table_only_the_maximum_is_known(tmp_path: Path) -> None:
    """The processor's model tells what is possible, and the reason for the rest is given."""
    found = read(tmp_path, EPYC_7542, sockets=2)
    assert (found.populated, found.possible) == (None, 16)
    assert found.source is ChannelSource.CPU_FAMILY
    assert found.why_unknown is not None
    assert "root" in found.why_unknown
    assert "EDAC" in found.why_unknown


def test_an_unknown_processor_is_not_given_a_maximum(tmp_path: Path) -> None:
    """The channels in use are known from the slots, the possible ones are not."""
    found = read(tmp_path, UNHEARD_OF, {TABLE_PATH: epyc_half()})
    assert (found.populated, found.possible) == (4, None)
    assert found.why_unknown is not None
    assert "Unheard Of 9000" in found.why_unknown


def test_nothing_known_at_all_is_said(tmp_path: Path) -> None:
    """No name, no number, no table."""
    found = read_channels(
        RootSource(str(tmp_path)),
        vendor=None,
        family=None,
        model=None,
        model_name=None,
        sockets=1,
        virtual=False,
    )
    assert (found.populated, found.possible, found.source) == (None, None, ChannelSource.NONE)
    assert found.why_unknown is not None


def test_slot_numbers_are_not_taken_for_channels(tmp_path: Path) -> None:
    """HPE counts slots; modules are listed, channels are not guessed, and the most is said."""
    slots = table(
        *(device(f"PROC 1 DIMM {n}", gib=32 if n in (8, 10) else 0) for n in range(1, 13))
    )
    found = read(tmp_path, GOLD, {TABLE_PATH: slots})
    assert (found.populated, found.possible, len(found.modules)) == (None, 6, 2)
    assert found.why_unknown is not None
    assert "PROC 1 DIMM 1" in found.why_unknown
    (warning,) = found.warnings
    assert "at most 2 of 6" in warning


def test_as_many_slots_as_channels_are_one_on_each_and_the_assumption_is_said(
    tmp_path: Path,
) -> None:
    """Where every channel can take only one module, modules count channels."""
    slots = table(*(device(f"DIMM{n}", gib=32 if n < 4 else 0) for n in range(1, 7)))
    found = read(tmp_path, GOLD, {TABLE_PATH: slots})
    assert (found.populated, found.possible) == (3, 6)
    assert found.how.startswith("An assumption")


def test_a_board_filled_to_the_last_slot_uses_all_channels(tmp_path: Path) -> None:
    """Whatever the slots are called."""
    slots = table(*(device(f"PROC 1 DIMM {n}") for n in range(1, 13)))
    assert read(tmp_path, GOLD, {TABLE_PATH: slots}).populated == 6


def test_slots_that_all_have_one_name_tell_nothing(tmp_path: Path) -> None:
    """Two modules of the same name may be on one channel, even if there are two channels."""
    found = read(
        tmp_path, RYZEN, {TABLE_PATH: table(device("Channel-0-DIMM-0"), device("Channel-0-DIMM-0"))}
    )
    assert found.populated is None
    assert found.why_unknown is not None
    assert "same name" in found.why_unknown


def test_more_channels_than_the_processor_has_are_not_believed(tmp_path: Path) -> None:
    """Then the letters mean something else than channels."""
    slots = table(*(device(f"DIMM_{letter}1") for letter in "ABCD"))
    found = read(tmp_path, RYZEN, {TABLE_PATH: slots})
    assert found.populated is None
    assert found.why_unknown is not None
    assert "4 channels would be in use" in found.why_unknown


def test_poweredge_letters_are_processors_and_numbers_go_round_the_channels(
    tmp_path: Path,
) -> None:
    """A1 and A7 share a channel of a processor that has six; B1 to B4 are the other processor."""
    filled = {"A1", "A2", "A7", "B1", "B2", "B3", "B4"}
    slots = table(
        *(
            device(f"{letter}{n}", gib=16 if f"{letter}{n}" in filled else 0)
            for letter in "AB"
            for n in range(1, 13)
        )
    )
    files: dict[str, bytes | str] = {
        TABLE_PATH: slots,
        "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        "/sys/class/dmi/id/product_name": "PowerEdge R740\n",
    }
    found = read(tmp_path, GOLD, files, sockets=2)
    assert (found.populated, found.possible) == (6, 12)
    # without knowing that it is a PowerEdge, twelve slots under one letter are no channel
    (tmp_path / "sys/class/dmi/id/product_name").unlink()
    assert read(tmp_path, GOLD, sockets=2).populated is None


def test_lpddr_is_counted_by_its_bits(tmp_path: Path) -> None:
    """Eight 32-bit channels of a 256-bit laptop are four of 64 bits, and no rank is missed."""
    packages = table(
        *(device("DIMM 0", f"P0 CHANNEL {c}", kind=LPDDR5, width=32, ranks=1) for c in "ABCDEFGH")
    )
    cpu = (AMD, 0x1A, 0x70, "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S")
    found = read(tmp_path, cpu, {TABLE_PATH: packages})
    assert (found.populated, found.possible, found.warnings) == (4, 4, ())


def test_persistent_and_on_package_memory_are_no_modules(tmp_path: Path) -> None:
    """Optane in a slot and HBM on the package are not main memory's channels."""
    slots = table(
        device("DIMM_A1", kind=DDR4),
        device("DIMM_A2", technology=0x07),
        device("HBM 0", kind=0x21),
    )
    found = read(tmp_path, GOLD, {TABLE_PATH: slots})
    assert (found.populated, len(found.modules)) == (1, 1)


def test_a_damaged_table_leaves_the_channels_open(tmp_path: Path) -> None:
    """A module may have been in the part that is lost."""
    whole = epyc_half()
    found = read(tmp_path, EPYC_7542, {TABLE_PATH: whole[: len(whole) // 2]})
    assert found.populated is None
    assert found.why_unknown is not None
    assert "offset" in found.why_unknown
    assert found.warnings == ()


def test_edac_tells_the_channels_where_the_firmware_cannot_be_read(tmp_path: Path) -> None:
    """Two controllers with three channels each, of which two have a module; no rank is known."""
    files = edac(
        ("mc0", "dimm0", "channel 0 slot 0", "32768"),
        ("mc0", "dimm2", "channel 1 slot 0", "32768"),
        ("mc1", "dimm0", "channel 0 slot 0", "32768"),
        ("mc1", "dimm1", "channel 0 slot 1", "32768"),
    )
    found = read(tmp_path, GOLD, files)
    assert (found.populated, found.possible, found.source) == (3, 6, ChannelSource.EDAC)
    assert (found.ranks, len(found.modules)) == (None, 4)
    assert found.modules[0].size_bytes == 32 << 30


def test_edac_counts_ranks_on_amd(tmp_path: Path) -> None:
    """There a folder is a rank, and its row (csrow) says nothing of modules."""
    files = edac(
        *(
            ("mc0", f"rank{8 * row + channel}", f"csrow {row} channel {channel}", "16384")
            for row in (0, 1)
            for channel in range(8)
        ),
        name="F17h_M30h",
    )
    found = read(tmp_path, EPYC_7542, files)
    assert (found.populated, found.ranks, len(found.modules)) == (8, 2, 8)
    assert found.modules[0].size_bytes == 32 << 30
    assert found.warnings == ()


def test_edac_helps_out_where_slot_names_do_not_tell(tmp_path: Path) -> None:
    """Channels come from EDAC then, and the speed still from the firmware."""
    slots = table(
        *(device(f"PROC 1 DIMM {n}", gib=32 if n in (8, 10) else 0) for n in range(1, 13))
    )
    files = edac(
        ("mc0", "dimm0", "channel 0 slot 0", "32768"), ("mc0", "dimm2", "channel 1 slot 0", "32768")
    )
    found = read(tmp_path, GOLD, {TABLE_PATH: slots, **files})
    assert (found.populated, found.source) == (2, ChannelSource.EDAC)
    assert (found.speed_mt_per_s, found.slots) == (3200, 12)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (edac(("mc0", "csrow0", "", "1024")), "csrow"),
        (edac(("mc0", "dimm0", "memory 3", "1024")), "without a channel"),
        (edac(("mc0", "dimm0", "channel 0 slot 0", "0")), "no memory"),
        (
            edac(("mc0", "dimm0", "channel 0 slot 0", "8192"), name="Intel_client_SoC MC#0"),
            "parts of channels",
        ),
    ],
)
def test_edac_that_does_not_tell_the_channel_is_not_guessed_from(
    tmp_path: Path, files: dict[str, bytes | str], words: str
) -> None:
    """Each reason is said."""
    found = read(tmp_path, GOLD, files)
    assert found.populated is None
    assert found.why_unknown is not None
    assert words in found.why_unknown


@pytest.mark.parametrize(
    ("locator", "bank", "channel"),
    [
        ("DIMM 0", "P0 CHANNEL A", "P0 CHANNEL A"),
        ("DIMMC1", "P0_Node0_Channel2_Dimm0", "P0 NODE0 CHANNEL 2"),
        ("P1-DIMMA2", "P0_Node0_Channel0_Dimm1", "P0 NODE0 CHANNEL 0"),
        ("DIMM_H2", "NODE 1 CHANNEL 1 DIMM 1", "NODE1 CHANNEL 1"),
        ("ChannelA-DIMM0", "BANK 0", "CHANNEL A"),
        ("Controller0-ChannelA-DIMM0", "BANK 0", "CONTROLLER0 CHANNEL A"),
        ("Controller1-DIMMB2", "BANK 2", "CONTROLLER1 CHANNEL B"),
        ("Channel-1-DIMM-0", "BANK 0", "CHANNEL 1"),
        ("CPU1_CH0_D0", "", "CPU1 CHANNEL 0"),
        ("DIMM_A1", "BANK 0", "CHANNEL A"),
        ("CPU0_DIMM_C1", "BANK 4", "CPU0 CHANNEL C"),
        ("CPU0_A0", "", "CPU0 CHANNEL A"),
        ("DIMM_P0_A0", "BANK 0", "P0 CHANNEL A"),
        ("P2-DIMMF1", "", "P2 CHANNEL F"),
        ("DIMMA1", "P1 BANK", "P1 CHANNEL A"),
        ("DDR4_B1", "", "CHANNEL B"),
        ("SO-DIMM A0", "BANK-0-0-0", "CHANNEL A"),
        ("H1", "", "CHANNEL H"),
        ("P1 CHANNEL B", "", "P1 CHANNEL B"),
        ("PROC 1 DIMM 8", "", None),
        ("PROC 1 DIMM 1D", "", None),
        ("DIMM 3", "BANK 3", None),
        ("DIMM1_CPU0", "", None),
        ("DIMM A", "BANK 0", None),
        ("Top-Slot 1(top)", "BANK 0", None),
        ("System Board Memory", "", None),
        ("", "", None),
    ],
)
def test_slot_names_of_many_makers_are_read(locator: str, bank: str, channel: str | None) -> None:
    """A letter or the word channel tells; a number alone is a slot's."""
    assert channel_of(locator, bank) == channel


@settings(deadline=None)  # shared machines stall
@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=8))
def test_any_slot_names_give_channels_or_a_reason(names: list[tuple[str, str]]) -> None:
    """Never both, never neither, never an exception."""
    told, why = channels_of(names)
    assert (told is None) == bool(why)
    assert told is None or len(told) == len(names)


@pytest.mark.parametrize(
    ("cpu", "channels"),
    [
        ((AMD, 0x17, 0x01, "AMD EPYC 7601 32-Core Processor"), 8),
        (EPYC_7542, 8),
        ((AMD, 0x17, 0x31, "AMD EPYC 7H12 64-Core Processor"), 8),
        ((AMD, 0x19, 0x01, "AMD EPYC 7763 64-Core Processor"), 8),
        ((AMD, 0x19, 0x11, "AMD EPYC 9654 96-Core Processor"), 12),
        ((AMD, 0x1A, 0x02, "AMD EPYC 9755 128-Core Processor"), 12),
        ((AMD, 0x19, 0x11, "AMD EPYC 9V64H Processor"), None),
        ((AMD, 0x19, 0xA0, "AMD EPYC 8534P 64-Core Processor"), 6),
        ((AMD, 0x19, 0x61, "AMD EPYC 4564P 16-Core Processor"), 2),
        ((AMD, 0x17, 0x01, "AMD EPYC 3251 8-Core Processor"), 2),
        ((AMD, 0x17, 0x01, "AMD EPYC 3451 16-Core Processor"), 4),
        ((AMD, 0x17, 0x31, "AMD Ryzen Threadripper 3970X 32-Core Processor"), 4),
        ((AMD, 0x17, 0x08, "AMD Ryzen Threadripper 2990WX 32-Core Processor"), 4),
        ((AMD, 0x17, 0x31, "AMD Ryzen Threadripper PRO 3995WX 64-Cores"), 8),
        (RYZEN, 2),
        ((AMD, 0x17, 0xA0, "AMD Ryzen 5 7520U with Radeon Graphics"), None),
        ((AMD, 0x1A, 0x70, "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"), 4),
        ((INTEL, 6, 0x4F, "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"), 4),
        ((INTEL, 6, 0x3E, "Intel(R) Xeon(R) CPU E5-2420 v2 @ 2.20GHz"), 3),
        ((INTEL, 6, 0x4F, "Intel(R) Xeon(R) CPU E7-8890 v4 @ 2.20GHz"), None),
        (GOLD, 6),
        ((INTEL, 6, 0x55, "Intel(R) Xeon(R) Platinum 9282 CPU @ 2.60GHz"), 12),
        ((INTEL, 6, 0x55, "Intel(R) Xeon(R) W-2295 CPU @ 3.00GHz"), 4),
        ((INTEL, 6, 0x55, "Intel(R) Xeon(R) W-3275 CPU @ 2.50GHz"), 6),
        ((INTEL, 6, 0x55, "Intel(R) Core(TM) i9-10980XE CPU @ 3.00GHz"), 4),
        ((INTEL, 6, 0x55, "Intel(R) Xeon(R) Processor @ 2.50GHz"), None),
        ((INTEL, 6, 0x6A, "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"), 8),
        ((INTEL, 6, 0x6A, "Intel(R) Xeon(R) W-3375 CPU @ 2.50GHz"), 8),
        ((INTEL, 6, 0x8F, "Intel(R) Xeon(R) Platinum 8480+"), 8),
        ((INTEL, 6, 0x8F, "Intel(R) Xeon(R) CPU Max 9480"), 8),
        ((INTEL, 6, 0x8F, "Intel(R) Xeon(R) w5-2455X"), 4),
        ((INTEL, 6, 0x8F, "Intel(R) Xeon(R) w9-3495X"), 8),
        ((INTEL, 6, 0xCF, "INTEL(R) XEON(R) PLATINUM 8592+"), 8),
        ((INTEL, 6, 0xAD, "Intel(R) Xeon(R) 6980P"), 12),
        ((INTEL, 6, 0xAD, "Intel(R) Xeon(R) 6787P"), 8),
        ((INTEL, 6, 0xAF, "Intel(R) Xeon(R) 6780E"), 8),
        ((INTEL, 6, 0x9E, "Intel(R) Xeon(R) E-2288G CPU @ 3.70GHz"), 2),
        ((INTEL, 6, 0xB7, "13th Gen Intel(R) Core(TM) i9-13900K"), 2),
        ((INTEL, 6, 0xAA, "Intel(R) Core(TM) Ultra 7 155H"), 2),
        ((INTEL, 6, 0xBE, "Intel(R) Core(TM) i3-N305"), 1),
        ((INTEL, 6, 0x1A, "Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz"), None),
        (("ARM", None, None, "Neoverse-N1"), None),
        (("ARM", None, None, "AWS Graviton3"), 8),
        (UNHEARD_OF, None),
    ],
)
def test_the_maximum_is_known_for_known_processors_only(cpu: Cpu, channels: int | None) -> None:
    """Where family, model and name do not settle it, nothing is claimed."""
    assert channels_per_socket(*cpu) == channels


def test_the_value_goes_into_json_as_it_is(tmp_path: Path) -> None:
    """Records, tuples and the source's name become objects, lists and text."""
    document = read(tmp_path, RYZEN, {TABLE_PATH: table(device("DIMM_A1", kind=DDR5))}).as_json()
    assert document["source"] == "smbios"
    assert document["modules"][0]["kind"] == "DDR5"
