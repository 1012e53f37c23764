"""Trainings with the same bits on other machines: stamps of weights."""
