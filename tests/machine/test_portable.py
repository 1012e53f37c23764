"""Facts by portable means, with the platform faked and the helpers hidden or failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cputrain.machine import portable
from cputrain.machine.portable import PortableFacts, read_portable
from cputrain.machine.sysctl import parse_positive_int

M2_MAX = """\
machdep.cpu.brand_string: Apple M2 Max
hw.memsize: 68719476736
hw.physicalcpu: 12
hw.logicalcpu: 12
hw.l2cachesize: 4194304
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SPECRES: 0
hw.optional.neon: 1
hw.optional.watchpoint: 4
hw.perflevel0.physicalcpu: 8
hw.perflevel1.physicalcpu: 4
hw.perflevel0.l2cachesize: 16777216
"""

M5_MAX = """\
machdep.cpu.brand_string: Apple M5 Max
hw.memsize: 137438953472
hw.perflevel0.physicalcpu: 6
hw.perflevel1.physicalcpu: 12
hw.perflevel0.l2cachesize: 16777216
"""

INTEL_MAC = """\
machdep.cpu.brand_string: Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz
hw.memsize: 34359738368
hw.physicalcpu: 8
hw.logicalcpu: 16
hw.l2cachesize: 262144
hw.l3cachesize: 16777216
hw.optional.avx2_0: 1
"""

WINDOWS_CPUINFO = {
    "arch": "X86_64",
    "vendor_id_raw": "GenuineIntel",
    "brand_raw": "13th Gen Intel(R) Core(TM) i9-13900K",
    "family": 6,
    "model": 183,
    "flags": ["avx2", "fma", "sse4_2"],
    "l2_cache_size": 33554432,
    "l3_cache_size": "36 MB",
}


class BoundProcess:
    """psutil's Process, bound to three CPUs."""

    def cpu_affinity(self) -> list[int]:
        return [1, 0, 2]


@pytest.fixture(autouse=True)
def not_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "_cached_cpuinfo", None)


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """py-cpuinfo, counting how often it is asked; it knows nothing until told."""
    fake = SimpleNamespace(answer={"arch": "ARM_8"}, asked=0)

    def get_cpu_info() -> Any:
        fake.asked += 1
        return fake.answer

    fake.get_cpu_info = get_cpu_info
    monkeypatch.setitem(sys.modules, "cpuinfo", fake)
    return fake


def pretend(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)


def on_a_mac(monkeypatch: pytest.MonkeyPatch, output: str, code: int = 1) -> list[list[str]]:
    """macOS, whose sysctl prints this; psutil there knows no affinity."""
    pretend(monkeypatch, "darwin")
    monkeypatch.delattr(psutil.Process, "cpu_affinity", raising=False)
    ran: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        assert options["timeout"] > 0
        ran.append(command)
        return subprocess.CompletedProcess(command, code, output.encode(), b"sysctl: unknown oid")

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_apples_chips_tell_their_kinds_of_cores_and_their_flags(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    ran = on_a_mac(monkeypatch, M2_MAX)
    facts = read_portable()
    assert (facts.performance_cores, facts.efficiency_cores) == (8, 4)
    assert (facts.vendor, facts.model_name) == ("Apple", "Apple M2 Max")
    assert facts.isa == ("FEAT_BF16", "FEAT_I8MM", "neon")
    assert facts.l2_bytes == 16 << 20  # that of the performance cores, not hw.l2cachesize
    assert facts.affinity is None
    assert facts.unknown["affinity"] == "darwin does not bind processes to CPUs"
    assert facts.unknown["l3_bytes"] == "no source for it on darwin"
    assert len(ran) == 1
    assert ran[0][0] == "/usr/sbin/sysctl"
    assert "hw.perflevel1.physicalcpu" in ran[0]


def test_an_m5_counts_its_slower_kind_as_efficiency_cores(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    on_a_mac(monkeypatch, M5_MAX)
    facts = read_portable()
    assert (facts.performance_cores, facts.efficiency_cores) == (6, 12)


def test_an_intel_mac_has_no_kinds_of_cores_and_says_so(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    on_a_mac(monkeypatch, INTEL_MAC)
    cpuinfo.answer = {"vendor_id_raw": "GenuineIntel", "flags": ["avx2"], "family": 6, "model": 158}
    facts = read_portable()
    assert facts.performance_cores is None
    assert facts.unknown["performance_cores"] == "sysctl lists no kinds of cores"
    assert (facts.vendor, facts.isa, facts.model) == ("GenuineIntel", ("avx2",), 158)
    assert (facts.l2_bytes, facts.l3_bytes) == (256 << 10, 16 << 20)


def test_a_mac_without_psutil_is_counted_by_sysctl(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    on_a_mac(monkeypatch, M2_MAX)
    monkeypatch.setitem(sys.modules, "psutil", None)
    facts = read_portable()
    assert (facts.logical, facts.physical, facts.memory_bytes) == (12, 12, 64 << 30)
    assert not {"logical", "physical", "memory_bytes"} & facts.unknown.keys()
    assert facts.unknown["available_memory_bytes"].startswith("psutil cannot be imported")


@pytest.mark.parametrize(
    "failure",
    [FileNotFoundError("/usr/sbin/sysctl"), subprocess.TimeoutExpired("sysctl", 5.0)],
)
def test_a_sysctl_that_fails_leaves_a_reason(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace, failure: Exception
) -> None:
    on_a_mac(monkeypatch, "")

    def run(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", run)
    facts = read_portable()
    assert facts.performance_cores is None
    assert facts.unknown["efficiency_cores"] == f"sysctl failed: {failure}"


def test_windows_is_read_by_psutil_and_py_cpuinfo(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    pretend(monkeypatch, "win32")
    cpuinfo.answer = WINDOWS_CPUINFO
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 32 if logical else 24)
    clock = SimpleNamespace(current=3000.0, min=0.0, max=3000.0)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: clock, raising=False)
    monkeypatch.setattr(psutil, "Process", BoundProcess)
    facts = read_portable()
    assert (facts.system, facts.logical, facts.physical) == ("win32", 32, 24)
    assert (facts.frequency_hz, facts.max_frequency_hz) == (3_000_000_000, 3_000_000_000)
    assert facts.affinity == (0, 1, 2)
    assert (facts.vendor, facts.family, facts.model) == ("GenuineIntel", 6, 183)
    assert facts.isa == ("avx2", "fma", "sse4_2")
    assert (facts.l2_bytes, facts.l3_bytes) == (32 << 20, 36 << 20)
    assert facts.unknown["performance_cores"] == "it is read only on macOS"


def test_without_psutil_and_py_cpuinfo_each_missing_fact_has_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "freebsd14")
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setitem(sys.modules, "cpuinfo", None)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    facts = read_portable()
    assert facts.logical == 6
    for name in ("physical", "memory_bytes", "frequency_hz", "affinity"):
        assert facts.unknown[name].startswith("psutil cannot be imported"), name
    for name in ("vendor", "model_name", "isa", "l2_bytes"):
        assert facts.unknown[name].startswith("py-cpuinfo cannot be imported"), name
    missing = {name for name in PortableFacts.record_fields if getattr(facts, name) in (None, ())}
    assert missing == facts.unknown.keys()


def test_a_machine_that_cannot_be_counted_at_all_has_one_cpu(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    pretend(monkeypatch, "openbsd7")
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    facts = read_portable()
    assert facts.logical == 1
    assert "logical" in facts.unknown


def test_py_cpuinfos_bare_exception_becomes_the_reason(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    text = "py-cpuinfo currently only works on X86 and some ARM/PPC/S390X/MIPS/RISCV CPUs."

    def give_up() -> None:
        raise Exception(text)

    cpuinfo.get_cpu_info = give_up
    assert read_portable().unknown["model_name"] == f"py-cpuinfo failed: {text}"


def test_py_cpuinfos_empty_answer_is_a_reason_too(cpuinfo: SimpleNamespace) -> None:
    cpuinfo.answer = {}
    assert read_portable().unknown["vendor"] == "py-cpuinfo returned nothing"


def test_py_cpuinfo_is_asked_once(cpuinfo: SimpleNamespace) -> None:
    assert read_portable().architecture == read_portable().architecture
    assert cpuinfo.asked == 1


def test_whatever_psutil_raises_becomes_the_reason(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("host_statistics64(HOST_VM_INFO64) syscall failed")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    monkeypatch.delattr(psutil, "cpu_freq", raising=False)
    facts = read_portable()
    assert "HOST_VM_INFO64" in facts.unknown["memory_bytes"]
    assert facts.unknown["available_memory_bytes"] == facts.unknown["memory_bytes"]
    assert facts.unknown["frequency_hz"].startswith("AttributeError")


def test_a_clock_of_zero_is_unknown(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: SimpleNamespace
) -> None:
    clock = SimpleNamespace(current=4.0, min=0.0, max=0.0)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: clock, raising=False)
    facts = read_portable()
    assert (facts.frequency_hz, facts.max_frequency_hz) == (4_000_000, None)
    assert "max_frequency_hz" in facts.unknown


def test_this_machine_can_be_read_and_written_as_json(cpuinfo: SimpleNamespace) -> None:
    facts = read_portable().as_json()
    assert facts["logical"] >= 1
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (524288, 524288),
        ("8", 8),
        ("512 KiB", 512 << 10),
        ("1 MB", 1 << 20),
        ("0 KB", None),
        ("1 furlong", None),
        ("-4", None),
        ("²", None),
        ("", None),
        (0, None),
        (None, None),
        (2.5, None),
    ],
)
def test_sizes_are_whole_positive_numbers_or_unknown(found: object, expected: int | None) -> None:
    assert parse_positive_int(found) == expected


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import cputrain.machine.portable, cputrain.machine.accelerators\n"
        "import cputrain.machine.opencl_drivers\n"
        "heavy = {'psutil', 'cpuinfo', 'subprocess', 'platform', 'dataclasses', 'typing', 're',\n"
        "         'inspect', 'argparse', 'pathlib', 'torch'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    command = [sys.executable, "-S", "-E", "-c", code]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, check=True)
    assert ran.stdout.strip() == "[]"
