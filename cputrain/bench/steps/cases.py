"""Networks of the benchmark, and the ways to take their steps."""

from __future__ import annotations

CASES = {
    "ppo": "PPO, 8-64-64-4, batch 64, Adam",
    "sac": "SAC, 32-256-256-8, batch 256, Adam",
    "mlp": "MLP, 512-128-128-2, batch 64, Adam",
    "gru": "GRU forecaster, 8-64-1, 16 time steps, batch 32, Adam",
    "gnn": "Graph network, 64 nodes, 16-32-32-4, Adam",
    "tabular": "Tabular ResNet, 4 blocks of width 128, batch 256, AdamW",
}
"""Title of each network."""

WAYS = {
    "eager": "eager",
    "fused": "fused optimizer",
    "compiled": "torch.compile(model)",
    "recorded": "recorded loop",
    "step": "Step",
    "replayed": "Step without a compiler",
}
"""Title of each way to take a step; speed-ups are over the first."""
