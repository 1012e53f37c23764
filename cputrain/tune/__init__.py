"""Measures plans on the user's own script, and keeps the one that wins.

Importing this loads no torch. See README.md in this folder.
"""
