"""examples/ranks.py, but for the last rank, which is killed once in the middle."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import torch

RANKS = str(Path(__file__).parents[2] / "examples" / "ranks.py")

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    steps = [0]
    own = torch.optim.AdamW.step

    def step(*words, **named):
        steps[0] += 1
        if steps[0] == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return own(*words, **named)

    torch.optim.AdamW.step = step

sys.argv[0] = RANKS
runpy.run_path(RANKS, run_name="__main__")
