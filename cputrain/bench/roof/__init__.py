"""Roof of the machine as measured by diagnose, against other measurements."""
