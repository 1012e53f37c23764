"""Rendering of values for the terminal, notebooks and browsers, without measuring or deciding."""
