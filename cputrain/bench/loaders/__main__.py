"""Subprocess that runs the loaders: JSON request in argv, all runs as JSON on stdout.

    python -m cputrain.bench.loaders '{"repeats": 5, "quick": false, "groups": ["tensors"]}'

Used by `compare_loaders`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import warnings
from typing import Any

import torch

from cputrain import __version__
from cputrain.bench.loaders.cases import Case, cases, tensors
from cputrain.bench.loaders.contenders import CONTENDERS, Contender
from cputrain.bench.loaders.runs import Run, every_sum, run, samples_alone, worker_bytes
from cputrain.errors import CputrainError


def main(argv: list[str]) -> int:
    """Run the requested groups and print their runs."""
    request = json.loads(argv[0])
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # same for all
    try:
        found = []
        for group in request["groups"]:
            of_group = cases(group, request["quick"])
            if not of_group:
                print(
                    f"{group}: left out, as Pillow is not installed: pip install pillow",
                    file=sys.stderr,
                )
            found += [compared(one, request["repeats"]) for one in of_group]
            tensors.cache_clear()  # fork takes longer in a process with much memory
    except CputrainError as error:
        print(f"cputrain bench: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"versions": versions(), "cases": found}))
    return 0


def compared(case: Case, repeats: int) -> dict[str, Any]:
    """Run a case's loaders, interleaved; raise if two loaders yield different batches."""
    data = case.dataset()
    left_out = {one.name: one.why_not(case, data) for one in CONTENDERS}
    present = [one for one in CONTENDERS if not left_out[one.name]]
    runs: list[Run] = []
    expected = None if case.timed == "first batch" else _check_all(case, present, data)
    for number in range(1, repeats + 1):
        if case.samples_alone:
            runs.append(samples_alone(case, data, number))
            _narrate(runs[-1], repeats)
        for contender in present if number % 2 else reversed(present):
            one = run(case, contender, data, number)
            expected = expected or (one.batches, one.last)
            if (one.batches, one.last) != expected:
                raise _differ(case, contender.name, (one.batches, one.last), expected)
            runs.append(one)
            _narrate(one, repeats)
    return {
        "name": case.name,
        "title": case.title,
        "timed": case.timed,
        "memory": _memory(case, present, data),
        "left_out": {name: reason for name, reason in left_out.items() if reason},
        "runs": [one.as_json() for one in runs],
    }


def _check_all(
    case: Case, contenders: list[Contender], data: Any
) -> tuple[int, tuple[float, ...]] | None:
    """Run one untimed epoch of each loader and check the sums of every batch against torch's."""
    print(f"{case.title}: every batch of every loader is checked", file=sys.stderr)
    reference = None
    for contender in contenders:
        found = every_sum(case, contender, data)
        if reference is None:
            reference = found
        elif found != reference:
            pairs = enumerate(zip(found, reference, strict=False))
            first = next((i for i, (one, other) in pairs if one != other), len(reference))
            raise _differ(
                case, contender.name, (len(found), *found[first:][:1]),
                (len(reference), *reference[first:][:1]),
            )  # fmt: skip
    return None if reference is None else (len(reference), reference[-1])


def _memory(case: Case, contenders: list[Contender], data: Any) -> dict[str, list[int]]:
    """Return the private memory of a worker of each loader, with the data and without samples."""
    if case.empty is None or not os.path.isdir("/proc"):
        return {}
    print(f"{case.title}: the memory of workers", file=sys.stderr)
    empty = case.empty()
    return {
        one.name: [worker_bytes(case, one, data), worker_bytes(case, one, empty)]
        for one in contenders
    }


def _differ(case: Case, name: str, found: object, expected: object) -> CputrainError:
    return CputrainError(
        f"the batches of {name!r} in {case.name}",
        f"must be torch's: number of batches and sums {expected}",
        found=str(found),
        do="A loader that hands out other batches cannot be compared; please report it.",
    )


def _narrate(one: Run, repeats: int) -> None:
    print(
        f"{one.case}: round {one.round_number} of {repeats}, {one.contender} {one.seconds:.3g} s",
        file=sys.stderr,
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages involved."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cputrain": __version__,
    }
    try:
        found["spdl"] = importlib.metadata.version("spdl")
    except importlib.metadata.PackageNotFoundError:
        return found
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
