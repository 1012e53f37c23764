"""A machine in one JSON document: the files that were read, without what names a person.

`RecordingSource` notes what another source answers; `CaptureSource` answers from such notes. A
capture goes into bug reports and into tests, so host names, serial numbers, user names and
everything that no question asks about are left out before it is written (`redaction`).

Files of single CPUs are folded: for each file name, which text which CPUs have.
"""

from __future__ import annotations

import base64
import json

from cputrain.errors import SourceError
from cputrain.machine.cpulist import format_list, parse_list
from cputrain.machine.redaction import Redaction
from cputrain.machine.topology import CPU_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine.source import Source

SCHEMA_VERSION = 1
KIND = "cputrain capture"


class RecordingSource:
    """Another source, with notes of everything it answered."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.live = inner.live
        self._files: dict[str, bytes] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._links: dict[str, str] = {}

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        found = self._inner.raw(path, limit)
        if found is not None and len(found) >= len(self._files.get(path, b"")):
            self._files[path] = found
        return found

    def names(self, path: str) -> tuple[str, ...]:
        found = self._inner.names(path)
        if found:
            self._folders[path] = found
        return found

    def link(self, path: str) -> str | None:
        found = self._inner.link(path)
        if found is not None:
            self._links[path] = found
        return found

    def environment(self) -> Mapping[str, str]:
        return self._inner.environment()

    def libc(self) -> str | None:
        return self._inner.libc()

    def document(self) -> dict[str, Any]:
        """The notes as a JSON document, with nothing in it that names a person or a host."""
        self._note_affinity()
        clean = Redaction(self._files)
        files = {clean.path(path): clean.file(path, raw) for path, raw in self._files.items()}
        texts, binary = {}, {}
        for path, raw in files.items():
            if raw is None:
                continue
            try:
                texts[path] = raw.decode("utf-8")
            except UnicodeDecodeError:
                binary[path] = base64.b64encode(raw).decode("ascii")
        folders = {
            clean.path(path): names
            for path, found in sorted(self._folders.items())
            if (names := clean.names(path, found)) and not path.startswith(CPU_FOLDER)
        }
        told = {path.split("/")[5] for path in texts if _of_cpu(path)}
        silent = [
            name
            for name in self._folders.get(CPU_FOLDER, ())
            if name[3:].isdecimal() and name not in told
        ]
        if silent:  # second threads whose own files were never needed still count as CPUs
            folders[CPU_FOLDER] = silent
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "libc": self.libc(),
            "environment": clean.environment(self.environment()),
            "per_cpu": _folded(texts),
            "files": {path: texts[path] for path in sorted(texts) if not _of_cpu(path)},
            "binary": dict(sorted(binary.items())),
            "folders": folders,
            "links": {
                clean.path(path): kept
                for path, found in sorted(self._links.items())
                if (kept := clean.link(path, found)) is not None
            },
        }

    def _note_affinity(self) -> None:
        """The mask of a live process comes from a system call; noted as the file that has it."""
        if self.live:
            self.raw("/proc/self/status")


class CaptureSource:
    """A machine that was captured."""

    live = False

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        _check(document, where)
        try:
            self._files = {path: text.encode() for path, text in document["files"].items()}
            self._files.update(
                (path, base64.b64decode(text, validate=True))
                for path, text in document["binary"].items()
            )
            for name, by_text in document["per_cpu"].items():
                for text, cpus in by_text.items():
                    for cpu in parse_list(cpus):
                        self._files[f"{CPU_FOLDER}/cpu{cpu}/{name}"] = text.encode()
            self._links = {str(path): str(found) for path, found in document["links"].items()}
            self._environment = {
                str(name): str(value) for name, value in document["environment"].items()
            }
            self._libc = document.get("libc")
            self._folders = _folders(
                (*self._files, *self._links),
                {path: set(names) for path, names in document["folders"].items()},
            )
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise SourceError(
                where,
                "must be a capture that cputrain info --capture wrote",
                found=f"a fault in it ({type(error).__name__}: {error})",
                do="Capture the machine again.",
            ) from None

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        found = self._files.get(path)
        return None if found is None else found[:limit]

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._folders.get(path.rstrip("/") or "/", ())))

    def link(self, path: str) -> str | None:
        return self._links.get(path)

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def libc(self) -> str | None:
        return self._libc


def read_capture(path: str) -> CaptureSource:
    """The captured machine in a file; an error that says what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise SourceError(
            path,
            "must be a capture that can be read",
            found=getattr(error, "strerror", None) or str(error),
            do="Make one with: cputrain info --capture machine.json",
        ) from None
    return CaptureSource(document, path)


def _check(document: object, where: str) -> None:
    found = document.get("kind") if isinstance(document, dict) else type(document).__name__
    if not isinstance(document, dict) or found != KIND:
        raise SourceError(
            where,
            "must be a capture of a machine",
            found=f"kind {found!r}",
            do="Make one with: cputrain info --capture machine.json",
        )
    if document.get("schema_version") != SCHEMA_VERSION:
        raise SourceError(
            where,
            f"must have schema_version {SCHEMA_VERSION}",
            found=repr(document.get("schema_version")),
            do="Capture the machine again with this version of cputrain.",
        )


def _of_cpu(path: str) -> bool:
    rest = path.removeprefix(f"{CPU_FOLDER}/cpu")
    return rest != path and rest.partition("/")[0].isdecimal()


def _folded(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Files of single CPUs as file name → text → list of CPUs."""
    grouped: dict[str, dict[str, list[int]]] = {}
    for path, text in texts.items():
        if _of_cpu(path):
            cpu, _, name = path.removeprefix(f"{CPU_FOLDER}/cpu").partition("/")
            grouped.setdefault(name, {}).setdefault(text.strip(), []).append(int(cpu))
    return {
        name: {text: format_list(cpus) for text, cpus in sorted(by_text.items())}
        for name, by_text in sorted(grouped.items())
    }


def _folders(paths: tuple[str, ...], noted: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Every folder's names: those noted, and those that the files imply."""
    folders: dict[str, set[str]] = {path: set(names) for path, names in noted.items()}
    for path in paths:
        while path not in ("", "/"):
            parent, _, name = path.rpartition("/")
            folders.setdefault(parent or "/", set()).add(name)
            path = parent
    return folders
