"""Output files of commands, which overwrite an existing file only with --force."""

from __future__ import annotations

import os

from cputrain.errors import UsageError


class NewFile:
    """Output file that is checked at once and written later, when the command has its result.

    Args:
        flag: The option that names the file, for error messages.
        force: Whether an existing file may be overwritten.

    Raises:
        UsageError: The file cannot be written, or it exists and `force` is False.
    """

    def __init__(self, path: str, flag: str, *, force: bool) -> None:
        self.path = path
        self._flag_and_path = f"{flag} {path}"
        self._force = force
        if os.path.isdir(path):
            raise self._unwritable_error("it is a folder")
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise self._unwritable_error(
                f"the folder {folder} does not exist", do="Create it, or name another file."
            )
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise self._unwritable_error("permission denied")
        if os.path.lexists(path) and not force:
            raise self._exists_error()

    def write(self, text: str) -> None:
        """Write the text; raise UsageError if the file cannot be written any more."""
        try:
            with open(self.path, "w" if self._force else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise self._exists_error() from None
        except OSError as error:
            raise self._unwritable_error(str(error.strerror)) from None

    def _exists_error(self) -> UsageError:
        return UsageError(
            self._flag_and_path, "would overwrite a file", do="Name another file, or add --force."
        )

    def _unwritable_error(self, reason: str, do: str = "Name another file.") -> UsageError:
        return UsageError(self._flag_and_path, f"cannot be written: {reason}", do=do)
