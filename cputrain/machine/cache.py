"""JSON files in the user's cache folder, readable only by the user."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def cache_folder() -> str:
    """Return cputrain's folder in the user's cache; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore relative paths
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "cputrain")


class CacheFile:
    """JSON object of one schema version in a file of the cache.

    Args:
        description: What the file holds, for messages: "the tuned plan".
        version: Schema version; an object of another version is ignored.
        names: Names of folders below the cache folder, and of the file.
    """

    def __init__(self, description: str, version: int, *names: str) -> None:
        self._description = description
        self._version = version
        self._names = names

    @property
    def path(self) -> str:
        """Path of the file."""
        return os.path.join(cache_folder(), *self._names)

    def read(self) -> tuple[dict[str, Any], str]:
        """Return the object; an empty one and a message unless the file is absent.

        The message names the file, and says why it is ignored.
        """
        path = self.path
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except FileNotFoundError:
            return {}, ""
        except (OSError, ValueError, RecursionError) as error:
            return {}, f"{self._description} {path} cannot be read ({' '.join(str(error).split())})"
        if not isinstance(document, dict):
            return {}, f"{self._description} {path} is invalid (not an object)"
        if document.get("schema_version") != self._version:
            return {}, f"{self._description} {path} was written by another version of cputrain"
        return document, ""

    def write(self, fields: dict[str, Any]) -> None:
        """Write an object with these fields atomically; raise OSError on failure."""
        path = self.path
        temporary_path = f"{path}.{os.getpid()}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump({"schema_version": self._version, **fields}, file, indent=1)
            os.replace(temporary_path, path)
        except OSError:
            if os.path.exists(temporary_path):
                os.unlink(temporary_path)
            raise


def changed_circumstances(stored: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return the names of circumstances that differ from those stored with a result."""
    return [name for name in current if stored.get(name) != current[name]]
