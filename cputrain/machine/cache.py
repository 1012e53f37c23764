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


def read_json(path: str, description: str) -> tuple[Any, str]:
    """Return a JSON document, or None and a message unless the file is absent.

    Args:
        path: The file.
        description: What the file holds, for the message: "the tuned plan".
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return document, f"{description} {path} is empty" if document is None else ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{description} {path} cannot be read ({' '.join(str(error).split())})"


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a JSON document atomically, creating its folder; raise OSError on failure."""
    temporary_path = f"{path}.{os.getpid()}"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary_path, path)
    except OSError:
        if os.path.exists(temporary_path):
            os.unlink(temporary_path)
        raise
