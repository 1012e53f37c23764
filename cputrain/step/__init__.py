"""A whole training step, forward to optimizer, as one compiled function."""

from cputrain.step.step import Step as Step

__all__ = ["Step"]
