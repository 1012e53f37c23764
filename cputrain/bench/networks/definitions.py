"""Torchvision's networks, without dropout and auxiliary losses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from cputrain.errors import NotFound

OWN: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": False} for name in ("googlenet", "inception_v3")
}

_libraries: list[Any] = []


def definitions() -> Any:
    """Import and return torchvision.models.

    A CUDA build of torchvision beside a CPU build of torch cannot load its operators, but refers to
    two of them on import. Defining their schemas is enough.
    """
    if find_spec("torchvision") is None:
        raise NotFound(
            "the package torchvision", "must be installed: it defines the networks",
            do="pip install torchvision, of the version that goes with torch.",
        )  # fmt: skip
    if torch.version.cuda is None and not _libraries:
        library: Any = torch.library.Library
        made = library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            made.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(made)
    from torchvision import models

    return models


def network(name: str, *, classes: int = 1000) -> nn.Module:
    """Build a network without random operators, so that losses agree between devices."""
    model: nn.Module = getattr(definitions(), name)(num_classes=classes, **OWN.get(name, {}))
    for layer in model.modules():
        if isinstance(layer, nn.Dropout) or type(layer).__name__ == "StochasticDepth":
            layer.p = 0.0  # type: ignore[assignment]
    return model
