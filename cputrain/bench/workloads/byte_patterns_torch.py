"""Data made row by row, then learned by a small network, with torch's own pool and loader.

The counterpart of examples/byte_patterns.py: the same data, batches, weights and losses.
"""

import argparse
import hashlib
import json
import math
import random
import time

import torch
import torch.multiprocessing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, UNSEEN, BATCH = 512, 4_000, 64
PART = 500
MOMENTS = torch.arange(LENGTH)
RINGING = (-0.96) ** MOMENTS


def seed_all(first: int) -> None:
    """Seed random and torch for a chunk of rows, as examples/byte_patterns.py does."""
    digest = hashlib.blake2b(f"1,{first}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    torch.manual_seed(seed)


def record(rows: range) -> tuple[torch.Tensor, torch.Tensor]:
    seed_all(rows.start)
    recordings = torch.empty(len(rows), LENGTH, dtype=torch.uint8)
    answers = torch.empty(len(rows), 2)
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
    return recordings, answers


def make_data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [range(first, min(first + PART, rows)) for first in range(0, rows, PART)]
    # one thread in each worker avoids oversubscription
    with torch.multiprocessing.Pool(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = pool.map(record, parts)
    recordings, answers = zip(*made, strict=True)
    return torch.cat(recordings), torch.cat(answers)


def new_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(LENGTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )


def as_input(recordings: torch.Tensor) -> torch.Tensor:
    return recordings.float() / 64 - 2


def learn(
    loader: DataLoader[tuple[torch.Tensor, ...]],
    recordings: torch.Tensor,
    answers: torch.Tensor,
    goal: float,
    steps: int | None,
) -> tuple[list[float], float]:
    loss_of = nn.BCEWithLogitsLoss()
    losses: list[float] = []
    for weights in range(1, 4):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000, help="recordings (default: 40000)")
    parser.add_argument("--goal", type=float, default=0.98, help="accuracy (default: 0.98)")
    parser.add_argument("--json", action="store_true", help="end with a line of JSON, as always")
    parser.add_argument("--steps", type=int, help="how long to learn (default: to the goal)")
    options = parser.parse_args()
    rows = max(options.rows, UNSEEN + BATCH)
    if options.steps:
        rows = min(rows, UNSEEN + BATCH * options.steps)

    begin = time.perf_counter()
    recordings, answers = make_data(rows)
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
    result = {
        "losses": [*losses[:20], losses[-1]],
        # including data generation, divided by the steps
        "seconds_per_step": [(end - begin) / len(losses)],
        "samples_per_step": BATCH,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
