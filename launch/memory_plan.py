"""`cputrain plan --memory`: run the first steps of a script, and show what takes its memory."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.plan.plan import Plan
    from cputrain.target import Target

NUM_STEPS = 4
"""Steps that are measured: in the first ones optimizers make their state, and memory is kept."""

TITLES = {
    "python": "Python and libraries",
    "data": "data, and what else the script has made",
    "parameters": "parameters and buffers",
    "gradients": "gradients",
    "optimizer": "state of optimizers",
    "activations": "activations that backward needs",
    "temporary": "temporary tensors, and free memory of the heap",
    "workers": "worker processes",
}
"""Parts of the peak."""

MAX_LAYERS = 8
"""Rows of the table of layers."""


def show_memory(parsed: Parsed, plan: Plan, launch_target: Target, machine: Machine) -> int:
    """Measure the first steps of a script under a plan, and print the peak and its parts."""
    document = memory_document(parsed, plan, launch_target, machine)
    if parsed.has("--json"):
        print(json.dumps(document, indent=1))
    else:
        _print_memory(document["memory"])
    return 0


def memory_document(
    parsed: Parsed, plan: Plan, launch_target: Target, machine: Machine
) -> dict[str, Any]:
    """Return the plan's document with the script's memory.

    Raises:
        UsageError: The script takes no steps.
    """
    from cputrain.launch.commands.tune import recorded_document

    measured = recorded_document(
        parsed, launch_target, dict(plan.settings), {"memory": NUM_STEPS},
        rule="must train for some steps", nothing="no optimizer took a step",
    )  # fmt: skip
    limit_bytes = plan.values.get("memory_limit") or machine.budget.memory_bytes
    return {**plan.document(), "memory": _memory(measured, limit_bytes)}


def _memory(measured: dict[str, Any], limit_bytes: int | None) -> dict[str, Any]:
    """Return the part of the document about memory, with what larger batches would need."""
    parts, peak_bytes = measured["parts"], measured["peak_bytes"]
    memory = {
        "peak_bytes": peak_bytes,
        "parts": parts,
        "layers": [{"name": name, "saved_bytes": size} for name, size in measured["layers"]],
        "limit_bytes": limit_bytes,
        "batch": None,
        "bytes_per_sample": None,
        "largest_batch": None,
    }
    forwards = measured["activations"]
    if len(forwards) < 2:
        return memory
    small, whole = forwards
    slope = (whole["bytes"] - small["bytes"]) / (whole["batch"] - small["batch"])
    # temporary tensors grow as activations do
    varying_bytes = parts["activations"] + parts["temporary"]
    per_sample = slope * varying_bytes / max(1, parts["activations"])
    memory |= {"batch": whole["batch"], "bytes_per_sample": round(per_sample)}
    if limit_bytes is not None and per_sample > 0:
        more = (limit_bytes - peak_bytes) / per_sample
        memory["largest_batch"] = max(0, int(whole["batch"] + more))
    return memory


def _print_memory(memory: dict[str, Any]) -> None:
    from cputrain.bench.markdown import size
    from cputrain.report.terminal import console, show_table

    out = console()
    rows = [
        (TITLES[name], size(num_bytes)) for name, num_bytes in memory["parts"].items() if num_bytes
    ]
    title = f"{size(memory['peak_bytes'])} at the peak of a step"
    show_table(out, ("part", "memory"), rows, title=title)
    layers = memory["layers"][:MAX_LAYERS]
    if layers:
        rows = [(layer["name"], size(layer["saved_bytes"])) for layer in layers]
        show_table(out, ("layer", "activations"), rows, title="Layers with the most activations")
    if memory["largest_batch"] is not None:
        print(
            f"A batch of {memory['batch']} was measured; each sample takes "
            f"{size(memory['bytes_per_sample'])}. Within {size(memory['limit_bytes'])}, batches "
            f"of up to {memory['largest_batch']} fit."
        )
    elif memory["limit_bytes"] is not None:
        is_within = memory["peak_bytes"] <= memory["limit_bytes"]
        print(f"It {'fits' if is_within else 'does not fit'} into {size(memory['limit_bytes'])}.")
    print("Next: cputrain launch --memory-limit SIZE, which keeps below a limit.")
