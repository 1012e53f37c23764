"""Compare the speed-ups that `cputrain diagnose` predicts with measured ones, for each workload.

    python -m cputrain.bench.diagnoses --rounds 3 gpt lstm …

prints a table with medians over the rounds: the speed-up predicted by the first finding whose
remedy is an option, the speed-up measured with that option alone, and the time that diagnosing took
beyond the script's first 20 steps. The first diagnosis measures the machine's roof and caches it.

    python -m cputrain.bench.diagnoses --busy 2 gpt lstm …

diagnoses each workload beside two spinning processes instead, measures the roof anew for each, and
searches the output for physically impossible figures. It exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median

from cputrain.bench import workloads
from cputrain.bench.diagnoses import busy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NUM_SCRIPT_STEPS = 20
"""Steps whose time, measured without diagnosing, is subtracted to get the overhead."""

MAX_RELATIVE_ERROR = 0.25
"""Relative error below which a prediction counts as accurate."""

EXCLUDED = {"byte_patterns_torch"}
"""Workloads that are not diagnosed: most of their time is not spent in training steps."""


def main(argv: list[str]) -> int:
    """Diagnose the named workloads in each round and print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.diagnoses")
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds; each diagnoses every workload once"
    )
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("names", nargs="*", default=sorted({*workloads()} - EXCLUDED))
    parser.add_argument(
        "--busy", type=int, default=0, help="number of busy processes to diagnose beside"
    )
    args = parser.parse_args(argv)
    if args.busy:
        return busy.main(args.names, args.busy)
    rounds_by_name: dict[str, list[dict[str, Any]]] = {name: [] for name in args.names}
    for number in range(args.rounds):
        for name, rounds in rounds_by_name.items():
            rounds.append(diagnose_once(name, args.precision))
            print(f"{number + 1}: {name} {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
    print("| workload | first remedy | predicted | measured | error | overhead |")
    print("| --- | --- | --: | --: | --: | --: |")
    num_accurate = 0
    for name, rounds in rounds_by_name.items():
        overheads_s = [result["cost"] for result in rounds]
        predicted_rounds = [result for result in rounds if result["predicted"]]
        if not predicted_rounds:
            print(f"| {name} | none | | | | {_format_range(overheads_s, 's')} |")
            continue
        predicted, measured = (
            [result[key] for result in predicted_rounds] for key in ("predicted", "measured")
        )  # fmt: skip
        ratio = median(predicted) / median(measured)
        num_accurate += abs(ratio - 1) <= MAX_RELATIVE_ERROR
        options = ", ".join(dict.fromkeys(result["options"] for result in predicted_rounds))
        print(f"| {name} | {options} | {_format_range(predicted, '×')} | "
              f"{_format_range(measured, '×')} | {ratio - 1:+.0%} | "
              f"{_format_range(overheads_s, 's')} |")  # fmt: skip
    num_predicted = sum(
        any(result["predicted"] for result in results) for results in rounds_by_name.values()
    )
    print(f"\n{num_accurate} of {num_predicted} predictions within {MAX_RELATIVE_ERROR:.0%}.")
    return 0


def diagnose_once(name: str, precision: str) -> dict[str, Any]:
    """Diagnose one workload; return predicted and measured speed-ups and the overhead in s."""
    script = str(workloads()[name])
    start_s = time.perf_counter()
    _run([sys.executable, script, "--steps", str(NUM_SCRIPT_STEPS)])
    script_s = time.perf_counter() - start_s
    command = [sys.executable, "-P", "-m", "cputrain.launch", "diagnose", "--json"]
    start_s = time.perf_counter()
    _run([*command, script])
    overhead_s = time.perf_counter() - start_s - script_s
    document = json.loads(_run([*command, "--apply", "--precision", precision, script]))
    applied = {entry["title"]: entry for entry in document["applied"] if entry["measured"]}
    finding = next((entry for entry in document["findings"] if entry["title"] in applied), None)
    if finding is None:
        return {"cost": overhead_s, "predicted": None, "first": [entry["title"] for entry in
                document["findings"][:1]]}  # fmt: skip
    options = " ".join(f"`--{name.replace('_', '-')} {value}`"
                       for name, value in finding["settings"].items())  # fmt: skip
    return {
        "cost": overhead_s, "options": options, "predicted": finding["speedup"],
        "measured": applied[finding["title"]]["measured"],
        "every": {entry["title"]: (entry["predicted"], entry["measured"])
                  for entry in document["applied"]},
    }  # fmt: skip


def _run(command: list[str]) -> str:
    """Run a command and return its stdout; exit with its stderr if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed with exit code {process.returncode}:\n{process.stderr}"
        )
    return process.stdout


def _format_range(values: list[float], unit: str) -> str:
    """Format the median and the range of several rounds."""
    digits = 2 if unit == "×" else 0
    low, high = min(values), max(values)
    text = f"{median(values):.{digits}f}{unit}"
    return text if len(values) == 1 else f"{text} ({low:.{digits}f}–{high:.{digits}f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
