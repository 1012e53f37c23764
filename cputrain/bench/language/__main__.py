"""Compare fine-tuning under plain python and under a launch.

    python -m cputrain.bench.language --rounds 3 60:full 60:lora 125:full 125:lora

Each word is a size in millions of parameters and a method. A round is a run of each; the rows have
medians over the rounds of the median step. Memory is that of all processes without files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from cputrain.bench.learning import LAUNCH
from cputrain.bench.markdown import size
from cputrain.bench.memory import Run, difference, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = str(Path(__file__).with_name("finetune.py"))


def compare(word: str, rounds: int, options: Sequence[str], launch: Sequence[str]) -> str:
    """Return a row: tokens a second and peaks by both ways, and how far apart the losses are."""
    num_parameters, _, method = word.partition(":")
    script = [SCRIPT, "--size", num_parameters, "--method", method, *options]
    plain: list[Run] = []
    launched: list[Run] = []
    for _ in range(rounds):
        plain.append(run((sys.executable, *script)))
        launched.append(run((*LAUNCH, *launch, *script)))
    for done in (*plain, *launched):
        if done.error:
            return f"| {word} | {done.error} | | | | | | |"
    times = [median(done.step_s for done in runs) for runs in (plain, launched)]
    peaks = [max(done.peak_bytes for done in runs) for runs in (plain, launched)]
    speedups = sorted(
        first.step_s / second.step_s for first, second in zip(plain, launched, strict=True)
    )
    num_tokens = plain[0].samples_per_step or 0.0
    return (
        f"| {word} | {num_tokens / times[0]:.0f} | {num_tokens / times[1]:.0f} | "
        f"{times[0] / times[1]:.2f} ({speedups[0]:.2f} to {speedups[-1]:.2f}) | "
        f"{size(peaks[0])} | {size(peaks[1])} | {peaks[1] / peaks[0]:.2f} | "
        f"{difference(launched[0], plain[0]):.0e} |"
    )


def main() -> None:
    """Print a row for each word."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", metavar="SIZE:METHOD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", default="4")
    parser.add_argument("--launch", default="", help="options of the launch")
    options = parser.parse_args()
    print("| | tokens/s, python | launch | times as fast | peak, python | launch | part | losses |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for word in options.words:
        row = compare(word, options.rounds, ["--steps", options.steps], options.launch.split())
        print(row, flush=True)


if __name__ == "__main__":
    main()
