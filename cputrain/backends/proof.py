"""Whether a backend computes what the default computes, and how fast: layer by layer.

Two processes, as each needs variables of its own before torch is loaded. They take turns, so that
both are timed in the same circumstances.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import date

from cputrain.backends.process import EndedError, Process
from cputrain.backends.verdict import Judged, LayerFound, Verdict
from cputrain.bench.compare import median
from cputrain.errors import CputrainError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import numpy as np

    from cputrain.backends.probing import Probed

    Arrays = Mapping[str, np.ndarray[Any, Any]]

KINDS = ("linear", "conv", "norm", "embedding", "attention", "lstm")
"""Layers, in the order in which they are examined."""

LIMIT = 1e-3
"""How far two results in float32 may be apart, relatively. Rounding is a thousandth of it, and a
tenth after twenty updates."""

SMALL = 1e-2
"""A gradient that is a smaller part than this of the largest is held against that: those of a bias
before a normalisation are rounding and nothing else."""

CHANGE = "after a change"
"""The kind of what comes out once a weight was written to."""

ROUNDS = 5
"""Rounds of timing; each times the default and the backend."""

TURN = 0.1
"""Seconds of timing per backend and round."""

LONGEST = 300.0
"""Seconds for one layer, most of which is compiling."""


def prove(
    probed: Probed,
    *,
    layers: Sequence[str] = KINDS,
    rounds: int = ROUNDS,
    turn: float = TURN,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Verdict:
    """Examine a backend that can be had. Raises CannotBeHadError where it is not so."""
    found: dict[bool, Judged | None] = {}
    with _Two(probed, rounds, turn) as two:
        for training, claims in ((True, probed.trains), (False, probed.evaluates)):
            what = "training" if training else "evaluation"
            each = []
            for layer in layers if claims else ():
                each.append(two.examine(layer, training=training))
                tell(f"{probed.name}, {what}: {layer} {_said(each[-1])}")
            found[training] = Judged(layers=tuple(each)) if claims else None
    return Verdict(
        backend=probed.name,
        version=probed.version,
        when=date.today().isoformat(),
        training=found[True],
        evaluation=found[False],
    )


def _said(found: LayerFound) -> str:
    if found.fault:
        return found.fault
    far = max((one for one in found.differences.values() if one is not None), default=0.0)
    speed = "" if found.speedup is None else f", {found.speedup:.2f} times as fast"
    return f"is the same to {far:.0e}{speed}"


class CannotBeHadError(Exception):
    """Why a backend is not there after all: it shows when it is loaded, beside torch."""


class _Two:
    """The processes of the default and of the backend under examination."""

    def __init__(self, probed: Probed, rounds: int, turn: float) -> None:
        self._probed = probed
        self._rounds = rounds
        self._turn = turn
        self._folder = tempfile.TemporaryDirectory(prefix="cputrain-")
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> _Two:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self._end(name)
        self._folder.cleanup()

    def _end(self, name: str) -> None:
        self._processes.pop(name).end()

    def _ask(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name not in self._processes:
            environment = {} if name == "default" else self._probed.environment
            self._processes[name] = Process("examine", name, environment=environment)
        process = self._processes[name]
        process.tell(request)
        try:
            answer = process.answer(LONGEST)
        except EndedError as error:
            self._end(name)
            return {"error": f"its process {error}"}
        if answer is None:
            self._end(name)
            return {"error": f"its process does not answer within {LONGEST:g} s"}
        return answer

    def examine(self, layer: str, *, training: bool) -> LayerFound:
        """Examine one layer: compare its results, then time it."""
        names = ("default", self._probed.name)
        arrays = []
        for number, name in enumerate(names):
            path = os.path.join(self._folder.name, f"{number}.npz")
            request = {"layer": layer, "training": training, "write": path}
            answer = self._ask(name, request)
            if "unavailable" in answer:
                raise CannotBeHadError(answer["unavailable"]["reason"])
            if problem := answer.get("error"):
                if name == "default":
                    raise CputrainError("torch", f"must run {layer} by itself", found=problem)
                return LayerFound(layer=layer, fault=problem)
            arrays.append(_read(path))
        differences = compared(*arrays)
        speedup = self._timed(layer, training=training)
        return LayerFound(
            layer=layer,
            differences=differences,
            fault=fault_of(differences, *arrays),
            speedup=speedup,
        )

    def _timed(self, layer: str, *, training: bool) -> float | None:
        request = {"layer": layer, "training": training, "seconds": self._turn}
        ratios = []
        names = ("default", self._probed.name)
        for number in range(self._rounds):
            took = {}
            for name in names if number % 2 == 0 else reversed(names):
                answer = self._ask(name, request)
                if "step" not in answer:
                    return None
                took[name] = answer["step"]
            ratios.append(took[names[0]] / took[names[1]])
        return median(ratios) if ratios else None


def _read(path: str) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as held:
        return dict(held)


def compared(whole: Arrays, other: Arrays) -> dict[str, float | None]:
    """Return the largest relative difference from the default, for each kind of result."""
    import numpy as np

    largest: dict[str, float] = {}
    for name, one in whole.items():
        kind = _kind_of(name)
        largest[kind] = max(largest.get(kind, 0.0), float(np.linalg.norm(one)))
    found: dict[str, float | None] = {}
    for name, one in whole.items():
        kind, far = _kind_of(name), float("inf")
        there = other.get(name)
        if kind == "gradient" and there is not None and there.shape != one.shape:
            # of a parameter that is kept in another order: the same numbers, wherever they are
            one, there = np.sort(one, axis=None), np.sort(there, axis=None)
        if there is not None and there.shape == one.shape:
            least = SMALL * largest[kind]
            norm = max(float(np.linalg.norm(one)), least) or 1.0
            far = float(np.linalg.norm(one.astype(np.float64) - there)) / norm
        before = found.get(kind, 0.0)
        found[kind] = None if before is None or not np.isfinite(far) else max(before, far)
    return found


def fault_of(differences: dict[str, float | None], whole: Arrays, other: Arrays) -> str:
    """Return the most serious fault; empty if there is none."""
    import numpy as np

    faults = {kind: far for kind, far in differences.items() if far is None or far > LIMIT}
    missing = [name for name in whole if name not in other]
    if missing:
        return f"it gives no {missing[0]}"
    changed = [name for name in whole if _kind_of(name) == CHANGE]
    if CHANGE in faults:
        for before, name in zip(["output", *changed], changed, strict=False):
            if np.array_equal(other[before], other[name]):
                return f"it computes with a weight as it was before it changed ({name})"
    for kind, far in faults.items():
        return f"its {kind} is not a number" if far is None else f"its {kind} differs by {far:.1e}"
    return ""


def _kind_of(name: str) -> str:
    return CHANGE if name.startswith("after") else name.split()[0]
