"""cputrain in a running interpreter: `cputrain.setup`, and magics for IPython.

Importing this loads neither torch nor IPython. See README.md in this folder.
"""

from __future__ import annotations

from cputrain.notebook.extension import load_ipython_extension, unload_ipython_extension
from cputrain.notebook.running import setup

__all__ = ["load_ipython_extension", "setup", "unload_ipython_extension"]
