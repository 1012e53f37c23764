"""Entry point of the `cputrain` command: its verbs, their summaries and exit codes."""

from __future__ import annotations

import sys
from io import TextIOWrapper

from cputrain.errors import CputrainError, InternalError, LaunchError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "launch": "run a training script faster, unchanged",
    "many": "run many trainings beside one another, each on cores of its own",
    "diagnose": "find out why a script is slower than the machine allows, and what to change",
    "tune": "find the fastest plan for a script by measuring, and save it for launch",
    "bench": "compare the throughput of plain python and cputrain",
    "plan": "show what launch would do, and why",
    "info": "show this machine's hardware, and how much of it this process may use",
    "report": "show a saved diagnosis, or compare two of them",
    "verify": "compare a script's gradients with sharded batches and with whole ones",
    "stamp": "show stamps of the weights in checkpoints: equal if all bits are",
    "completions": "print completions for bash, zsh or fish",
}
"""Summary by verb; each is a module of cputrain.launch.commands with `main` and `COMMAND`."""

REPORT = "Please report this with the output of: cputrain info --capture machine.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit code, or that of the error that ended it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = arguments.pop(0) if arguments else "--help"
    prefix = f"cputrain {verb}" if verb in VERBS else "cputrain"
    if isinstance(sys.stdout, TextIOWrapper):  # escape characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is None and verb != "launch":  # a launched script must inherit it closed
        import os

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _run(verb, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except CputrainError as error:
        return _fail(prefix, error)
    except BrokenPipeError:  # the reader of standard output has closed it
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        return _fail(prefix, LaunchError("a system call", "failed", found=str(error)))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # report a bug of this package in one line, as other errors
        location = _location_of(error)
        internal_error = InternalError(
            location, "failed", found=f"{type(error).__name__}: {error}", do=REPORT
        )
        return _fail(prefix, internal_error)


def _location_of(error: BaseException) -> str:
    """Return the innermost frame of this package in an error's traceback, as file:line."""
    frame, location = error.__traceback__, "cputrain"
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if "cputrain" in path or "launch" in path:
            location = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    return location


def _fail(prefix: str, error: CputrainError) -> int:
    if sys.stderr is not None:  # print(file=None) would write to standard output
        print(f"{prefix}: {error}", file=sys.stderr)
    return error.exit_code


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    import os

    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: str, arguments: list[str]) -> int:
    """Run a verb, or print the help or the version; raise UsageError for anything else."""
    if verb in ("-h", "--help", "help"):
        if not arguments:
            print(_help())
            return 0
        verb, arguments = arguments[0], ["--help"] if arguments[0] in VERBS else []
    if verb in ("-V", "--version", "version"):
        from cputrain import __version__

        print(f"cputrain {__version__}")
        return 0
    if verb not in VERBS:
        raise _unknown_verb(verb, arguments)
    from importlib import import_module

    return int(import_module(f"cputrain.launch.commands.{verb}").main(arguments))


def _unknown_verb(word: str, arguments: list[str]) -> UsageError:
    from shlex import join

    from cputrain.launch.hints import command_hint

    is_launch = word.endswith(".py") or (word.startswith("-") and bool(arguments))
    verb = "launch" if is_launch else command_hint(word, VERBS)
    line = join([verb, *([word] if is_launch else []), *arguments])
    return UsageError(
        word,
        f"is not a command of cputrain; the commands are {', '.join(VERBS)}",
        do=f"Did you mean: cputrain {line}" if verb else "See: cputrain --help",
    )


def _help() -> str:
    from cputrain.launch.command import described, terminal_width

    verbs = "\n".join(
        line
        for verb, summary in VERBS.items()
        for line in described(f"  {verb}", summary, terminal_width(), indent=16)
    )
    return (
        "Usage: cputrain COMMAND [options]\n\n"
        "Makes PyTorch training on CPUs fast without changes to the script.\n\n"
        f"Commands:\n{verbs}\n\n"
        "The options of a command: cputrain help COMMAND. Start with: cputrain launch train.py"
    )
