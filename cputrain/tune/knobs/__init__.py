"""Candidate values of each setting: a module for each, listed in `cputrain.tune.candidates`."""
