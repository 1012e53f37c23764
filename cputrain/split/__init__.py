"""One batch over several CPU replicas and other devices, with the same result."""

from cputrain.split.split import Split, splitter_of
from cputrain.split.verify import Verification, verify

__all__ = ["Split", "Verification", "splitter_of", "verify"]
