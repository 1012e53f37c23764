"""Candidates for `channels_last`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "channels_last"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return on, if the script computes convolutions."""
    return ["on"] if "convolution" in situation.rules.uses else []
