"""Compare predicted and measured speed-ups of `cputrain diagnose`, for each workload.

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

from cputrain.bench import workloads
from cputrain.bench.compare import median
from cputrain.bench.diagnoses import busy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OWN_STEPS = 20
"""Steps of a script whose time is not counted as overhead of diagnosing."""

NEAR = 0.25
"""Relative error below which a prediction counts as accurate."""

WITHOUT_STEPS = {"byte_patterns_torch"}
"""Workloads that spend most of their time outside of training steps."""


def main(argv: list[str]) -> int:
    """Run all workloads and print the table."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.diagnoses")
    parser.add_argument("--rounds", type=int, default=3, help="each diagnoses every script once")
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("names", nargs="*", default=sorted({*workloads()} - WITHOUT_STEPS))
    parser.add_argument("--busy", type=int, default=0, help="diagnose beside so many processes")
    asked = parser.parse_args(argv)
    if asked.busy:
        return busy.main(asked.names, asked.busy)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.names}
    for number in range(asked.rounds):
        for name, rounds in found.items():
            rounds.append(once(name, asked.precision))
            print(f"{number + 1}: {name} {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
    print("| workload | the first remedy | predicted | measured | | beyond its own steps |")
    print("| --- | --- | --: | --: | --: | --: |")
    near = 0
    for name, rounds in found.items():
        costs = [one["cost"] for one in rounds]
        told = [one for one in rounds if one["predicted"]]
        if not told:
            print(f"| {name} | none | | | | {_spread(costs, 's')} |")
            continue
        predicted, measured = (
            [one[which] for one in told] for which in ("predicted", "measured")
        )  # fmt: skip
        part = median(predicted) / median(measured)
        near += abs(part - 1) <= NEAR
        options = ", ".join(dict.fromkeys(one["options"] for one in told))
        print(f"| {name} | {options} | {_spread(predicted, '×')} | {_spread(measured, '×')} | "
              f"{part - 1:+.0%} | {_spread(costs, 's')} |")  # fmt: skip
    print(f"\n{near} of {sum(any(one['predicted'] for one in each) for each in found.values())} "
          f"within {NEAR:.0%}.")  # fmt: skip
    return 0


def once(name: str, precision: str) -> dict[str, Any]:
    """Diagnose one workload; return predicted and measured speed-up and the overhead in s."""
    script = str(workloads()[name])
    began = time.perf_counter()
    _run([sys.executable, script, "--steps", str(OWN_STEPS)])
    own = time.perf_counter() - began
    words = [sys.executable, "-P", "-m", "cputrain.launch", "diagnose", "--json"]
    began = time.perf_counter()
    _run([*words, script])
    cost = time.perf_counter() - began - own
    document = json.loads(_run([*words, "--apply", "--precision", precision, script]))
    tried = {one["title"]: one for one in document["applied"] if one["measured"]}
    first = next((one for one in document["findings"] if one["title"] in tried), None)
    if first is None:
        return {"cost": cost, "predicted": None, "first": [one["title"] for one in
                document["findings"][:1]]}  # fmt: skip
    options = " ".join(f"`--{name.replace('_', '-')} {value}`"
                       for name, value in first["settings"].items())  # fmt: skip
    return {
        "cost": cost, "options": options, "predicted": first["speedup"],
        "measured": tried[first["title"]]["measured"],
        "every": {one["title"]: (one["predicted"], one["measured"]) for one in document["applied"]},
    }  # fmt: skip


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _spread(values: list[float], unit: str) -> str:
    digits = 2 if unit == "×" else 0
    low, high = min(values), max(values)
    said = f"{median(values):.{digits}f}{unit}"
    return said if len(values) == 1 else f"{said} ({low:.{digits}f}–{high:.{digits}f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
