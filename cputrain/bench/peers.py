"""Other launchers for CPU training, as far as they are installed; torch is not imported."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def peers() -> dict[str, tuple[str, ...]]:
    """Return the argument list that precedes the script, by launcher name."""
    python = (sys.executable, "-m")
    found: dict[str, tuple[str, ...]] = {}
    if find_spec("torch") is not None:
        found["run_cpu"] = (*python, "torch.backends.xeon.run_cpu")
        found["torchrun"] = (*python, "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    if find_spec("accelerate") is not None:
        found["accelerate"] = (*python, "accelerate.commands.launch", "--cpu")
    return found
