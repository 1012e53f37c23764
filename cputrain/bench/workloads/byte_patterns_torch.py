"""Data generation in torch's process pool, then training of a small MLP with torch's DataLoader.

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
CHUNK_ROWS = 500
MOMENTS = torch.arange(LENGTH)
RINGING = (-0.96) ** MOMENTS


def seed_all(first: int) -> None:
    """Seed random and torch for a chunk of rows, as examples/byte_patterns.py does."""
    digest = hashlib.blake2b(f"1,{first}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    torch.manual_seed(seed)


def record(rows: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the recordings and answers of some rows, seeded by the first row's number."""
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
    """Return all recordings and answers, generated in a process pool."""
    row_ranges = [
        range(first, min(first + CHUNK_ROWS, rows)) for first in range(0, rows, CHUNK_ROWS)
    ]
    # one thread in each worker avoids oversubscription
    with torch.multiprocessing.Pool(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        chunks = pool.map(record, row_ranges)
    recordings, answers = zip(*chunks, strict=True)
    return torch.cat(recordings), torch.cat(answers)


def new_model() -> nn.Module:
    """Return an untrained classifier."""
    return nn.Sequential(
        nn.Linear(LENGTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )


def as_input(recordings: torch.Tensor) -> torch.Tensor:
    """Convert bytes to floats; one batch at a time, as floats take four times the memory."""
    return recordings.float() / 64 - 2


def learn(
    loader: DataLoader[tuple[torch.Tensor, ...]],
    recordings: torch.Tensor,
    answers: torch.Tensor,
    goal: float,
    steps: int | None,
) -> tuple[list[float], float]:
    """Train until the accuracy on the unseen rows reaches `goal` or `steps` steps are done.

    Returns:
        The losses, and the accuracy on the unseen rows.
    """
    loss_fn = nn.BCEWithLogitsLoss()
    losses: list[float] = []
    for model_seed in range(1, 4):
        torch.manual_seed(model_seed)
        model = new_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for epoch in range(1, 13):
            for batch, expected in loader:
                loss = loss_fn(model(as_input(batch)), expected)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) == steps:
                    break
            with torch.no_grad():
                is_correct = (model(as_input(recordings)) > 0) == (answers > 0.5)
            accuracy = is_correct.float().mean().item()
            print(f"epoch {epoch:2d}  loss {losses[-1]:.6f}  accuracy {accuracy:.1%}", flush=True)
            if accuracy >= goal or len(losses) == steps:
                return losses, accuracy
    return losses, accuracy


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=40_000, help="number of recordings (default: 40000)"
    )
    parser.add_argument(
        "--goal", type=float, default=0.98, help="accuracy at which training stops (default: 0.98)"
    )
    parser.add_argument(
        "--json", action="store_true", help="no effect: the last line is JSON anyway"
    )
    parser.add_argument(
        "--steps", type=int, help="maximum number of steps (default: until --goal is reached)"
    )
    options = parser.parse_args()
    rows = max(options.rows, UNSEEN + BATCH)
    if options.steps:
        rows = min(rows, UNSEEN + BATCH * options.steps)

    begin = time.perf_counter()
    recordings, answers = make_data(rows)
    generated = time.perf_counter()

    loader = DataLoader(
        TensorDataset(recordings[UNSEEN:], answers[UNSEEN:]),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
    )
    unseen = recordings[:UNSEEN], answers[:UNSEEN]
    losses, accuracy = learn(loader, *unseen, options.goal, options.steps)
    end = time.perf_counter()

    digest = hashlib.sha256(recordings.numpy().data).hexdigest()[:12]
    print(f"{rows:,} recordings made in {generated - begin:.1f} s ({digest})")
    print(
        f"{len(losses):,} steps in {end - generated:.1f} s, {accuracy:.1%} of unseen answers right"
    )
    result = {
        "losses": [*losses[:20], losses[-1]],
        # including data generation, divided by the steps
        "seconds_per_step": [(end - begin) / len(losses)],
        "samples_per_step": BATCH,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
