"""Runs scripts, each in a fork of this process and a folder of its own: torch is loaded once.

    one_after_another.py FOLDER SCRIPT…

What a script prints is in FOLDER/NAME.out and NAME.err, how it ended in NAME.code; NAME is where it
ran.
"""

import os
import runpy
import sys

import torch
import torch._dynamo  # what the first optimizer loads


def run(folder: str, script: str) -> None:
    """The script, as python runs it; comes back in the fork, too."""
    base = os.path.join(folder, os.path.basename(script).removesuffix(".py"))
    os.makedirs(base)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        with open(f"{base}.code", "w") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
        return
    os.chdir(base)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{base}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = [script]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    assert torch._dynamo is not None
    for path in sys.argv[2:]:
        run(sys.argv[1], path)
