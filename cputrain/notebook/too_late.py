"""Errors that say why a decision cannot be applied to a running process."""

from __future__ import annotations


class TooLateError(Exception):
    """The decision can be applied only when a process starts; the message says why."""


class RefusedError(Exception):
    """The system does not allow the setting, in a new process neither; the message says why."""
