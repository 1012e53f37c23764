"""Files of a root: what is there is read, what is not is None."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cputrain.machine.source import RootSource, number, text


def test_a_sysroot_is_read_at_the_machines_own_paths(tmp_path: Path) -> None:
    """Absolute paths, as the machine itself would write them."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text(" 42 \n\0")
    source = RootSource(str(tmp_path))
    assert not source.live
    assert source.raw("/proc/stat") == b" 42 \n\0"
    assert source.raw("/proc/stat", 3) == b" 42"
    assert text(source, "/proc/stat") == "42"
    assert number(source, "/proc/stat") == 42
    assert source.names("/proc") == ("stat",)


def test_what_is_absent_is_none_and_never_an_exception(tmp_path: Path) -> None:
    """A file, a folder read as a file, a file listed as a folder."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    source = RootSource(str(tmp_path))
    assert source.raw("/nowhere") is None
    assert source.raw("/folder") is None
    assert source.raw("/file/below") is None
    assert source.names("/nowhere") == ()
    assert source.names("/file") == ()
    assert source.link("/file") is None
    assert text(source, "/nowhere") is None
    assert number(source, "/file") is None


@pytest.mark.parametrize("content", [b"x", b"1.5", b"\xff\xfe", b"1 2", b"max", "²".encode()])
def test_what_is_no_number_is_none(tmp_path: Path, content: bytes) -> None:
    """Whatever else a file holds."""
    (tmp_path / "file").write_bytes(content)
    assert number(RootSource(str(tmp_path)), "/file") is None


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_is_told_as_it_is_written(tmp_path: Path) -> None:
    """Not resolved: the target may lie outside the sysroot."""
    (tmp_path / "link").symlink_to("../../devices/pci0000:00")
    assert RootSource(str(tmp_path)).link("/link") == "../../devices/pci0000:00"


def test_a_sysroot_has_nothing_of_the_process_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment and its C library are those of another machine, and unknown."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    source = RootSource(str(tmp_path))
    assert dict(source.environment()) == {}
    assert source.libc() is None


def test_the_live_root_has_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says that it is live, so that system calls may be asked."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    source = RootSource()
    assert source.live
    assert source.environment()["SLURM_CPUS_PER_TASK"] == "3"
