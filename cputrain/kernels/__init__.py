"""Kernels in C for regions of a training step that take torch several passes over memory."""
