"""Examination results of a backend on this machine, cached until their circumstances change."""

from __future__ import annotations

import os
from math import prod

from cputrain.machine.cache import cache_folder, read_json, write_json
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 2
"""Grows with what is examined: a verdict of before is none."""

PAYS = 1.03
"""Minimum speed-up over the default for a backend to be chosen automatically."""

LEAST = 0.97
"""How many times as fast each kind of layer must be then: a model may be made of one kind alone."""


class LayerFound(Record):
    """Correctness and speed-up of a backend on one kind of layer."""

    layer: str
    """ "attention"."""

    differences: dict[str, float | None] = {}
    """From the default, relatively: of "output", "loss", "gradient", "weight", or of the output
    "after a change" of a weight. None where one of them is no number."""

    fault: str = ""
    """What is wrong, as half a sentence; empty if nothing is."""

    speedup: float | None = None
    """How many times as fast as the default a step is."""


class Judged(Record):
    """Results of all layers, for training or for evaluation."""

    layers: tuple[LayerFound, ...]
    """Each kind of layer."""

    @property
    def fault(self) -> str:
        """The first layer's fault; empty if there is none."""
        return next((f"{one.layer}: {one.fault}" for one in self.layers if one.fault), "")

    @property
    def speedup(self) -> float | None:
        """The geometric mean of the layers' speed-ups; None if none was timed."""
        found = [one.speedup for one in self.layers if one.speedup is not None]
        return prod(found) ** (1 / len(found)) if found else None

    @property
    def pays(self) -> bool:
        """Whether every layer is correct, the mean is faster and no layer is slower."""
        slow = [one for one in self.layers if one.speedup is None or one.speedup < LEAST]
        return not self.fault and not slow and (self.speedup or 0.0) >= PAYS

    def __str__(self) -> str:
        if self.fault:
            return f"wrong: {self.fault}"
        each = [one.speedup for one in self.layers if one.speedup is not None]
        if self.speedup is None:
            return "right"
        ends = f" ({min(each):.2f} to {max(each):.2f})" if len(each) > 1 else ""
        return f"right, {self.speedup:.2f} times as fast{ends}"


class Verdict(Record):
    """A backend's results for training and for evaluation."""

    backend: str
    """The backend's name."""

    version: str
    """The backend's version when it was examined."""

    when: str
    """The day of the examination."""

    training: Judged | None
    """None where it does not claim to train."""

    evaluation: Judged | None
    """None where it does not claim to evaluate."""

    def of(self, *, training: bool) -> Judged | None:
        """Return the results for training or for evaluation."""
        return self.training if training else self.evaluation


def path_of(backend: str) -> str:
    """Return the path of a backend's cached verdict."""
    return os.path.join(cache_folder(), "backends", f"{backend}.json")


def save(verdict: Verdict, circumstances: dict[str, Any]) -> str:
    """Write a verdict to the cache and return its path. Raises OSError."""
    path = path_of(verdict.backend)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "cputrain verdict on a backend",
        "circumstances": circumstances,
        **verdict.as_json(),
    }
    write_json(path, document)
    return path


def kept() -> list[str]:
    """Return the names of backends that have a cached verdict, valid or not."""
    try:
        files = os.listdir(os.path.dirname(path_of("")))
    except OSError:  # nothing was ever kept
        return []
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))


def load(backend: str, circumstances: dict[str, Any] | None = None) -> tuple[Verdict | None, str]:
    """The one that holds, if there is one; else why it does not. In whatever circumstances, if
    none are given."""
    path = path_of(backend)
    document, why_not = read_json(path, "the verdict")
    if document is None:
        return None, why_not
    try:
        if document["schema_version"] != SCHEMA_VERSION:
            return None, f"the verdict {path} is of another version of cputrain"
        known = document["circumstances"]
        now = circumstances or {}
        changed = [name for name in now if known.get(name) != now[name]]
        if changed:
            return None, f"{' and '.join(changed)} changed since it was examined"
        return Verdict(
            backend=backend,
            version=_text(document["version"]),
            when=_text(document["when"]),
            training=_judged(document["training"]),
            evaluation=_judged(document["evaluation"]),
        ), ""
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return None, f"the verdict {path} is broken ({error})"


def _judged(value: Any) -> Judged | None:
    if value is None:
        return None
    return Judged(
        layers=tuple(
            LayerFound(
                layer=_text(one["layer"]),
                differences={
                    _text(name): None if far is None else float(far)
                    for name, far in one["differences"].items()
                },
                fault=_text(one["fault"]),
                speedup=None if one["speedup"] is None else _speed(one["speedup"]),
            )
            for one in value["layers"]
        )
    )


def _speed(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{value!r} in the place of a speed")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} in the place of a text")
    return value
