"""The `cputrain` command: its verbs, one line each."""

from __future__ import annotations

import sys

from cputrain.errors import CputrainError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "launch": "run a training script faster, unchanged",
    "info": "what this machine is, and what of it may be used",
    "plan": "what launch would do, with every reason",
    "bench": "plain python against cputrain, side by side",
}
"""Each is a module of cputrain.launch.commands with `main(argv) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; its exit code, or that of the error that ended it."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words.pop(0) if words else "--help"
    try:
        return _run(verb, words)
    except CputrainError as error:
        prefix = f"cputrain {verb}" if verb in VERBS else "cputrain"
        print(f"{prefix}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read our output has enough
        sys.stderr.close()
        return 141
    except KeyboardInterrupt:
        return 130


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
