"""One batch over several CPU replicas and other devices, with the same result."""

from cputrain.split.split import Split, splitter_of

__all__ = ["Split", "splitter_of"]
