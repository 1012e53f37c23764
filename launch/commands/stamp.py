"""`cputrain stamp`: stamps of the weights in checkpoints."""

from __future__ import annotations

import json

from cputrain.errors import UsageError
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.options import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = (Option(flag="--json", help="print the stamps as JSON"),)

COMMAND = Command(
    name="stamp",
    form="[options] CHECKPOINT ...",
    files="*.pt *.pth *.bin *.safetensors",
    summary="Shows a SHA-256 over the names, dtypes, shapes and bits of the tensors in a file of "
    "torch.save or of safetensors, and of each dictionary of tensors in it. Two trainings had the "
    "same results if the stamps are the same, as with cputrain launch --reproducible.",
    examples=(
        Example(line="cputrain stamp checkpoint.pt", does="all tensors, then each dictionary"),
        Example(line="cputrain stamp here.pt there.pt", does="compare two checkpoints"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)


def main(argv: Sequence[str]) -> int:
    """Print a line for each stamp: the stamp, the file, and the dictionary in it."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    if not parsed.rest:
        raise UsageError(
            "the command line",
            "must name a checkpoint",
            found="no file",
            do="For example: cputrain stamp checkpoint.pt",
        )
    from cputrain.reproduce.checkpoint import stamps_of_file

    stamps = {path: stamps_of_file(path) for path in parsed.rest}
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "stamps": stamps}, indent=1))
        return 0
    for path, stamps_by_part in stamps.items():
        for name, stamp in stamps_by_part.items():
            print(f"{stamp}  {path}:{name}" if name else f"{stamp}  {path}")
    return 0
