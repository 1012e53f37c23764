"""Comparison of a backend with the default, layer by layer: correctness and speed.

Each runs in a process, as they need different environment variables before torch is loaded. The
processes take turns, so that both are timed under the same conditions.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import date

from cputrain.backends.process import BackendProcess, ProcessEndedError
from cputrain.backends.verdict import BackendVerdict, LayerResult, ModeVerdict
from cputrain.errors import CputrainError
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import speedup_by_round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import numpy as np

    from cputrain.backends.probing import ProbeResult

    Arrays = Mapping[str, np.ndarray[Any, Any]]

LAYER_KINDS = ("linear", "conv", "norm", "embedding", "attention", "lstm")
"""Kinds of layers, in the order of examination."""

MAX_DIFFERENCE = 1e-3
"""Largest relative difference between correct float32 results.

Rounding causes a thousandth of it, and a tenth after twenty updates."""

MIN_GRADIENT_RATIO = 1e-2
"""Least norm, relative to the largest of its kind, by which a difference is divided.

It keeps gradients that are only rounding errors, such as a bias's before a normalization, from
counting as differences."""

AFTER_CHANGE = "after a change"
"""Kind of the outputs computed after a weight was changed in place."""

NUM_ROUNDS = 5
"""Number of timing rounds; each times the default and the backend."""

TURN_S = 0.1
"""Seconds of timing per backend and round."""

LAYER_TIMEOUT_S = 300.0
"""Timeout of a request in seconds; most of the time is compilation."""


def compare_with_default(
    probed: ProbeResult,
    *,
    layers: Sequence[str] = LAYER_KINDS,
    num_rounds: int = NUM_ROUNDS,
    turn_s: float = TURN_S,
    report: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> BackendVerdict:
    """Examine an available backend: train, evaluate and time each layer beside the default.

    Args:
        probed: The backend's probe result.
        layers: Kinds of layers to examine.
        num_rounds: Number of timing rounds; 0 measures no speed-up.
        turn_s: Seconds of timing per backend and round.
        report: Function that is called with a progress message after each layer.

    Raises:
        BackendUnavailableError: The backend cannot be loaded after all.
    """
    verdicts: dict[bool, ModeVerdict | None] = {}
    with _ProcessPair(probed, num_rounds, turn_s) as processes:
        for training, is_claimed in ((True, probed.trains), (False, probed.evaluates)):
            mode = "training" if training else "evaluation"
            results = []
            for layer in layers if is_claimed else ():
                results.append(processes.examine(layer, training=training))
                report(f"{probed.name}, {mode}: {layer} {_describe(results[-1])}")
            verdicts[training] = ModeVerdict(layers=tuple(results)) if is_claimed else None
    return BackendVerdict(
        backend=probed.name,
        version=probed.version,
        when=date.today().isoformat(),
        training=verdicts[True],
        evaluation=verdicts[False],
    )


def _describe(result: LayerResult) -> str:
    if result.fault:
        return result.fault
    difference = max(
        (value for value in result.differences.values() if value is not None), default=0.0
    )
    speed = "" if result.speedup is None else f", {result.speedup:.2f} times as fast"
    return f"agrees to {difference:.0e}{speed}"


class BackendUnavailableError(Exception):
    """Raised when an available backend turns out to be unusable once it is loaded with torch."""


class _ProcessPair:
    """The processes of the default and of the backend under examination."""

    def __init__(self, probed: ProbeResult, num_rounds: int, turn_s: float) -> None:
        self._probed = probed
        self._num_rounds = num_rounds
        self._turn_s = turn_s
        self._folder = tempfile.TemporaryDirectory(prefix="cputrain-")
        self._processes: dict[str, BackendProcess] = {}

    def __enter__(self) -> _ProcessPair:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self._end(name)
        self._folder.cleanup()

    def _end(self, name: str) -> None:
        self._processes.pop(name).end()

    def _request(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name not in self._processes:
            environment = {} if name == "default" else self._probed.environment
            self._processes[name] = BackendProcess("examine", name, environment=environment)
        process = self._processes[name]
        process.send(request)
        try:
            answer = process.receive(LAYER_TIMEOUT_S)
        except ProcessEndedError as error:
            self._end(name)
            return {"error": f"its process {error}"}
        if answer is None:
            self._end(name)
            return {"error": f"its process did not answer within {LAYER_TIMEOUT_S:g} s"}
        return answer

    def examine(self, layer: str, *, training: bool) -> LayerResult:
        """Examine one layer: compare its results, then time it."""
        names = ("default", self._probed.name)
        arrays = []
        for index, name in enumerate(names):
            path = os.path.join(self._folder.name, f"{index}.npz")
            request = {"layer": layer, "training": training, "write": path}
            answer = self._request(name, request)
            if "unavailable" in answer:
                raise BackendUnavailableError(answer["unavailable"]["reason"])
            if problem := answer.get("error"):
                if name == "default":
                    raise CputrainError("torch", f"must run {layer} layers", found=problem)
                return LayerResult(layer=layer, fault=problem)
            arrays.append(_read(path))
        differences = compare_arrays(*arrays)
        speedup = self._measure_speedup(layer, training=training)
        return LayerResult(
            layer=layer,
            differences=differences,
            fault=describe_fault(differences, *arrays),
            speedup=speedup,
        )

    def _measure_speedup(self, layer: str, *, training: bool) -> float | None:
        request = {"layer": layer, "training": training, "seconds": self._turn_s}
        reference, candidate = "default", self._probed.name
        seconds: dict[str, list[float]] = {reference: [], candidate: []}
        for _, name in interleaved(seconds, self._num_rounds):
            answer = self._request(name, request)
            if "step" not in answer:
                return None
            seconds[name].append(answer["step"])
        if not self._num_rounds:
            return None
        return speedup_by_round(seconds[reference], seconds[candidate]).median


def _read(path: str) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as archive:
        return dict(archive)


def compare_arrays(expected: Arrays, actual: Arrays) -> dict[str, float | None]:
    """Return the largest relative difference from the default, for each kind of result."""
    import numpy as np

    largest_norms: dict[str, float] = {}
    for name, reference in expected.items():
        kind = _kind_of(name)
        largest_norms[kind] = max(largest_norms.get(kind, 0.0), float(np.linalg.norm(reference)))
    differences: dict[str, float | None] = {}
    for name, reference in expected.items():
        kind, difference = _kind_of(name), float("inf")
        candidate = actual.get(name)
        if kind == "gradient" and candidate is not None and candidate.shape != reference.shape:
            # The backend stores the parameter in another layout: compare the sorted elements.
            reference, candidate = np.sort(reference, axis=None), np.sort(candidate, axis=None)
        if candidate is not None and candidate.shape == reference.shape:
            min_norm = MIN_GRADIENT_RATIO * largest_norms[kind]
            norm = max(float(np.linalg.norm(reference)), min_norm) or 1.0
            difference = float(np.linalg.norm(reference.astype(np.float64) - candidate)) / norm
        previous = differences.get(kind, 0.0)
        differences[kind] = (
            None if previous is None or not np.isfinite(difference) else max(previous, difference)
        )
    return differences


def describe_fault(differences: dict[str, float | None], expected: Arrays, actual: Arrays) -> str:
    """Return the most serious fault; empty if there is none."""
    import numpy as np

    faults = {
        kind: difference
        for kind, difference in differences.items()
        if difference is None or difference > MAX_DIFFERENCE
    }
    missing = [name for name in expected if name not in actual]
    if missing:
        return f"it returns no {missing[0]}"
    changed = [name for name in expected if _kind_of(name) == AFTER_CHANGE]
    if AFTER_CHANGE in faults:
        for previous, name in zip(["output", *changed], changed, strict=False):
            if np.array_equal(actual[previous], actual[name]):
                return f"it uses a stale weight, from before it changed ({name})"
    for kind, difference in faults.items():
        return (
            f"its {kind} is not a finite number"
            if difference is None
            else f"its {kind} differs by {difference:.1e}"
        )
    return ""


def _kind_of(name: str) -> str:
    return AFTER_CHANGE if name.startswith("after") else name.split()[0]
