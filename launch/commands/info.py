"""`cputrain info`: show this machine's hardware, and how much of it this process may use."""

from __future__ import annotations

import json
import sys

from cputrain.errors import UsageError
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.files import NewFile
from cputrain.launch.options import Option
from cputrain.launch.sources import SOURCE_OPTIONS, chosen_source
from cputrain.machine import cores_within, read_machine
from cputrain.machine.opencl import read_opencl_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Machine
    from cputrain.machine.bandwidth import Bandwidth
    from cputrain.machine.source import Source

OPTIONS = (
    Option(flag="--json", help="print a JSON document instead of tables"),
    Option(flag="--backends", help="show the backends for torch's kernels instead of the machine"),
    Option(
        flag="--measure",
        help="measure memory bandwidth (two seconds); with --backends, examine them",
    ),
    *SOURCE_OPTIONS,
    Option(flag="--capture", takes="FILE", help="save the files that were read, for a bug report"),
    Option(flag="--force", help="overwrite the file of --capture"),
)

COMMAND = Command(
    name="info",
    form="[options]",
    summary="Shows this machine's hardware, and how much of it this process may use.",
    examples=(
        Example(line="cputrain info", does="cores, caches, memory, limits, devices"),
        Example(line="cputrain info --measure", does="measure the memory's bandwidth, too"),
        Example(line="cputrain info --capture machine.json", does="for a bug report"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)


def main(argv: Sequence[str]) -> int:
    """Print or capture the machine, or print its backends."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    if parsed.rest:
        raise UsageError(parsed.rest[0], "is not expected: cputrain info takes options only")
    source = chosen_source(parsed)
    if parsed.has("--measure") and not source.live:
        raise UsageError(
            "--measure", "works on this machine only", do="Leave out --sysroot or --from."
        )
    capture_path = parsed.values.get("--capture")
    if parsed.has("--backends"):
        if capture_path is not None or not source.live:
            raise UsageError(
                "--backends", "works on this machine only",
                do="Leave out --sysroot, --from and --capture.",
            )  # fmt: skip
        return _backends(measure=parsed.has("--measure"), as_json=parsed.has("--json"))
    if capture_path is not None:
        return _capture(source, capture_path, force=parsed.has("--force"))
    machine = read_machine(source)
    bandwidth = _bandwidth(machine, measure=parsed.has("--measure")) if source.live else None
    devices, opencl_problem = read_opencl_devices() if source.live else ([], "")
    if parsed.has("--json"):
        document = machine.document()
        document["machine"]["memory"]["bandwidth"] = bandwidth and bandwidth.as_json()
        document["opencl"] = {
            "devices": [device.as_json() for device in devices], "problem": opencl_problem or None
        }  # fmt: skip
        print(json.dumps(document, indent=1))
        return 0
    from cputrain.report.machines import show_machine, show_opencl
    from cputrain.report.terminal import console

    out = console()
    show_machine(out, machine, bandwidth)
    if source.live:
        show_opencl(out, devices, opencl_problem)
    if source.live:
        out.print("\nNext: cputrain plan train.py", style="dim")
    return 0


def _backends(*, measure: bool, as_json: bool) -> int:
    """Print the backends, examined anew if `measure`."""
    from cputrain.backends import choose_backend, collect_findings

    examined = collect_findings(read_machine(detail=False), examine=measure)
    if as_json:
        document = {
            "schema_version": 1,
            "backends": [finding.as_json() for finding in examined],
            "chosen": {
                "training": choose_backend(examined, training=True),
                "evaluation": choose_backend(examined, training=False),
            },
        }
        print(json.dumps(document, indent=1))
        return 0
    from cputrain.report.backends import show_backends
    from cputrain.report.terminal import console

    show_backends(console(), examined)
    return 0


def _capture(source: Source, capture_path: str, *, force: bool) -> int:
    """Save the files that describe the machine."""
    from cputrain.machine.capture import RecordingSource

    file = NewFile(capture_path, "--capture", force=force)
    recording = RecordingSource(source)
    read_machine(recording)
    text = json.dumps(recording.document(), indent=1) + "\n"
    file.write(text)
    print(
        f"{capture_path}: {len(text) / 1024:.0f} KiB, without host name, serial numbers and "
        f"user names. Read it with: cputrain info --from {capture_path}",
        file=sys.stderr,
    )
    return 0


def _bandwidth(machine: Machine, *, measure: bool) -> Bandwidth | None:
    """Return the memory bandwidth, measured now or cached; None if it was never measured."""
    from cputrain.machine.bandwidth import load_bandwidth, measure_bandwidth, save_bandwidth

    key = f"{machine.fingerprint()}, {machine.budget.physical_cores} usable cores"
    if measure:
        cores = cores_within(machine.topology, machine.budget.cpus)
        measured = measure_bandwidth(
            [core[0] for core in cores[: machine.budget.physical_cores]],
            memory_bytes=machine.budget.memory_bytes,
        )
        note = save_bandwidth(key, measured)
    else:
        cached, note = load_bandwidth(key)
        if cached is None:
            _print_note(note)
            return None
        measured = cached
    _print_note(note)
    return measured


def _print_note(note: str | None) -> None:
    if note:
        print(f"cputrain info: {note}", file=sys.stderr)
