"""Proof that a model's batch can be sharded, and later checks of that proof."""
