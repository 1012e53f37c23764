"""Proves that a model's batch can be divided, and checks it later."""
