"""Arguments that operators write to, though torch's schema does not say so."""

from __future__ import annotations

import torch

UNMARKED = {torch.ops.aten.native_batch_norm.default: (3, 4)}
"""By operator, their places: running statistics."""
