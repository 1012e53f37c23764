"""Accuracy of the speed-ups that `cputrain diagnose` predicts, and the time it takes."""
