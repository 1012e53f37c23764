"""Cases of the benchmark, and the ways to run many trainings."""

from __future__ import annotations

CASES = {
    "ppo": "policy of reinforcement learning, 8-64-64-4, batches of 64",
    "mlp": "network of three layers, 512-256-256-10, batches of 128",
    "cnn": "two convolutions with batch norm, 28×28 images",
    "tabular": "network for tables with embeddings and residual blocks",
    "data": "network of two layers on 400 MB of data, the same for all trainings",
}
"""Titles by name; the functions are in `trainings`."""

STEPS = {"ppo": 3000, "mlp": 4000, "cnn": 250, "tabular": 2000, "data": 1500}
"""Steps of each training: some seconds on one core."""

WAYS = {
    "in turn": "python, one after another",
    "at once": "python, all at once, as xargs -P runs them",
    "joblib": "joblib.Parallel(n_jobs=-1)",
    "ray": "ray.remote(num_cpus=1)",
    "many": "cputrain many",
    "recorded": "cputrain many --record-step=auto",
    "stacked": "cputrain many, of a script with Stack",
    "Many": "cputrain.Many",
}
"""Ways to run the trainings, in the order of the tables."""

OURS = ("many", "recorded", "stacked", "Many")
"""Ways of this package."""
