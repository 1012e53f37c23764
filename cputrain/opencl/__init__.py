"""The device "ocl": any OpenCL device, with a CPU fallback for operators without a kernel.

Importing this registers it with torch: `model.to("ocl")`.
"""

from __future__ import annotations

import cputrain.opencl.registration  # noqa: F401  (registers the device)
from cputrain.opencl.fallback import Fallback, fallbacks, reset_fallbacks
from cputrain.opencl.graphs.graph import Graph

__all__ = ["Fallback", "Graph", "fallbacks", "reset_fallbacks"]
