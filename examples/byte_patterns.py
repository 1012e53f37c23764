"""Data made row by row, by ordinary code on all cores; then a small network learns from it.

A sensor leaves recordings of 512 bytes. Does it hum, and was it knocked on? Both drown in noise:
the hum has any pitch and phase, the knock comes at any moment.

    python examples/byte_patterns.py
"""

import argparse
import hashlib
import json
import math
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from cputrain import DataLoader, fill

LENGTH, UNSEEN, BATCH = 512, 4_000, 64
MOMENTS = torch.arange(LENGTH)
RINGING = (-0.96) ** MOMENTS


def record(_rows: range, recordings: torch.Tensor, answers: torch.Tensor, _seed: int) -> None:
    """Some rows of the data; `fill` calls it in its workers, with torch seeded for these rows."""
    for recording, answer in zip(recordings, answers, strict=True):
        answer[:] = torch.rand(2) < 0.5
        hums, knocked = answer.tolist()
        pitch, phase, loudness, force, moment = torch.rand(5).tolist()
        signal = 128 + 20 * torch.randn(LENGTH)
        if hums:
            turns = (0.2 + 0.4 * pitch) * MOMENTS + math.tau * phase
            signal += (12 + 12 * loudness) * torch.sin(turns)
        if knocked:
            begin = int(448 * moment)
            signal[begin:] += (40 + 40 * force) * RINGING[: LENGTH - begin]
        recording[:] = signal.clamp_(0, 255)


def new_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(LENGTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )


def as_input(recordings: torch.Tensor) -> torch.Tensor:
    """Floats, of one batch at a time: bytes take a quarter of the memory for the whole data."""
    return recordings.float() / 64 - 2


def learn(
    loader: DataLoader,
    recordings: torch.Tensor,
    answers: torch.Tensor,
    goal: float,
    steps: int | None,
) -> tuple[list[float], float]:
    """The losses, and the accuracy with the recordings that are not in the loader."""
    loss_of = nn.BCEWithLogitsLoss()
    losses: list[float] = []
    for weights in range(1, 4):  # new ones if the goal is not reached with these
        torch.manual_seed(weights)
        model = new_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for epoch in range(1, 13):
            for some, expected in loader:
                loss = loss_of(model(as_input(some)), expected)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) == steps:
                    break
            with torch.no_grad():
                right = (model(as_input(recordings)) > 0) == (answers > 0.5)
            accuracy = right.float().mean().item()
            print(f"epoch {epoch:2d}  loss {losses[-1]:.6f}  accuracy {accuracy:.1%}", flush=True)
            if accuracy >= goal or len(losses) == steps:
                return losses, accuracy
    return losses, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000, help="recordings (default: 40000)")
    parser.add_argument("--goal", type=float, default=0.98, help="accuracy (default: 0.98)")
    parser.add_argument("--steps", type=int, help="how long to learn (default: to the goal)")
    parser.add_argument("--json", action="store_true", help="end with a line for cputrain bench")
    options = parser.parse_args()
    rows = max(options.rows, UNSEEN + BATCH)
    if options.steps:  # no more than they take
        rows = min(rows, UNSEEN + BATCH * options.steps)

    begin = time.perf_counter()
    recordings = torch.empty(rows, LENGTH, dtype=torch.uint8)
    answers = torch.empty(rows, 2)
    fill((recordings, answers), record, chunk=500, seed=1)
    made = time.perf_counter()

    loader = DataLoader(
        TensorDataset(recordings[UNSEEN:], answers[UNSEEN:]),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
    )
    known = recordings[:UNSEEN], answers[:UNSEEN]
    losses, accuracy = learn(loader, *known, options.goal, options.steps)
    end = time.perf_counter()

    digest = hashlib.sha256(recordings.numpy().data).hexdigest()[:12]
    print(f"{rows:,} recordings made in {made - begin:.1f} s ({digest})")
    print(f"{len(losses):,} steps in {end - made:.1f} s, {accuracy:.1%} of unseen answers right")
    if options.json:  # without times: the whole process is what is timed
        print(json.dumps({"losses": [*losses[:20], losses[-1]], "seconds_per_step": []}))


if __name__ == "__main__":
    main()
