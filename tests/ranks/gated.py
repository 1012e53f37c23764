"""examples/ranks.py, which waits in the middle for a node to be killed, then for it to be back.

    gated.py STEP, and what the example takes

From that step on, the first rank waits for a file "killed", and one that is alone for another. A
file "atSTEP" says that the step is there.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks.py"


def main() -> None:
    """Train, as the example does."""
    gate = int(sys.argv.pop(1))
    train = runpy.run_path(str(EXAMPLE))["main"]
    made = train.__globals__["batch_of"]
    alone, first = os.environ["WORLD_SIZE"] == "1", os.environ["RANK"] == "0"

    def batch_of(step: int) -> object:
        if step == gate:
            Path(f"at{gate}").touch()
        while step >= gate and (alone or (first and not Path("killed").exists())):
            time.sleep(0.1)
        return made(step)

    train.__globals__["batch_of"] = batch_of
    train()


if __name__ == "__main__":
    main()
