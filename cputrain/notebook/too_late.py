"""Why a decision cannot be carried out in a process that runs."""

from __future__ import annotations


class TooLateError(Exception):
    """It could have been when the process began."""


class RefusedError(Exception):
    """The system does not allow it, and would not have."""
