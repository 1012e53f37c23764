"""Warnings that point at the user's line, whatever depth of cputrain and torch they come from."""

from __future__ import annotations

import os
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Folder of this package."""


def warn(message: str) -> None:
    """Issue a UserWarning at the innermost line that is neither cputrain's nor torch's."""
    warnings.warn(message, stacklevel=_num_inner_frames(sys._getframe(1)) + 2)


def _num_inner_frames(frame: FrameType | None) -> int:
    """Return how many frames from this one outwards are cputrain's or torch's."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inner = (OURS, os.path.dirname(torch) + os.sep) if torch else (OURS,)
    number = 0
    while frame is not None and frame.f_code.co_filename.startswith(inner):
        number += 1
        frame = frame.f_back
    return number if frame is not None else 0
