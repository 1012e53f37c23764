"""Cache of tuned plans: one JSON file for each script, read by the next launch of that script.

The settings in a file are checked as if the user had typed them. A stale or broken file is ignored,
and the launch says why.
"""

from __future__ import annotations

import os
import sys
from zlib import crc32

from cputrain.machine.cache import CacheFile, changed_circumstances
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 1

LEARNT = "learn"
"""Source of a plan that `cputrain launch --learn` found."""


class TunedPlan(Record):
    """Winner of a search for a script, as it is stored."""

    settings: dict[str, str]
    """Settings by name, as a user would type them; empty if the rule-based plan won."""

    reason: str
    """Measurement behind the settings, shown as the reason of each decision."""

    when: str
    """Date of the search, as YYYY-MM-DD."""

    arguments: tuple[str, ...]
    """Arguments of the script during the search."""

    evidence: dict[str, Any]
    """The whole SearchResult as JSON, with every trial; or what was learnt, with its "source"."""

    @property
    def where(self) -> str:
        """Command that measured it, and when."""
        is_learnt = self.evidence.get("source") == LEARNT
        command = "cputrain launch --learn" if is_learnt else "cputrain tune"
        return f"{command} on {self.when}"


def plan_file(script: str) -> CacheFile:
    """Return the file that stores a script's tuned plan."""
    return CacheFile("the tuned plan", SCHEMA_VERSION, "tuned", f"{cache_name(script)}.json")


def cache_name(script: str) -> str:
    """Return a script's name in the cache: its file name and a checksum of its real path."""
    path = os.path.realpath(script)
    return f"{os.path.basename(path)}-{crc32(os.fsencode(path)):08x}"


def circumstances(script: str, machine: str, cpus: tuple[int, ...]) -> dict[str, Any]:
    """Return what a tuned plan depends on: it is not used after any of this has changed.

    Args:
        script: Path of the script; its content counts.
        machine: Fingerprint of the machine.
        cpus: CPUs that the process may use.

    Raises:
        OSError: The script cannot be read.
    """
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
    """Return the version of the installed torch without importing it; empty if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def save(script: str, current: dict[str, Any], tuned: TunedPlan) -> str:
    """Store a script's tuned plan and return the path of its file.

    Args:
        script: Path of the script.
        current: What `circumstances` returns for it.
        tuned: The plan.

    Raises:
        OSError: The cache cannot be written.
    """
    file = plan_file(script)
    file.write(
        {
            "kind": "cputrain tuned plan",
            "path": os.path.realpath(script),
            "circumstances": current,
            **tuned.as_json(),
        }
    )
    return file.path


def load(script: str, machine: str, cpus: tuple[int, ...]) -> tuple[TunedPlan | None, str]:
    """Return a script's tuned plan, or None and why the stored plan is not used.

    The reason is empty if no plan is stored, or if the rule-based plan won.

    Args:
        script: Path of the script.
        machine: Fingerprint of the machine.
        cpus: CPUs that the process may use.
    """
    file = plan_file(script)
    document, why_not = file.read()
    if not document:
        return None, why_not
    try:
        if document["path"] != os.path.realpath(script):  # another script with the same checksum
            return None, ""
        settings = document["settings"]
        if not settings:  # the rule-based plan won, and a launch follows the rules by default
            return None, ""
        names = changed_circumstances(
            document["circumstances"], circumstances(script, machine, cpus)
        )
        if names:
            return None, (
                f"the tuned plan is not used, because {_enumerated(names)} changed since it was "
                f"measured; measure again: cputrain tune {script}"
            )
        if not all(isinstance(text, str) for pair in settings.items() for text in pair):
            raise TypeError("a setting that is not a string")
        return TunedPlan(
            settings=settings,
            reason=str(document["reason"]),
            when=str(document["when"]),
            arguments=tuple(map(str, document["arguments"])),
            evidence=dict(document["evidence"]),
        ), ""
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"the tuned plan {file.path} is broken ({error})"
    except OSError:  # an unreadable script: the launch itself reports it
        return None, ""


def _enumerated(names: list[str]) -> str:
    """Return the names of circumstances as a phrase: "the script and the CPUs"."""
    words = ["the CPUs" if name == "cpus" else f"the {name}" for name in names]
    return " and ".join(words)
