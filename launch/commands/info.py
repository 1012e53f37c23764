"""`cputrain info`: what this machine is, and what of it may be used."""

from __future__ import annotations

import json
import sys

from cputrain.errors import UsageError
from cputrain.launch.files import NewFile
from cputrain.launch.options import Option, parse, usage
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
    Option(flag="--json", help="one JSON document instead of tables"),
    Option(flag="--backends", help="tell of other kernels for torch, in the machine's place"),
    Option(
        flag="--measure",
        help="measure memory bandwidth, in about two seconds; with --backends, examine them",
    ),
    *SOURCE_OPTIONS,
    Option(flag="--capture", takes="FILE", help="save the files that were read, for a bug report"),
    Option(flag="--force", help="let --capture overwrite"),
    Option(flag="--help", short="-h", help="show this and stop"),
)


def main(argv: Sequence[str]) -> int:
    """Print the machine, measure or capture it."""
    parsed = parse(argv, OPTIONS, "info")
    if parsed.has("--help"):
        print(
            usage(
                "info",
                "[options]",
                "Tells what this machine is, and what of it may be used.",
                {"options": OPTIONS},
            )
        )
        return 0
    if parsed.rest:
        raise UsageError(parsed.rest[0], "is not wanted: cputrain info takes options only")
    source = chosen_source(parsed)
    if parsed.has("--measure") and not source.live:
        raise UsageError(
            "--measure", "works on this machine only", do="Leave out --sysroot or --from."
        )
    path = parsed.values.get("--capture")
    if parsed.has("--backends"):
        if path is not None or not source.live:
            raise UsageError(
                "--backends", "works on this machine only",
                do="Leave out --sysroot, --from and --capture.",
            )  # fmt: skip
        return _backends(measure=parsed.has("--measure"), as_json=parsed.has("--json"))
    if path is not None:
        return _capture(source, path, force=parsed.has("--force"))
    machine = read_machine(source)
    bandwidth = _bandwidth(machine, measure=parsed.has("--measure")) if source.live else None
    devices, problem = read_opencl_devices() if source.live else ([], "")
    if parsed.has("--json"):
        document = machine.document()
        document["machine"]["memory"]["bandwidth"] = bandwidth and bandwidth.as_json()
        document["opencl"] = {
            "devices": [one.as_json() for one in devices], "problem": problem or None
        }  # fmt: skip
        print(json.dumps(document, indent=1))
        return 0
    from cputrain.report.machines import show_machine, show_opencl
    from cputrain.report.terminal import console

    out = console()
    show_machine(out, machine, bandwidth)
    if source.live:
        show_opencl(out, devices, problem)
    if source.live:
        out.print("\nWhat would be done with it: cputrain plan train.py", style="dim")
    return 0


def _backends(*, measure: bool, as_json: bool) -> int:
    from cputrain.backends import choose_backend, collect_findings

    found = collect_findings(read_machine(detail=False), examine=measure)
    if as_json:
        document = {
            "schema_version": 1,
            "backends": [one.as_json() for one in found],
            "chosen": {
                "training": choose_backend(found, training=True),
                "evaluation": choose_backend(found, training=False),
            },
        }
        print(json.dumps(document, indent=1))
        return 0
    from cputrain.report.backends import show_backends
    from cputrain.report.terminal import console

    show_backends(console(), found)
    return 0


def _capture(source: Source, path: str, *, force: bool) -> int:
    from cputrain.machine.capture import RecordingSource

    file = NewFile(path, "--capture", force=force)
    recording = RecordingSource(source)
    read_machine(recording)
    text = json.dumps(recording.document(), indent=1) + "\n"
    file.write(text)
    print(
        f"{path}: {len(text) / 1024:.0f} KiB, without host name, serial numbers and user names. "
        f"Look at it with: cputrain info --from {path}",
        file=sys.stderr,
    )
    return 0


def _bandwidth(machine: Machine, *, measure: bool) -> Bandwidth | None:
    from cputrain.machine.bandwidth import load_bandwidth, measure_bandwidth, save_bandwidth

    key = f"{machine.fingerprint()}, {machine.budget.physical_cores} usable cores"
    if measure:
        cores = cores_within(machine.topology, machine.budget.cpus)
        found = measure_bandwidth(
            [core[0] for core in cores[: machine.budget.physical_cores]],
            memory_bytes=machine.budget.memory_bytes,
        )
        problem = save_bandwidth(key, found)
    else:
        loaded, problem = load_bandwidth(key)
        if loaded is None:
            _note(problem)
            return None
        found = loaded
    _note(problem)
    return found


def _note(problem: str | None) -> None:
    if problem:
        print(f"cputrain info: {problem}", file=sys.stderr)
