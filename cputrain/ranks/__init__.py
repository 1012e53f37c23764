"""Distributed training: torch's elastic agent, and all-reduce among the ranks of a node."""
