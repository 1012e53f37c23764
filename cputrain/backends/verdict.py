"""Examination results of a backend on this machine, cached until their circumstances change."""

from __future__ import annotations

import os
from math import prod

from cputrain.machine.cache import CacheFile, cache_folder, changed_circumstances
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 2
"""Version of the examination and its file format; verdicts of other versions are discarded."""

FOLDER = "backends"
"""Folder of verdicts in the cache."""

MIN_SPEEDUP = 1.03
"""Minimum mean speed-up over the default for a backend to be chosen automatically."""

MIN_LAYER_SPEEDUP = 0.97
"""Minimum speed-up of each kind of layer, since a model may consist of one kind."""


class LayerResult(Record):
    """Correctness and speed-up of a backend on one kind of layer."""

    layer: str
    """Kind of layer: "attention"."""

    differences: dict[str, float | None] = {}
    """Relative differences from the default by kind of result; None for NaN or infinity.

    The kinds are "output", "loss", "gradient", "weight", and "after a change", which is the output
    after a weight was changed in place."""

    fault: str = ""
    """What is wrong, without capital and period; empty if the results are correct."""

    speedup: float | None = None
    """Step time of the default divided by the backend's; None if it was not timed."""


class ModeVerdict(Record):
    """Results of all layers in one mode, training or evaluation."""

    layers: tuple[LayerResult, ...]
    """Results of each kind of layer."""

    @property
    def fault(self) -> str:
        """The first layer's fault; empty if there is none."""
        return next((f"{layer.layer}: {layer.fault}" for layer in self.layers if layer.fault), "")

    @property
    def speedup(self) -> float | None:
        """The geometric mean of the layers' speed-ups; None if none was timed."""
        speedups = [layer.speedup for layer in self.layers if layer.speedup is not None]
        return prod(speedups) ** (1 / len(speedups)) if speedups else None

    @property
    def is_preferable(self) -> bool:
        """Whether every layer is correct, the mean is faster and no layer is slower."""
        slow_layers = [
            layer
            for layer in self.layers
            if layer.speedup is None or layer.speedup < MIN_LAYER_SPEEDUP
        ]
        return not self.fault and not slow_layers and (self.speedup or 0.0) >= MIN_SPEEDUP

    def __str__(self) -> str:
        if self.fault:
            return f"wrong: {self.fault}"
        speedups = [layer.speedup for layer in self.layers if layer.speedup is not None]
        if self.speedup is None:
            return "correct"
        bounds = f" ({min(speedups):.2f} to {max(speedups):.2f})" if len(speedups) > 1 else ""
        return f"correct, {self.speedup:.2f} times as fast{bounds}"


class BackendVerdict(Record):
    """A backend's results for training and for evaluation."""

    backend: str
    """The backend's name."""

    version: str
    """The backend's version when it was examined."""

    when: str
    """Date of the examination in ISO format."""

    training: ModeVerdict | None
    """Results in training; None if the backend does not claim to train."""

    evaluation: ModeVerdict | None
    """Results in evaluation; None if the backend does not claim to evaluate."""

    def of(self, *, training: bool) -> ModeVerdict | None:
        """Return the results for training or for evaluation."""
        return self.training if training else self.evaluation


def verdict_file(backend: str) -> CacheFile:
    """Return the file of a backend's cached verdict."""
    return CacheFile("the verdict", SCHEMA_VERSION, FOLDER, f"{backend}.json")


def save_verdict(verdict: BackendVerdict, circumstances: dict[str, Any]) -> str:
    """Write a verdict to the cache and return its path. Raises OSError."""
    file = verdict_file(verdict.backend)
    kind = "cputrain verdict on a backend"
    file.write({"kind": kind, "circumstances": circumstances, **verdict.as_json()})
    return file.path


def cached_names() -> list[str]:
    """Return the names of backends that have a cached verdict, valid or not."""
    try:
        files = os.listdir(os.path.join(cache_folder(), FOLDER))
    except OSError:  # no verdict was ever saved
        return []
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))


def load_verdict(
    backend: str, circumstances: dict[str, Any] | None = None
) -> tuple[BackendVerdict | None, str]:
    """Return the cached verdict on a backend, or None and a message unless none was saved.

    Args:
        backend: Name of the backend.
        circumstances: Values that must equal those saved with the verdict; None accepts any.
    """
    file = verdict_file(backend)
    document, problem = file.read()
    if not document:
        return None, problem
    try:
        names = changed_circumstances(document["circumstances"], circumstances or {})
        if names:
            return None, f"{' and '.join(names)} changed since it was examined"
        return BackendVerdict(
            backend=backend,
            version=_parse_text(document["version"]),
            when=_parse_text(document["when"]),
            training=_parse_mode(document["training"]),
            evaluation=_parse_mode(document["evaluation"]),
        ), ""
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return None, f"the verdict {file.path} is invalid ({error})"


def _parse_mode(value: Any) -> ModeVerdict | None:
    if value is None:
        return None
    return ModeVerdict(
        layers=tuple(
            LayerResult(
                layer=_parse_text(layer["layer"]),
                differences={
                    _parse_text(name): None if difference is None else float(difference)
                    for name, difference in layer["differences"].items()
                },
                fault=_parse_text(layer["fault"]),
                speedup=None if layer["speedup"] is None else _parse_speed(layer["speedup"]),
            )
            for layer in value["layers"]
        )
    )


def _parse_speed(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{value!r} instead of a speed-up")
    return float(value)


def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} instead of a string")
    return value
