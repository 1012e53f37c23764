"""Fast PyTorch training on CPUs without changes to the script.

Public names are imported on first access, and torch only with a name that needs it.
"""

from __future__ import annotations

# __init__.pyi has them for editors and type checkers
__all__ = ["DataLoader", "Many", "Pool", "Split", "Stack", "Step", "__version__", "fill", "setup"]

__version__ = "0.2.0"

_MODULE_OF_NAME = {
    "DataLoader": "cputrain.data",
    "Many": "cputrain.many.executor",  # cputrain.many itself loads no torch
    "Pool": "cputrain.pool",
    "Split": "cputrain.split",
    "Stack": "cputrain.step",
    "Step": "cputrain.step",
    "fill": "cputrain.pool",
    "load_ipython_extension": "cputrain.notebook",
    "setup": "cputrain.notebook",
    "unload_ipython_extension": "cputrain.notebook",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
