"""Subprocess that runs the loaders: JSON request in argv, all runs as JSON on stdout.

    python -m cputrain.bench.loaders '{"repeats": 5, "quick": false, "groups": ["tensors"]}'

Used by `compare_loaders`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from cputrain.bench.loaders.cases import LoaderCase, cases, tensors
from cputrain.bench.loaders.contenders import CONTENDERS, LoaderContender
from cputrain.bench.loaders.runs import LoaderRun, batch_sums, run, run_samples_alone, worker_bytes
from cputrain.errors import CputrainError
from cputrain.measure.comparison import package_versions
from cputrain.measure.rounds import round_order


def main(argv: list[str]) -> int:
    """Run the requested groups of cases and print all runs as JSON; return the exit code."""
    request = json.loads(argv[0])
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # same for all
    try:
        results = []
        for group in request["groups"]:
            group_cases = cases(group, request["quick"])
            if not group_cases:
                print(
                    f"{group}: left out because Pillow is not installed: pip install pillow",
                    file=sys.stderr,
                )
            results += [compare_case(case, request["repeats"]) for case in group_cases]
            tensors.cache_clear()  # fork takes longer in a process with much memory
    except CputrainError as error:
        print(f"cputrain bench: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"versions": package_versions("spdl"), "cases": results}))
    return 0


def compare_case(case: LoaderCase, repeats: int) -> dict[str, Any]:
    """Run a case in all loaders, interleaved, and return its runs as JSON values.

    Raises:
        CputrainError: A loader yields other batches than torch's.
    """
    data = case.dataset()
    left_out = {contender.name: contender.why_not(case, data) for contender in CONTENDERS}
    runnable = [contender for contender in CONTENDERS if not left_out[contender.name]]
    runs: list[LoaderRun] = []
    expected = None if case.timed == "first batch" else _check_batches(case, runnable, data)
    for round_number in range(1, repeats + 1):
        if case.has_samples_alone:
            runs.append(run_samples_alone(case, data, round_number))
            _print_progress(runs[-1], repeats)
        for contender in round_order(runnable, round_number - 1):
            result = run(case, contender, data, round_number)
            expected = expected or (result.batches, result.last)
            if (result.batches, result.last) != expected:
                raise _mismatch_error(case, contender.name, (result.batches, result.last), expected)
            runs.append(result)
            _print_progress(result, repeats)
    return {
        "name": case.name,
        "title": case.title,
        "timed": case.timed,
        "memory": _worker_memory(case, runnable, data),
        "left_out": {name: reason for name, reason in left_out.items() if reason},
        "runs": [result.as_json() for result in runs],
    }


def _check_batches(
    case: LoaderCase, contenders: list[LoaderContender], data: Any
) -> tuple[int, tuple[float, ...]] | None:
    """Run one untimed epoch of each loader and compare the sums of every batch with torch's.

    Returns:
        The number of batches, and the sums of the last batch; None without loaders.
    """
    print(f"{case.title}: checking every batch of every loader", file=sys.stderr)
    reference = None
    for contender in contenders:
        sums = batch_sums(case, contender, data)
        if reference is None:
            reference = sums
        elif sums != reference:
            pairs = enumerate(zip(sums, reference, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), len(reference))
            raise _mismatch_error(
                case, contender.name, (len(sums), *sums[first:][:1]),
                (len(reference), *reference[first:][:1]),
            )  # fmt: skip
    return None if reference is None else (len(reference), reference[-1])


def _worker_memory(
    case: LoaderCase, contenders: list[LoaderContender], data: Any
) -> dict[str, list[int]]:
    """Return a worker's private bytes, with the data and with an empty dataset, by loader."""
    if case.empty_dataset is None or not os.path.isdir("/proc"):
        return {}
    print(f"{case.title}: measuring the memory of workers", file=sys.stderr)
    empty_data = case.empty_dataset()
    return {
        contender.name: [
            worker_bytes(case, contender, data),
            worker_bytes(case, contender, empty_data),
        ]
        for contender in contenders
    }


def _mismatch_error(case: LoaderCase, name: str, actual: object, expected: object) -> CputrainError:
    return CputrainError(
        f"the batches of {name!r} in {case.name}",
        f"must equal torch's: number of batches and sums {expected}",
        found=str(actual),
        do="A loader that yields other batches cannot be compared; please report it.",
    )


def _print_progress(result: LoaderRun, repeats: int) -> None:
    print(
        f"{result.case}: round {result.round_number} of {repeats}, "
        f"{result.contender} {result.seconds:.3g} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
