"""The device "ocl": any OpenCL device, with the CPU for what has no kernel.

Importing this registers it with torch: `model.to("ocl")`.
"""

from __future__ import annotations

import cputrain.opencl.registration  # noqa: F401  (that is what registers it)
from cputrain.opencl.fallback import Fallback, fallbacks, reset_fallbacks

__all__ = ["Fallback", "fallbacks", "reset_fallbacks"]
