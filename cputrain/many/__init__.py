"""Many trainings beside one another on one machine."""

from __future__ import annotations

from cputrain.many.in_script import stackable

__all__ = ["stackable"]
