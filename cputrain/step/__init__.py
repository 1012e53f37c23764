"""Whole training steps as compiled functions."""

from cputrain.step.stack import Stack as Stack
from cputrain.step.step import Step as Step

__all__ = ["Stack", "Step"]
