"""Runs scripts, each in a fork of this process and a folder of its own: what takes long to load is
loaded once.

    one_after_another.py FOLDER SCRIPT…

What a script prints is in FOLDER/NAME.out and NAME.err, how it ended in NAME.code; NAME is where it
ran.
"""

import os
import runpy
import sys
import traceback
from importlib import import_module

LOADED = ("torch._dynamo", "lightning", "accelerate", "transformers.trainer")
"""The first is what any optimizer loads."""


def run(folder: str, script: str) -> None:
    """The script, as python runs it."""
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
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take an interpreter with all of that apart takes longer than most scripts


if __name__ == "__main__":
    texts = [open(path).read() for path in sys.argv[2:]]  # noqa: SIM115
    for module in LOADED:
        top = module.partition(".")[0]
        if any(f"import {top}" in text or f"from {top}" in text for text in texts):
            import_module(module)
    for path in sys.argv[2:]:
        run(sys.argv[1], path)
