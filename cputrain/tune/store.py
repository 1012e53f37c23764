"""Plans that were found by measuring, kept for the next launch of the same script.

A file for each script in the user's cache. It is JSON, and what it says is checked as if the user
had typed it; one that is stale or broken is as good as none.
"""

from __future__ import annotations

import os
import sys
from zlib import crc32

from cputrain.machine.cache import cache_folder, read_json, write_json
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 1


class Tuned(Record):
    """What tune found for a script."""

    settings: dict[str, str]
    """Knobs, as a user would type them; none where the rules are best."""

    reason: str
    """What was measured, for whoever asks why."""

    when: str
    """The day."""

    arguments: tuple[str, ...]
    """The script's, when it was measured."""

    evidence: dict[str, Any]
    """Everything that was found."""


def path_of(script: str) -> str:
    """The file of a script."""
    return os.path.join(cache_folder(), "tuned", f"{name_of(script)}.json")


def name_of(script: str) -> str:
    """What a script is called in the cache: its own name, and what tells it from its like."""
    path = os.path.realpath(script)
    return f"{os.path.basename(path)}-{crc32(os.fsencode(path)):08x}"


def circumstances(script: str, machine: str, cpus: tuple[int, ...]) -> dict[str, Any]:
    """What must be unchanged for a plan to hold."""
    import hashlib

    with open(script, "rb") as file:
        content = hashlib.sha256(file.read()).hexdigest()
    return {
        "script": content,
        "machine": machine,
        "cpus": list(cpus),
        "torch": torch_version(),
        "python": ".".join(map(str, sys.version_info[:2])),
    }


def torch_version() -> str:
    """Of the torch that a script would import, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def save(script: str, known: dict[str, Any], tuned: Tuned) -> str:
    """Keep it; the file's path. Raises OSError."""
    path = path_of(script)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "cputrain tuned plan",
        "path": os.path.realpath(script),
        "circumstances": known,
        **tuned.as_json(),
    }
    write_json(path, document)
    return path


def load(script: str, machine: str, cpus: tuple[int, ...]) -> tuple[Tuned | None, str]:
    """What was found for a script, if all is as it was; else why it is not used, if it is there."""
    path = path_of(script)
    document, why_not = read_json(path, "the tuned plan")
    if document is None:
        return None, why_not
    try:
        if document["path"] != os.path.realpath(script):  # a name that is as another's
            return None, ""
        if document["schema_version"] != SCHEMA_VERSION:
            return None, f"the tuned plan {path} is of another version of cputrain"
        settings = document["settings"]
        if not settings:  # the rules were best then, and are what a launch goes by anyhow
            return None, ""
        before, now = document["circumstances"], circumstances(script, machine, cpus)
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            return None, (
                f"what was tuned is not used, as {_listed(changed)} changed since: "
                f"cputrain tune {script}"
            )
        if not all(isinstance(one, str) for pair in settings.items() for one in pair):
            raise TypeError("settings that are no text")
        return Tuned(
            settings=settings,
            reason=str(document["reason"]),
            when=str(document["when"]),
            arguments=tuple(map(str, document["arguments"])),
            evidence=document["evidence"],
        ), ""
    except (KeyError, TypeError, AttributeError) as error:
        return None, f"the tuned plan {path} is broken ({error})"
    except OSError:  # the script cannot be read: whoever starts it will say so
        return None, ""


def _listed(names: list[str]) -> str:
    words = ["the CPUs" if name == "cpus" else f"the {name}" for name in names]
    return " and ".join(words)
