"""Networks of the benchmark, and the ways to take their steps."""

from __future__ import annotations

CASES = {
    "ppo": "PPO, 8-64-64-4, batch 64, Adam",
    "sac": "SAC, 32-256-256-8, batch 256, Adam",
    "mlp": "MLP, 512-128-128-2, batch 64, Adam",
    "gru": "GRU forecaster, 8-64-1, 16 time steps, batch 32, Adam",
    "gnn": "Graph network, 64 nodes, 16-32-32-4, Adam",
    "tabular": "Tabular ResNet, 4 blocks of width 128, batch 256, AdamW",
    "population": "16 PPO networks, 8-64-64-4, batch 64, Adam",
    "ensemble": "8 MLPs, 512-128-128-2, batch 64, Adam",
}
"""Title of each network."""

POPULATIONS = {"population": 16, "ensemble": 8}
"""Number of networks of the cases that train several."""

IN_JAX = frozenset({"ppo", "sac", "mlp"})
"""Cases that are made in JAX, too."""

WAYS = {
    "eager": "eager",
    "fused": "fused optimizer",
    "compiled": "torch.compile(model)",
    "recorded": "recorded loop",
    "step": "Step",
    "replayed": "Step without a compiler",
    "stack": "Stack",
    "jax": "JAX with Optax",
}
"""Title of each way to take a step; speed-ups are over the first."""


def ways_of(case: str, *, quick: bool = False, has_jax: bool = False) -> list[str]:
    """Return the keys of the ways to take a step of a case; those that compile unless quick."""
    ways = ["eager", "fused", "stack"] if case in POPULATIONS else list(WAYS)[:-2]
    ways += ["jax"] if has_jax and case in IN_JAX else []
    return [way for way in ways if way in {"eager", "fused", "replayed"}] if quick else ways
