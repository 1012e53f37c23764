"""Networks of torchvision, without dropout, stochastic depth and auxiliary losses."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cputrain.errors import NotFound

OPTIONS: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": False} for name in ("googlenet", "inception_v3")
}
"""Arguments of networks that need others than `num_classes`."""

_libraries: list[Any] = []
"""Keeps the defined schemas alive; empty until they are defined."""


def import_torchvision_models() -> Any:
    """Import and return torchvision.models.

    A torchvision that was built for another torch cannot load its operators, but uses the schemas
    of two of them during import; these are defined here.

    Raises:
        NotFound: torchvision is not installed.
    """
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        raise NotFound(
            "the package torchvision", "must be installed, as it defines the networks",
            do="pip install torchvision, in the version that matches torch.",
        )  # fmt: skip
    if not _libraries and not _has_operators(Path(package.origin).parent):
        library_class: Any = torch.library.Library
        library = library_class("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
    from torchvision import models

    return models


def _has_operators(folder: Path) -> bool:
    """Return whether the operators in torchvision's folder were built for this torch."""
    load: Any = torch.ops.load_library
    try:
        for library in folder.glob("_C*.so"):
            load(library)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


def build_network(name: str, *, classes: int = 1000) -> nn.Module:
    """Build one of torchvision's networks without random operators.

    Random operators would give other losses on each device.
    """
    model: nn.Module = getattr(import_torchvision_models(), name)(
        num_classes=classes, **OPTIONS.get(name, {})
    )
    for layer in model.modules():
        if isinstance(layer, nn.Dropout) or type(layer).__name__ == "StochasticDepth":
            layer.p = 0.0  # type: ignore[assignment]
    return model
