"""What was learnt about a script, kept where `cputrain tune` keeps its results."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import date
from math import prod

from cputrain.record import Record
from cputrain.tune.store import LEARNT, TunedPlan, circumstances, plan_file, save

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_SHAPES = 20
"""Different batches that are remembered at most."""


class Tried(Record):
    """What came of a candidate."""

    setting: str
    value: str

    previous: str
    """Value that it was compared with."""

    gain: float
    """Times as fast; 0 if it was rejected."""

    reason: str
    """Why it was rejected; empty if it was kept."""

    is_rough: bool = False
    """Whether other programs used the CPUs meanwhile: it holds for this run only."""


class Knowledge:
    """What earlier runs and this one have learnt about a script.

    Args:
        script: Path of the script; "" keeps nothing.
        machine: Fingerprint of the machine.
        cpus: CPUs that the process may use.
    """

    def __init__(self, script: str, machine: str, cpus: tuple[int, ...]) -> None:
        self._script = script
        self._current = circumstances(script, machine, cpus) if script else {}
        self.settings: dict[str, str] = {}
        """Settings that are faster, of earlier runs and of this one."""
        self._tried: list[Tried] = []
        self._shapes: dict[str, None] = {}
        """Dtypes and shapes of the first batches, that the rest holds for."""
        self._known_shapes: dict[str, None] = {}
        """Those of the earlier run."""
        self._num_known = 0
        """Candidates that an earlier run has tried."""
        self.is_complete = False
        """Whether every candidate has been tried, or `cputrain tune` has measured more."""
        self._load()

    def _load(self) -> None:
        if not self._script:
            return
        document, _ = plan_file(self._script).read()
        if (
            document.get("path") != os.path.realpath(self._script)
            or document.get("circumstances") != self._current
        ):
            return
        try:
            evidence = document["evidence"]
            if evidence.get("source") != LEARNT:
                self.is_complete = True
                return
            tried = [Tried(**entry) for entry in evidence["tried"]]
            settings = {str(name): str(value) for name, value in document["settings"].items()}
            shapes = dict.fromkeys(map(str, evidence["shapes"]))
            is_complete = bool(evidence["is_complete"])
        except (KeyError, TypeError, AttributeError):  # a broken file: it is written anew
            return
        self.settings, self._tried, self._known_shapes = settings, tried, shapes
        self._num_known, self.is_complete = len(tried), is_complete

    # -- batches

    def add_batch(self, leaves: Iterable[Any]) -> None:
        """Add the dtypes and shapes of a batch."""
        text = ", ".join(
            f"{str(leaf.dtype).removeprefix('torch.')} {'×'.join(map(str, leaf.shape))}"
            for leaf in leaves
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        )
        if text and len(self._shapes) < MAX_SHAPES:
            self._shapes[text] = None

    def forget_unless_batches_match(self) -> None:
        """Forget what was tried if this run's batches are others than those of the earlier run.

        Settings that were faster stay in use; they are tried again like all others.
        """
        if self._known_shapes and not self._known_shapes.keys() & self._shapes.keys():
            self._tried, self._num_known = [], 0
            self.is_complete = False

    # -- candidates

    def is_tried(self, setting: str, value: str) -> bool:
        """Return whether a value was tried, or is what a better one was compared with."""
        return any(
            tried.setting == setting
            and (tried.value == value or (tried.gain and tried.previous == value))
            for tried in self._tried
        )

    def add(self, tried: Tried) -> None:
        """Remember what came of a candidate."""
        self._tried.append(tried)
        if tried.gain and not tried.is_rough:
            self.settings[tried.setting] = tried.value

    @property
    def gain(self) -> float:
        """Speed-up of all that was kept in this run."""
        return prod(tried.gain for tried in self._tried[self._num_known :] if tried.gain)

    # -- the end

    def save(self) -> None:
        """Save it for the next launch of the script, if there is something new."""
        sure = [tried for tried in self._tried if not tried.is_rough]
        if not self._script or len(sure) == self._num_known:
            return
        gain = prod(tried.gain for tried in sure if tried.gain)
        plan = TunedPlan(
            settings=self.settings,
            reason=f"{gain:.2f} times as fast as the rules",
            when=date.today().isoformat(),
            arguments=tuple(sys.argv[1:]),
            evidence={
                "source": LEARNT,
                "tried": [tried.as_json() for tried in sure],
                "shapes": list(self._shapes),
                "is_complete": self.is_complete and len(sure) == len(self._tried),
            },
        )
        with suppress(OSError):  # a folder that cannot be written: the next run learns it again
            save(self._script, self._current, plan)

    def describe(self) -> str:
        """Return what this run has learnt; "" if nothing."""
        new = self._tried[self._num_known :]
        kept = [tried for tried in new if tried.gain]
        if kept:
            texts = ", ".join(
                f"{tried.setting} {tried.value} ({tried.gain:.2f} times as fast"
                + (", not kept: other programs used the CPUs)" if tried.is_rough else ")")
                for tried in kept
            )
            return f"learnt: {texts}"
        if new and self.is_complete:
            return "learnt: no other setting is faster"
        return ""
