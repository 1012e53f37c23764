"""Completion scripts for shells, made from the tables of options."""
