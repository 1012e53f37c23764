"""Other installed launchers for CPU training: torch's, torchrun, accelerate; imports no torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def peers() -> dict[str, tuple[str, ...]]:
    """Return the arguments to put before the script, by name of each installed launcher."""
    python = (sys.executable, "-m")
    launchers: dict[str, tuple[str, ...]] = {}
    if find_spec("torch") is not None:
        launchers["run_cpu"] = (*python, "torch.backends.xeon.run_cpu")
        launchers["torchrun"] = (
            *python,
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=1",
        )
    if find_spec("accelerate") is not None:
        launchers["accelerate"] = (*python, "accelerate.commands.launch", "--cpu")
    return launchers
