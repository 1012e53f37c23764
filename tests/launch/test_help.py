"""Help texts, completions and the man page, all made from the tables of options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cputrain.launch.cli import VERBS
from cputrain.launch.command import Command
from cputrain.launch.commands import every_command
from cputrain.launch.commands.bench import CASE_BENCHMARKS
from cputrain.launch.man_page import page
from cputrain.launch.options import Parsed, split_quoted
from tests.launch.programs import script, verb

COMMANDS = [*every_command(), *CASE_BENCHMARKS.values()]

each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@each_command
@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_help_fits_the_terminal(command: Command, width: int) -> None:
    for full in (False, True):
        lines = command.help(full=full, width=width).splitlines()
        too_long = [line for line in lines if len(line) > min(width, 100)]
        # a name or an example is never divided, so that it can be copied
        assert all(line.startswith(("  -", "  cputrain ")) for line in too_long), too_long
        assert not [line for line in lines if line.endswith(" ")]


@each_command
def test_all_options_are_in_the_full_help_and_the_most_used_in_the_short_one(
    command: Command,
) -> None:
    short, full = command.help(), command.help(full=True)
    for option in command.options:
        assert f"  {', '.join(option.names)}" in full
        assert (f"  {', '.join(option.names)}" in short) is not option.is_advanced
    assert ("--help-all" in short) is command.has_advanced


def test_the_short_help_of_launch_fits_a_screen_or_two() -> None:
    launch = COMMANDS[0]
    assert launch.name == "launch"
    assert len(launch.help(width=100).splitlines()) < 75
    assert len(launch.help(full=True, width=100).splitlines()) > 90


@each_command
def test_examples_are_accepted(command: Command) -> None:
    """Their options are options of the command."""
    for example in command.examples:
        words = example.line.split()
        if words[:2] == ["cputrain", command.name.split()[0]]:
            line = {"line": " ".join(words[1 + len(command.name.split()) :]).partition(" >")[0]}
            parsed = command.read(split_quoted(Parsed(values=line, rest=()), "line"))
            assert parsed is not None


def test_help_and_version_are_commands_too(tmp_path: Path) -> None:
    for words in (["help"], ["--help"], ["-h"], []):
        shown = verb(tmp_path, *words).stdout
        assert all(f"  {name} " in shown for name in VERBS)
    for name in VERBS:
        shown = verb(tmp_path, name, "--help").stdout
        assert verb(tmp_path, "help", name).stdout == shown
        assert verb(tmp_path, "--help", name).stdout == shown
    assert verb(tmp_path, "version").stdout == verb(tmp_path, "--version").stdout
    full = verb(tmp_path, "launch", "--help-all").stdout
    assert "--rdzv-conf" in full
    assert "--rdzv-conf" not in verb(tmp_path, "launch", "--help").stdout


@each_command
def test_the_man_page_explains_every_option(command: Command) -> None:
    text = page().replace("\\-", "-")
    if command.name in VERBS:
        assert f".SH CPUTRAIN {command.name.upper()}\n" in text
        for option in command.options[:-2]:
            assert f"\\fB{option.flag}\\fR" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_man_page_is_set_without_a_warning() -> None:
    done = subprocess.run(
        ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww"],
        input=page(),
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "one rank per NUMA node" in done.stdout


COMPLETED = [
    ("cputrain la", "launch"),
    ("cputrain co", "completions"),
    ("cputrain launch --thr", "--threads"),
    ("cputrain launch --compile o", "on off"),
    ("cputrain launch --compile = of", "off"),
    ("cputrain launch --allocator t", "tuned"),
    ("cputrain launch --nproc-per-node n", "numa"),
    ("cputrain launch tr", "train.py"),
    ("cputrain launch --threads 4 tr", "train.py"),
    ("cputrain launch --threads = 4 tr", "train.py"),
    ("cputrain launch -q tr", "train.py"),
    ("cputrain launch train.py --thr", ""),
    ("cputrain launch no", ""),
    ("cputrain report no", "notes.json"),
    ("cputrain bench lo", "loaders"),
    ("cputrain help di", "diagnose"),
    ("cputrain completions z", "zsh"),
]
"""A line, and what its last word is completed to."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_scripts(tmp_path: Path) -> None:
    for name in ("train.py", "notes.json", "notes.txt"):
        script(tmp_path, "", name)
    (tmp_path / "completions").write_text(verb(tmp_path, "completions", "bash").stdout)
    lines = "\n".join(f"complete_line {line}" for line, _ in COMPLETED)
    program = (
        "set -u\nsource completions\n"
        "complete_line() {\n"
        '    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        "    _cputrain\n"
        '    echo "${COMPREPLY[*]-}"\n}\n' + lines
    )
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    found = dict(zip((line for line, _ in COMPLETED), done.stdout.splitlines(), strict=True))
    assert found == dict(COMPLETED)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_reads_its_completions(tmp_path: Path) -> None:
    path = tmp_path / "_cputrain"
    path.write_text(verb(tmp_path, "completions", "zsh").stdout)
    program = f"autoload -Uz compinit && compinit -u -D && source {path} && print $_comps[cputrain]"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() == "_cputrain"


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands_options_and_values(tmp_path: Path) -> None:
    script(tmp_path, "", "train.py")
    (tmp_path / "completions.fish").write_text(verb(tmp_path, "completions", "fish").stdout)

    def completed(line: str) -> set[str]:
        program = f"source completions.fish; complete -C {line!r}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program], cwd=tmp_path, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return {found.partition("\t")[0] for found in done.stdout.splitlines()}

    assert "launch" in completed("cputrain la")
    assert "--threads" in completed("cputrain launch --thr")
    assert {"on", "off"} <= completed("cputrain launch --compile ")
    assert "train.py" in completed("cputrain launch tr")
