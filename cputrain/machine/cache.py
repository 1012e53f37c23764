"""Where what was measured is kept between runs: JSON that only the user reads."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def cache_folder() -> str:
    """Ours in the user's cache; it need not be there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative one is ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "cputrain")


def read_json(path: str, what: str) -> tuple[Any, str]:
    """A document, and why it cannot be read, if it is there: "the tuned plan … cannot be read"."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return document, f"{what} {path} is empty" if document is None else ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{what} {path} cannot be read ({' '.join(str(error).split())})"


def write_json(path: str, document: dict[str, Any]) -> None:
    """The whole document, or nothing of it. Raises OSError."""
    unfinished = f"{path}.{os.getpid()}"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
