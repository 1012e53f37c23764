"""Names, makers and instructions, as each architecture writes them in /proc/cpuinfo."""

from __future__ import annotations

import pytest

from cputrain.machine.cpuinfo import Identity, parse_blocks, read_identity
from tests.machine.trees import Tree


def read(*lines: str) -> Identity:
    """Identity from these lines."""
    return read_identity(Tree({"/proc/cpuinfo": "\n".join(lines) + "\n"}))


def test_x86_says_everything() -> None:
    """Spaces that pad the name go."""
    found = read(
        "processor\t: 0",
        "vendor_id\t: GenuineIntel",
        "cpu family\t: 6",
        "model\t\t: 143",
        "model name\t: Intel(R) Xeon(R)   Platinum 8480+",
        "flags\t\t: fpu avx2 amx_tile avx512f hypervisor",
    )
    assert (found.vendor, found.family, found.model) == ("GenuineIntel", 6, 143)
    assert found.model_name == "Intel(R) Xeon(R) Platinum 8480+"
    assert found.isa == ("avx2", "avx512f", "amx_tile")
    assert found.virtual


def test_arm_names_each_kind_of_core_once() -> None:
    """Numbers are turned into names, in the order in which they appear."""
    blocks = [
        line
        for part in ("0xd87", "0xd85", "0xd87")
        for line in ("CPU implementer : 0x41", f"CPU part : {part}", "Features : fp asimd sve2", "")
    ]
    found = read(*blocks)
    assert found.vendor == "ARM"
    assert found.model_name == "Cortex-A725 + Cortex-X925"
    assert found.isa == ("asimd", "sve2")


def test_an_arm_core_nobody_knows_keeps_its_number() -> None:
    """With the kernel's words for it, where it has any."""
    assert read("CPU implementer : 0x41", "CPU part : 0xfff").model_name == "ARM part 0xfff"
    assert read("CPU implementer : 0xee", "CPU part : 0x1").vendor == "implementer 0xee"
    named = read("model name : Some Core rev 1", "CPU implementer : 0x41", "CPU part : 0xfff")
    assert named.model_name == "Some Core rev 1"


def test_an_old_arm_kernels_model_name_only_tells_the_architecture() -> None:
    """The part tells more."""
    found = read(
        "model name : ARMv7 Processor rev 1 (v7l)", "CPU implementer : 0x41", "CPU part : 0xc09"
    )
    assert found.model_name == "Cortex-A9"


def test_power_follows_from_its_generation() -> None:
    """It lists no flags, and its model is that of the whole machine."""
    found = read(
        "processor : 0", "cpu : POWER10 (raw), altivec supported", "", "model : IBM,9080-HEX"
    )
    assert found.vendor == "IBM"
    assert found.model_name == "POWER10 (raw), altivec supported"
    assert found.model is None
    assert found.isa == ("altivec", "vsx", "mma")
    assert read("cpu : POWER7 (architected), altivec supported").isa == ("altivec", "vsx")
    assert read("cpu : POWER5 (gr)").isa == ()
    assert read("cpu : PPC970MP, altivec supported").isa == ("altivec",)


def test_s390_has_no_name_but_a_machine_number() -> None:
    """And its features stand in a block before the processors."""
    found = read(
        "vendor_id       : IBM/S390",
        "features\t: esan3 zarch vx vxe vxe2 nnpa",
        "processor 0: version = FF,  identification = 027E53,  machine = 3931",
    )
    assert found.vendor == "IBM/S390"
    assert found.model_name == "machine 3931"
    assert found.isa == ("vx", "vxe", "vxe2", "nnpa")


@pytest.mark.parametrize(
    ("isa", "vectors"),
    [
        ("rv64imafdcv_zicntr_zvfh", True),
        ("rv64imafdcvh_sscofpmf", True),
        ("rv64imafdc_zicntr_zve32x", False),
        ("rv64imafdc zba zbb zifencei", False),
        ("rv64imafdcsvinval", False),
        ("loongarch32 loongarch64", False),
    ],
)
def test_risc_v_has_vectors_where_the_letter_is_there(isa: str, vectors: bool) -> None:
    """A "v" within a longer name is another thing."""
    found = read("processor : 0", f"isa : {isa}", "uarch : sifive,u74-mc", "mvendorid : 0x489")
    assert ("rvv" in found.isa) is vectors
    assert found.model_name == "sifive,u74-mc"
    assert found.vendor == "0x489"


def test_loongarch_is_named_with_capitals() -> None:
    """Keys are compared without them."""
    found = read(
        "CPU Family : Loongson-64bit", "Model Name : Loongson-3A5000", "Features : lsx lasx"
    )
    assert found.vendor == "Loongson"
    assert found.model_name == "Loongson-3A5000"
    assert found.family is None
    assert found.isa == ("lsx", "lasx")


def test_others_are_named_by_what_they_have() -> None:
    """SPARC, MIPS."""
    assert read("cpu : TI UltraSparc II  (BlackBird)").model_name == "TI UltraSparc II (BlackBird)"
    assert read("cpu model : ICT Loongson-3 V0.3").model_name == "ICT Loongson-3 V0.3"


def test_nothing_is_known_of_an_empty_file() -> None:
    """Nor of garbage."""
    for content in ("", ":::", "\0\xff", "processor", "cpu family : ²"):
        found = read(content)
        assert found.model_name is None
        assert found.family is None
        assert found.isa == ()
        assert not found.virtual


def test_blocks_are_paragraphs() -> None:
    """The first value of a key counts, empty paragraphs do not."""
    assert parse_blocks("\n\na : 1\nA: 2\n\n\nb:\n") == [{"a": "1"}, {"b": ""}]
