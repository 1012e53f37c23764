"""Other launchers that run a script on CPUs, as far as they are installed. This loads no torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def peers() -> dict[str, tuple[str, ...]]:
    """The name of each, and the words before the script."""
    python = (sys.executable, "-m")
    found: dict[str, tuple[str, ...]] = {}
    if find_spec("torch") is not None:
        found["run_cpu"] = (*python, "torch.backends.xeon.run_cpu")
        found["torchrun"] = (*python, "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    if find_spec("accelerate") is not None:
        found["accelerate"] = (*python, "accelerate.commands.launch", "--cpu")
    return found
