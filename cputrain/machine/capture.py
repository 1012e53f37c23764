"""Captures: the system files of a machine as one JSON document, without personal data.

`RecordingSource` records what it reads from another source; `CaptureSource` replays the recording.
Captures are attached to bug reports and tests, so `redaction` removes host names, serial numbers,
user names and everything that no reader of this package uses.

Files of single CPUs are folded: each file name maps each distinct text to the CPUs that have it.
"""

from __future__ import annotations

import base64
import json

from cputrain.errors import SourceError, text_kind
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
    """Source that reads through another source and records everything read."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.live = inner.live
        self._files: dict[str, bytes] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._links: dict[str, str] = {}

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Read a file from the inner source and record its longest content."""
        content = self._inner.raw(path, limit)
        if content is not None and len(content) >= len(self._files.get(path, b"")):
            self._files[path] = content
        return content

    def names(self, path: str) -> tuple[str, ...]:
        """List a folder of the inner source and record its entries."""
        entries = self._inner.names(path)
        if entries:
            self._folders[path] = entries
        return entries

    def link(self, path: str) -> str | None:
        """Read a symbolic link of the inner source and record its target."""
        target = self._inner.link(path)
        if target is not None:
            self._links[path] = target
        return target

    def environment(self) -> Mapping[str, str]:
        """Return the inner source's environment variables."""
        return self._inner.environment()

    def libc(self) -> str | None:
        """Return the inner source's C library, such as "glibc 2.36"."""
        return self._inner.libc()

    def document(self) -> dict[str, Any]:
        """Return the recording as a JSON document, without names of persons and hosts."""
        self._record_affinity()
        redaction = Redaction(self._files)
        files = {
            redaction.path(path): redaction.file(path, raw) for path, raw in self._files.items()
        }
        texts, binary = {}, {}
        for path, raw in files.items():
            if raw is None:
                continue
            try:
                texts[path] = raw.decode("utf-8")
            except UnicodeDecodeError:
                binary[path] = base64.b64encode(raw).decode("ascii")
        folders = {
            redaction.path(path): names
            for path, entries in sorted(self._folders.items())
            if (names := redaction.names(path, entries)) and not path.startswith(CPU_FOLDER)
        }
        cpus_with_files = {path.split("/")[5] for path in texts if _is_cpu_file(path)}
        cpus_without_files = [
            name
            for name in self._folders.get(CPU_FOLDER, ())
            if name[3:].isdecimal() and name not in cpus_with_files
        ]
        if cpus_without_files:  # second hardware threads whose files were never read
            folders[CPU_FOLDER] = cpus_without_files
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "libc": self.libc(),
            "environment": redaction.environment(self.environment()),
            "per_cpu": _fold_cpu_files(texts),
            "files": {path: texts[path] for path in sorted(texts) if not _is_cpu_file(path)},
            "binary": dict(sorted(binary.items())),
            "folders": folders,
            "links": {
                redaction.path(path): redacted
                for path, target in sorted(self._links.items())
                if (redacted := redaction.link(path, target)) is not None
            },
        }

    def _record_affinity(self) -> None:
        """Record the file with the affinity mask: readers of a live source use a system call."""
        if self.live:
            self.raw("/proc/self/status")


class CaptureSource:
    """Source that replays a capture document."""

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
            self._links = {str(path): str(target) for path, target in document["links"].items()}
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
                "must be a capture written by cputrain info --capture",
                found=f"an invalid field ({type(error).__name__}: {error})",
                do="Capture the machine again.",
            ) from None

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Return the first `limit` bytes of a captured file; None if it is absent."""
        content = self._files.get(path)
        return None if content is None else content[:limit]

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted captured entries of a folder; empty if it is absent."""
        return tuple(sorted(self._folders.get(path.rstrip("/") or "/", ())))

    def link(self, path: str) -> str | None:
        """Return the captured target of a symbolic link; None if it is absent."""
        return self._links.get(path)

    def environment(self) -> Mapping[str, str]:
        """Return the captured environment variables."""
        return self._environment

    def libc(self) -> str | None:
        """Return the captured C library, such as "glibc 2.36"; None if unknown."""
        return self._libc


def read_capture(path: str) -> CaptureSource:
    """Read a capture file; raise SourceError if it is unreadable or invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        document = json.loads(text)
    except (OSError, ValueError) as error:
        is_text = isinstance(error, json.JSONDecodeError)
        raise SourceError(
            path,
            "must be a readable capture",
            found=getattr(error, "strerror", None) or (text_kind(text) if is_text else "no text"),
            do="Make one with: cputrain info --capture machine.json",
        ) from None
    return CaptureSource(document, path)


def _check(document: object, where: str) -> None:
    kind = document.get("kind") if isinstance(document, dict) else type(document).__name__
    if not isinstance(document, dict) or kind != KIND:
        raise SourceError(
            where,
            "must be a capture of a machine",
            found=f"kind {kind!r}",
            do="Make one with: cputrain info --capture machine.json",
        )
    if document.get("schema_version") != SCHEMA_VERSION:
        raise SourceError(
            where,
            f"must have schema_version {SCHEMA_VERSION}",
            found=repr(document.get("schema_version")),
            do="Capture the machine again with this version of cputrain.",
        )


def _is_cpu_file(path: str) -> bool:
    rest = path.removeprefix(f"{CPU_FOLDER}/cpu")
    return rest != path and rest.partition("/")[0].isdecimal()


def _fold_cpu_files(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Fold the files of single CPUs into file name → text → list of CPUs."""
    grouped: dict[str, dict[str, list[int]]] = {}
    for path, text in texts.items():
        if _is_cpu_file(path):
            cpu, _, name = path.removeprefix(f"{CPU_FOLDER}/cpu").partition("/")
            grouped.setdefault(name, {}).setdefault(text.strip(), []).append(int(cpu))
    return {
        name: {text: format_list(cpus) for text, cpus in sorted(by_text.items())}
        for name, by_text in sorted(grouped.items())
    }


def _folders(paths: tuple[str, ...], recorded: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the entries of every folder: recorded entries, and those implied by `paths`."""
    folders: dict[str, set[str]] = {path: set(names) for path, names in recorded.items()}
    for path in paths:
        while path not in ("", "/"):
            parent, _, name = path.rpartition("/")
            folders.setdefault(parent or "/", set()).add(name)
            path = parent
    return folders
