"""Files that a command is asked to write: never over another one by accident."""

from __future__ import annotations

import os

from cputrain.errors import UsageError


class NewFile:
    """A file that is to be; that it can be is checked before the work that it is for."""

    def __init__(self, path: str, flag: str, *, force: bool) -> None:
        self.path = path
        self._said = f"{flag} {path}"
        self._force = force
        if os.path.isdir(path):
            raise self._cannot("it is a folder")
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise self._cannot(f"there is no folder {folder}")
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise self._cannot("Permission denied")
        if os.path.lexists(path) and not force:
            raise self._there()

    def write(self, text: str) -> None:
        """All of it."""
        try:
            with open(self.path, "w" if self._force else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise self._there() from None
        except OSError as error:
            raise self._cannot(str(error.strerror)) from None

    def _there(self) -> UsageError:
        return UsageError(self._said, "would overwrite a file", do="Name another, or add --force.")

    def _cannot(self, why: str) -> UsageError:
        return UsageError(
            self._said, "must be a file that can be written", found=why, do="Name another."
        )
