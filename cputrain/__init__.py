"""PyTorch training on CPUs, made fast without changing the script.

Importing this is free: names are loaded when they are first used, and torch is never imported
before a name that needs it.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
