"""What cannot be had says why, in a moment, and harms nobody."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from cputrain.backends import BackendFinding, choose_backend, probing
from cputrain.backends.backend import Available, Host, major_minor
from cputrain.backends.default import Default
from cputrain.backends.findings import collect_findings
from cputrain.backends.ipex import Ipex
from cputrain.backends.probing import describe_host, probe_all
from cputrain.backends.registry import BUILT_IN, backend_names
from cputrain.backends.zendnn import ZenDNN
from cputrain.machine import read_machine

AVX512 = frozenset({"avx2", "avx512f"})


def host(system="Linux", isa=AVX512, of=torch.__version__):
    return Host(system=system, isa=isa, torch=of)


def probed(name, at=None):
    (found,) = probe_all(at or host(), name)
    return found


REASONS = {
    "not-imported": "it cannot be imported: ImportError: undefined symbol: _ZN5torch",
    "not-here": "it is not for Linux",
    "probe-fails": "its probe fails: ValueError: of its own",
    "crashes": "its probe was killed by SIGSEGV",
}


@pytest.mark.parametrize("name", REASONS)
def test_each_fault_has_its_own_reason(installed, name):
    installed(name)
    found = probed(name)
    assert found.reason == REASONS[name]
    assert found.version == ""
    assert found.title == "planted"


def test_one_that_hangs_is_given_up(installed, monkeypatch):
    monkeypatch.setattr(probing, "PROBE_TIMEOUT_S", 6.0)
    installed("hangs", "prints")
    found = {one.name: one for one in probe_all(host())}
    assert found["hangs"].reason == "it did not answer within 6 s"
    assert (found["prints"].version, found["prints"].notes) == ("1.0", "talks")


def test_an_entry_point_that_leads_nowhere_is_told(installed):
    installed(points=[("lost", "no_such_module:Backend")])
    assert backend_names() == [*BUILT_IN, "lost"]
    assert probed("lost").reason == (
        "it cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_what_is_not_installed_says_how_to_get_it(installed):
    found = probed("zendnn")
    assert (found.reason, found.do) == (
        "it is not installed", 'pip install "cputrain[zendnn]"',
    )  # fmt: skip


def test_a_package_for_another_torch_is_told(installed):
    installed(package="zentorch", version="2.12.0.1")
    found = probed("zendnn")
    assert found.reason == f"zentorch 2.12.0.1 is for torch 2.12; torch is {torch.__version__}"
    assert found.do == f'pip install "zentorch=={major_minor(torch.__version__)}.*"'


def test_both_packages_of_zentorch_are_too_many(installed):
    installed(package="zentorch", version="2.13.0.2")
    installed(package="zentorch-weekly", version="2.13.0.3")
    assert "both installed" in probed("zendnn").reason


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (host(isa=frozenset({"avx2"})), "it needs AVX-512, which this CPU lacks"),
        (host(system="Darwin"), "it needs Linux; this is Darwin"),
        (host(of=""), "torch is not installed"),
    ],
)
def test_a_machine_that_it_is_not_for_is_told(installed, at, says):
    installed(package="zentorch", version="2.13.0.2")
    assert says in probed("zendnn", at).reason


def test_a_package_without_its_module_is_told(installed):
    version = major_minor(torch.__version__)
    installed(package="zentorch", version=f"{version}.0.2")
    assert "there is no module zentorch" in probed("zendnn").reason


def test_a_library_that_does_not_fit_is_told(installed):
    version = major_minor(torch.__version__)
    folder = installed(package="zentorch", version=f"{version}.0.2", module="zentorch")
    (folder / "zentorch" / "libzentorch.so").write_bytes(b"no library")
    found = probed("zendnn")
    assert "its library is incompatible with this torch: libzentorch.so" in found.reason
    assert "reinstall" in found.do


def test_an_import_that_raises_is_told(installed):
    version = major_minor(torch.__version__)
    installed(package="zentorch", version=f"{version}.0.2", module="zentorch")
    assert probed("zendnn").reason == "it cannot be imported: ImportError: a broken build"


def test_the_retired_one_tells_what_it_needs(installed):
    assert (
        probed("ipex").reason == f"its last release is for torch 2.8; torch is {torch.__version__}"
    )
    assert probed("ipex", host(of="2.8.0+cpu")).do == 'pip install "cputrain[ipex]"'
    installed(package="intel-extension-for-pytorch", version="2.8.0")
    assert "is for torch 2.8" in probed("ipex").reason


def test_the_default_tells_what_it_has():
    found = Default().probe(host(isa=frozenset({"avx512f", "avx2", "amx_bf16"})))
    assert isinstance(found, Available)
    assert found.notes == "AVX-512, bf16 by AMX"
    assert "not installed" in Default().probe(host(of="")).reason


def test_only_what_gets_fixes_is_not_legacy():
    assert Ipex().legacy
    assert not ZenDNN().legacy


def test_the_machine_is_asked_about_itself():
    found = describe_host(read_machine(detail=False))
    assert found.torch == torch.__version__
    assert found.isa


def test_all_are_found_and_no_torch_is_loaded(installed):
    installed("remembers")
    code = (
        "import json, sys\n"
        "from cputrain.backends import collect_findings\n"
        "from cputrain.machine import read_machine\n"
        "found = collect_findings(read_machine(detail=False))\n"
        "print(json.dumps([[one.probed.name for one in found], 'torch' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[*BUILT_IN, "remembers"], False]
    assert all(one.verdict is None for one in collect_findings(read_machine(detail=False)))


def test_what_pythons_start_prints_is_no_answer(installed):
    folder = installed("prints")
    (folder / "sitecustomize.py").write_text("print('{}'); print('good morning')\n")
    assert probed("prints").notes == "talks"
    assert probed("zendnn").reason == "it is not installed"


def test_nothing_is_advised_that_does_not_help():
    for backend in (ZenDNN(), Ipex()):
        assert backend.probe(host(system="Darwin", of="2.8.0")).do == ""
        assert backend.probe(host(isa=frozenset())).do == ""


def test_without_torch_nothing_is_chosen():
    (found,) = [BackendFinding(probed=probed("default", host(of="")))]
    assert found.probed.reason == "torch is not installed"
    assert choose_backend([found], training=True) is None
