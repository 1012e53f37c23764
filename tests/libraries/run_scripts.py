"""Runs scripts, each in a fork of this process: what takes long to import is imported once.

    run_scripts.py FOLDER RUNS

RUNS is JSON: for each run a list of its name, its script and its arguments. What a run prints is in
FOLDER/NAME.out and NAME.err, how it ended in NAME.code, and the line of cputrain in NAME.line;
FOLDER/NAME is its working folder.
"""

import json
import os
import runpy
import sys
import traceback
from importlib import import_module

LOADED = ("torch._dynamo", "lightning", "accelerate", "transformers.trainer", "torchmetrics")


def run(folder, name, script, args):
    base = os.path.join(folder, name)
    os.makedirs(base, exist_ok=True)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        with open(f"{base}.code", "w") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
        return
    os.chdir(base)
    for descriptor, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{base}.{kind}", os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(script)
    if name.startswith("timm"):  # others look for torchvision, which may be one for CUDA
        sys.path.append(os.environ["TORCHVISION_FOLDER"])
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
    if "cputrain.runtime.state" in sys.modules:
        applied = sys.modules["cputrain.runtime.state"].NOW.applied.values()
        with open(f"{base}.line", "w") as file:
            file.write(", ".join(filter(None, (each.describe() for each in applied))))
    os._exit(code)  # to take an interpreter with all of that apart takes longer than most scripts


if __name__ == "__main__":
    scripts = json.loads(sys.argv[2])
    texts = [open(script).read() for _, script, *_ in scripts]  # noqa: SIM115
    for module in LOADED:
        top = module.partition(".")[0]
        if any(f"import {top}" in text or f"from {top}" in text for text in texts):
            import_module(module)
    for name, script, *args in scripts:
        run(sys.argv[1], name, script, args)
