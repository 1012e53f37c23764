"""Bad input ends with one line: the parameter, the rule, what was found, what to do; and code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.programs import complaint, launch, script, verb

WRONG = [
    ("--threads", "0"),
    ("--threads", "10000"),
    ("--threads", "abc"),
    ("--threads", ""),
    ("--threads", "1.5"),
    ("--threads", "-1"),
    ("--threads", " 1"),
    ("--threads", "\u0662"),
    ("--threads", "9" * 5000),
    ("--interop-threads", "0"),
    ("--placement", "99"),
    ("--placement", "0-"),
    ("--placement", ""),
    ("--placement", "1-0"),
    ("--placement", "0-99999999999"),
    ("--placement", "0:0"),
    ("--placement", "a\nb"),
    ("--loader-cores", "0"),
    ("--loader-cores", "64"),
    ("--loader-cores", "x"),
    ("--start-method", "foo"),
    ("--memory-policy", ""),
    ("--flush-denormals", "yes"),
    ("--allocator", "nosuchmalloc"),
    ("--allocator", "/no/such/lib.so"),
    ("--short-waits", "sometimes"),
]


@pytest.mark.parametrize(("flag", "value"), WRONG)
def test_a_wrong_value_is_named_with_its_rule(tmp_path: Path, flag: str, value: str) -> None:
    script(tmp_path, "print(1)")
    line = complaint(launch(tmp_path, flag, value, "x.py"))
    assert flag in line
    assert "must be" in line
    if value and len(value) < 50:
        assert repr(value)[1:-1] in line


def test_the_same_rules_hold_for_variables_and_files(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    line = complaint(launch(tmp_path, "x.py", CPUTRAIN_THREADS="zero"))
    assert "CPUTRAIN_THREADS must be" in line
    line = complaint(launch(tmp_path, "x.py", CPUTRAIN_START_METHOD="foo"))
    assert "CPUTRAIN_START_METHOD must be" in line
    for text in (
        "threads = 1.5",
        "threads = true",
        "threads = [1]",
        "[threads]\nx = 1",
        "placement = 2024-01-01",
        "start_method = 'foo'",
        "allocator = '/a\\u0000b'",
        "allocator = ''",
    ):
        script(tmp_path, text, "cputrain.toml")
        assert " must be " in complaint(launch(tmp_path, "x.py"))


def test_files_that_say_something_else_are_named(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    path = script(tmp_path, "treads = 2", "cputrain.toml")
    line = complaint(launch(tmp_path, "x.py"))
    assert str(path) in line
    assert "Did you mean threads?" in line
    for text in ("threads = ", "threads 2", "[", "a = " + "[" * 5000, "x = '\x00'"):
        script(tmp_path, text, "cputrain.toml")
        assert "must be a readable TOML file" in complaint(launch(tmp_path, "x.py"))
    path.write_bytes(b"\xff\xfe\x00")
    assert "must be a readable TOML file" in complaint(launch(tmp_path, "x.py"))
    path.unlink()
    for text in ("[tool]\ncputrain = 5", "[[tool.cputrain]]\nthreads = 1", "[tool.cputrain.a]"):
        script(tmp_path, text, "pyproject.toml")
        assert "pyproject.toml" in complaint(launch(tmp_path, "x.py"))
    script(tmp_path, "tool = 'cputrain'", "pyproject.toml")
    assert launch(tmp_path, "x.py").returncode == 0


def test_options_after_the_script_are_never_ours(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv[1:])")
    for words in (["--threads", "0"], ["--help"], ["-q", "--nonsense"], ["--", "--plan"]):
        done = launch(tmp_path, "x.py", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{words}\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "garbage \x00",
        "",
        "[1, 2]",
        "5",
        '{"schema_version": 1, "bandwidth": 3}',
        '{"schema_version": 9, "bandwidth": {}}',
        "[" * 100_000,
    ],
)
def test_info_does_without_a_damaged_cache(tmp_path: Path, text: str) -> None:
    cache = script(tmp_path, text, "home/cache/cputrain/bandwidth.json")
    done = verb(tmp_path, "info", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["machine"]["memory"]["bandwidth"] is None
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert str(cache) in done.stderr


def test_info_does_without_an_entry_or_folder_it_cannot_use(tmp_path: Path) -> None:
    key = _key(tmp_path)
    good = {"bandwidth_bytes_per_s": 1, "one_core_bytes_per_s": 1, "threads": 1}
    for entry in (7, {}, {**good, "x": 1}, {**good, "buffer_bytes": "a", "spread": 0, "how": ""}):
        text = json.dumps({"schema_version": 1, "bandwidth": {key: entry}})
        script(tmp_path, text, "home/cache/cputrain/bandwidth.json")
        done = verb(tmp_path, "info")
        assert done.returncode == 0
        assert len(done.stderr.splitlines()) == 1, done.stderr
    script(tmp_path, "a file where a folder should be", "other/cputrain")
    done = verb(tmp_path, "info", "--json", XDG_CACHE_HOME=str(tmp_path / "other"))
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1, done.stderr


def _key(folder: Path) -> str:
    document = json.loads(verb(folder, "info", "--json").stdout)
    plan = json.loads(verb(folder, "plan", "--json").stdout)
    return f"{plan['machine']}, {document['budget']['physical_cores']} usable cores"


def test_an_empty_word_is_no_traceback(tmp_path: Path) -> None:
    for words in (["launch", ""], [""], ["plan", "--json=1"], ["info", "--sysroot", ""], ["-"]):
        assert "Traceback" not in verb(tmp_path, *words).stderr
