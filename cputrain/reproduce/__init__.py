"""Trainings with the same bits on other machines: stamps of weights."""

NUM_SHOWN = 16
"""Digits of a stamp that a line shows."""
