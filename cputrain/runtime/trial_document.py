"""The JSON document that a recorder of a trial writes when the run ends."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TrialDocument:
    """Writes one document to a file descriptor, in the process that was started with it alone.

    Args:
        fd: File descriptor that the document is written to.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._pid = fd, os.getpid()

    @property
    def is_due(self) -> bool:
        """Whether it is still to be written, and by this process."""
        return os.getpid() == self._pid and self._fd >= 0

    def write(self, document: Any) -> None:
        """Write the document, if it is due."""
        if self.is_due:
            fd, self._fd = self._fd, -1
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(document, file)
