"""The `cputrain` command: its verbs, one line each."""

from __future__ import annotations

import sys
from io import TextIOWrapper

from cputrain.errors import CputrainError, InternalError, LaunchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "launch": "run a training script faster, unchanged",
    "info": "what this machine is, and what of it may be used",
    "plan": "what launch would do, with every reason",
    "tune": "find the fastest plan for a script by measuring, and keep it",
    "diagnose": "why a script is slower than the machine allows, and what to do about it",
    "report": "a diagnosis that was kept, once more, or two of them side by side",
    "verify": "how far a batch in parts is from the whole one, on a script's own steps",
    "bench": "plain python against cputrain, side by side",
}
"""Each is a module of cputrain.launch.commands with `main(argv) -> int`."""

REPORT = "Please report this with the output of: cputrain info --capture machine.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; its exit code, or that of the error that ended it."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words.pop(0) if words else "--help"
    prefix = f"cputrain {verb}" if verb in VERBS else "cputrain"
    if isinstance(sys.stdout, TextIOWrapper):  # what the terminal's encoding lacks is spelled out
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is None and verb != "launch":  # a launched script is to find it as it is
        import os

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _run(verb, words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except CputrainError as error:
        return _fail(prefix, error)
    except BrokenPipeError:  # whoever read our output has enough
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        return _fail(prefix, LaunchError("the system", "refused", found=str(error)))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the edge: a fault of ours is told in a line, like all the others
        place = _place_of(error)
        fault = InternalError(place, "failed", found=f"{type(error).__name__}: {error}", do=REPORT)
        return _fail(prefix, fault)


def _place_of(error: BaseException) -> str:
    """The line of ours where an error was raised, as file:line."""
    frame, place = error.__traceback__, "cputrain"
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if "cputrain" in path or "launch" in path:
            place = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _fail(prefix: str, error: CputrainError) -> int:
    if sys.stderr is not None:  # print(file=None) is standard output
        print(f"{prefix}: {error}", file=sys.stderr)
    return error.exit_code


def _drop_output() -> None:
    """Let the interpreter flush what is left into nothing, instead of failing once more."""
    import os

    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: str, words: list[str]) -> int:
    if verb in ("-h", "--help", "help"):
        print(_help())
        return 0
    if verb in ("-V", "--version"):
        from cputrain import __version__

        print(f"cputrain {__version__}")
        return 0
    if verb not in VERBS:
        from difflib import get_close_matches

        from cputrain.errors import UsageError

        close = get_close_matches(verb, VERBS, n=1)
        looks_like_script = verb.endswith(".py")
        raise UsageError(
            verb,
            f"is no command of cputrain; those are {', '.join(VERBS)}",
            do=f"Say: cputrain launch {verb}"
            if looks_like_script
            else f"Did you mean {close[0]}?"
            if close
            else "cputrain --help tells what each does.",
        )
    from importlib import import_module

    return int(import_module(f"cputrain.launch.commands.{verb}").main(words))


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10}{summary}" for verb, summary in VERBS.items())
    return (
        "usage: cputrain COMMAND [options]\n\n"
        "PyTorch training on CPUs, made fast without changing the script.\n\n"
        f"{verbs}\n\n"
        "cputrain COMMAND --help tells more. Start with: cputrain launch train.py"
    )
