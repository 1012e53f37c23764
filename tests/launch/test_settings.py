"""Who has the last word on a setting, and what the user's environment has said already."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launch.programs import launch, planned, script, verb


def threads(folder: Path, *words: str, **options: object) -> tuple[int, str]:
    found = planned(folder, *words, **options)["threads"]
    return found["value"], found["reason"]


def test_each_place_overrules_the_next(tmp_path: Path) -> None:
    work = tmp_path / "project" / "sub"
    work.mkdir(parents=True)
    config = script(tmp_path, "threads = 1", "home/config/cputrain/config.toml")
    value, reason = threads(tmp_path, where=work)
    assert value == 1
    assert str(config) in reason
    pyproject = script(tmp_path, "[tool.cputrain]\nthreads = 2", "project/pyproject.toml")
    value, reason = threads(tmp_path, where=work)
    assert value == 2
    assert str(pyproject) in reason
    own = script(tmp_path, "threads = 1", "project/cputrain.toml")
    value, reason = threads(tmp_path, where=work)
    assert value == 1
    assert str(own) in reason
    value, reason = threads(tmp_path, where=work, CPUTRAIN_THREADS="2")
    assert value == 2
    assert "CPUTRAIN_THREADS" in reason
    value, reason = threads(tmp_path, "--threads", "1", where=work, CPUTRAIN_THREADS="2")
    assert value == 1
    assert "--threads" in reason


def test_auto_takes_a_word_back(tmp_path: Path) -> None:
    script(tmp_path, "threads = 1", "cputrain.toml")
    assert threads(tmp_path)[0] == 1
    found = planned(tmp_path, "--threads=auto")["threads"]
    assert found["origin"] == "rule"


@pytest.mark.parametrize(
    "text",
    [
        "[tool.cputrain]\nthreads = 1",
        "[tool]\ncputrain = {threads = 1}",
        "[tool.'cputrain']\nthreads = '1'",
        "tool.cputrain.threads = 1",
        "[ tool . cputrain ]\nthreads = 1",
    ],
)
def test_every_way_to_write_a_table_is_read(tmp_path: Path, text: str) -> None:
    script(tmp_path, text, "pyproject.toml")
    assert threads(tmp_path)[0] == 1


def test_the_nearest_project_hides_those_above(tmp_path: Path) -> None:
    work = tmp_path / "a" / "b"
    work.mkdir(parents=True)
    script(tmp_path, "[tool.cputrain]\nthreads = 1", "pyproject.toml")
    script(tmp_path, "[project]\nname = 'cputrain-user'", "a/pyproject.toml")
    assert planned(tmp_path, where=work)["threads"]["origin"] == "rule"


def test_files_write_values_as_toml_does(tmp_path: Path) -> None:
    script(
        tmp_path,
        "flush-denormals = false\nhuge_pages = 'off'\nplacement = '0'\nfused_optimizer = true\n",
        "cputrain.toml",
    )
    found = planned(tmp_path)
    assert found["flush_denormals"]["value"] is False
    assert found["huge_pages"]["value"] is False
    assert found["placement"]["value"] == [0]
    assert found["fused_optimizer"]["value"] is True


def test_what_the_user_has_set_is_kept_and_said(tmp_path: Path) -> None:
    cases = {
        "OMP_NUM_THREADS": ("1", "threads", 1),
        "MKL_NUM_THREADS": ("1", "threads", 1),
        "LD_PRELOAD": ("/usr/lib/libtcmalloc.so.4", "allocator", "default"),
        "MALLOC_TRIM_THRESHOLD_": ("1000000", "allocator", "default"),
        "MALLOC_MMAP_MAX_": ("0", "allocator", "default"),
        "GLIBC_TUNABLES": ("glibc.malloc.hugetlb=0", "huge_pages", False),
        "KMP_BLOCKTIME": ("1", "openmp", None),
    }
    for name, (value, policy, decided) in cases.items():
        done = verb(tmp_path, "plan", "--json", **{name: value})
        found = {entry["policy"]: entry for entry in json.loads(done.stdout)["decisions"]}
        assert found[policy]["value"] == decided, name
        assert name in found[policy]["reason"]
        assert found[policy]["origin"] == "user"
        assert all(name not in entry["environment"] for entry in found.values())


def test_variables_keep_their_values_in_the_script(tmp_path: Path) -> None:
    script(
        tmp_path, "import os; print(*(os.environ.get(n) for n in ('MALLOC_TOP_PAD_', 'A', 'B')))"
    )
    changes = {"MALLOC_TOP_PAD_": "4096", "A": " x ", "B": "\u00fc\n"}
    assert launch(tmp_path, "x.py", **changes).stdout == "4096  x  \u00fc\n\n"
    script(tmp_path, "import os; print(os.environ['GLIBC_TUNABLES'])")
    kept = "glibc.malloc.tcache_count=3"
    assert launch(tmp_path, "x.py", GLIBC_TUNABLES=kept).stdout.startswith(kept)


def test_a_flag_overrules_every_variable_that_torch_asks(tmp_path: Path) -> None:
    found = planned(tmp_path, "--threads", "2", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")["threads"]
    assert found["value"] == 2
    assert found["environment"] == {}


def test_nonsense_in_openmps_variable_is_openmps_to_judge(tmp_path: Path) -> None:
    for text in ("", "0", "-1", "abc", "\u00b2", "9" * 5000, "1.5", " "):
        assert planned(tmp_path, OMP_NUM_THREADS=text)["threads"]["origin"] == "rule"
    assert threads(tmp_path, OMP_NUM_THREADS="1,2")[0] == 1


def test_a_placement_bounds_the_threads(tmp_path: Path) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    found = planned(tmp_path, "--placement", cpu)
    assert found["placement"]["value"] == [int(cpu)]
    assert found["threads"]["value"] == 1


def test_an_outer_launch_is_not_taken_for_the_users_word(tmp_path: Path) -> None:
    alone = planned(tmp_path)
    script(tmp_path, "import os; print(os.environ['CPUTRAIN_PLAN'])")
    carried = launch(tmp_path, "x.py").stdout.strip()
    inside = planned(tmp_path, CPUTRAIN_PLAN=carried, **json.loads(carried)["environment"])
    assert inside == alone


def test_a_plan_for_another_machine_takes_nothing_from_this_environment(tmp_path: Path) -> None:
    (tmp_path / "m/proc").mkdir(parents=True)
    (tmp_path / "m/proc/cpuinfo").write_text("processor : 0\nprocessor : 1\nprocessor : 2\n")
    value, _ = threads(tmp_path, "--sysroot", "m", OMP_NUM_THREADS="1", LOCAL_RANK="0")
    assert value == 3
