"""Measure candidate plans on the user's script and keep the fastest.

Importing this loads no torch. See README.md in this folder.
"""
