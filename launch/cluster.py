"""Several ranks, on one node or more: torch's elastic agent starts each as a launch of its own.

The agent is torchrun's, with its options, names and meanings. What it starts for each rank is
`cputrain launch` with the same settings, which finds its rank in the environment, takes that rank's
part of the cores and becomes the script. So each node plans for itself, and each rank has a mask,
threads, an allocator and a share for its loaders.
"""

from __future__ import annotations

import os
import sys

from cputrain.errors import NotFound, UsageError
from cputrain.launch.options import Option, split_quoted
from cputrain.launch.process import Start
from cputrain.machine.ranks import AGENT_PID, SEAT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cputrain.launch.options import Parsed
    from cputrain.launch.target import Target
    from cputrain.machine import Machine


def _name(flag: str) -> str:
    """A flag's, with underscores."""
    return flag[2:].replace("-", "_")


def _option(flag: str, help_: str, takes: str = "", short: str = "") -> Option:
    """One of torchrun's, which also knows it with underscores."""
    other = f"--{_name(flag)}"
    return Option(
        flag=flag, help=help_, takes=takes, short=short,
        aliases=() if other == flag else (other,),
    )  # fmt: skip


OPTIONS = (
    _option("--nproc-per-node", "ranks on this node; auto: one for each GPU, or memory node",
            "auto|N|numa|l3"),
    _option("--nnodes", "nodes, or from how many to how many", "N|MIN:MAX"),
    _option("--node-rank", "this node's number, with --master-addr", "N"),
    _option("--master-addr", "where the first node is", "HOST"),
    _option("--master-port", "and its port", "PORT"),
    _option("--rdzv-backend", "how nodes meet", "static|c10d|etcd"),
    _option("--rdzv-endpoint", "where they meet", "HOST[:PORT]"),
    _option("--rdzv-id", "the job's name there", "NAME"),
    _option("--rdzv-conf", "more of that", "A=1,B=2"),
    _option("--standalone", "one node, which meets nobody"),
    _option("--local-addr", "this node's address for the others", "HOST"),
    _option("--max-restarts", "times that all ranks are started again when one fails", "N"),
    _option("--monitor-interval", "seconds between looks at the ranks", "SECONDS"),
    _option("--shutdown-timeout", "seconds for ranks to end by themselves (default: 3)", "SECONDS"),
    _option("--signals-to-handle", "that are passed on to ranks", "A,B"),
    _option("--log-dir", "a folder for what ranks print", "FOLDER"),
    _option("--redirects", "which streams go there: 1, 2, 3, or 0:3,1:1", "WHICH", "-r"),
    _option("--tee", "which go there and to the terminal", "WHICH", "-t"),
    _option("--local-ranks-filter", "ranks whose output is shown", "0,1"),
    _option("--duplicate-stdout-filters", "words of lines to gather in one file", "A,B"),
    _option("--duplicate-stderr-filters", "the same of standard error", "A,B"),
    _option("--logs-specs", "torchrun's, of an entry point", "NAME"),
    _option("--event-log-handler", "torchrun's: where its events go", "NAME"),
    _option("--role", "a name of these ranks", "NAME"),
    _option("--numa-binding", "torchrun's, for GPUs: node, socket, exclusive, …", "NAME"),
    _option("--virtual-local-rank", "each rank sees one GPU, its own"),
    _option("--run-path", "accepted, as by torchrun; the script is run as ever"),
)  # fmt: skip
"""torchrun's, but for --start-method: the agent starts commands, and needs none."""

ACCEPTED = frozenset({"--run-path"})
"""Those that are not passed on."""

AGENT = ("-P", "-m", "cputrain.ranks")

COUNTED = frozenset({"auto", "numa", "l3"})
"""Numbers of ranks that are counted here."""

COUNTED_THERE = frozenset({"gpu", "cpu", "xpu"})
"""Those that the agent counts."""

UNDER_AN_AGENT = "TORCHELASTIC_RUN_ID"

PR_SET_PDEATHSIG = 1


def is_wanted(parsed: Parsed, environment: Mapping[str, str]) -> bool:
    """Whether ranks are asked for: by an option, or by torchrun's variables, as Kubeflow sets them.

    A rank has those variables as well.
    """
    if any(parsed.has(option.flag) for option in OPTIONS):
        return True
    return UNDER_AN_AGENT not in environment and any(
        f"PET_{_name(option.flag).upper()}" in environment for option in OPTIONS
    )


def end_with_the_agent(environment: Mapping[str, str]) -> None:
    """Have this process killed with the agent that has started it; no rank is left without one."""
    if sys.platform != "linux" or environment.get(AGENT_PID) != str(os.getppid()):
        return
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def start_of(parsed: Parsed, what: Target, settings: Sequence[Option], machine: Machine) -> Start:
    """The agent, and what it is to start."""
    if parsed.has("--plan"):
        raise UsageError(
            "--plan", "cannot be given with ranks", found="a plan for one process",
            do="Leave it out: each rank plans for its part.",
        )  # fmt: skip
    _check_torch()
    asked = {
        option.flag: parsed.values[option.flag]
        for option in OPTIONS
        if parsed.has(option.flag) and option.flag not in ACCEPTED
    }
    count = asked.get("--nproc-per-node", os.environ.get("PET_NPROC_PER_NODE", "1"))
    if count in COUNTED:
        asked["--nproc-per-node"] = ranks(count, machine)
    elif count not in COUNTED_THERE and not _is_number(count):
        raise UsageError(
            "--nproc-per-node",
            f"must be a whole number from 1, or {', '.join(sorted(COUNTED | COUNTED_THERE))}",
            found=repr(count), do="Say --nproc-per-node auto.",
        )  # fmt: skip
    _check_nodes(asked.get("--nnodes", "1"))
    words = [word for flag, value in asked.items() for word in _words(flag, value)]
    rank = _of_a_rank(parsed, what, settings)
    return Start(
        program=sys.executable,
        argv=(sys.executable, *AGENT, *words, "--no-python", *rank),
        environment={},
        cpus=None,
        interleave=None,
    )


def ranks(count: str, machine: Machine) -> str:
    """How many of them, where the machine says."""
    if count == "auto" and machine.gpu_driver:
        return "auto"
    own = set(machine.budget.cpus)
    nodes = sum(not own.isdisjoint(node.cpus) for node in machine.nodes)
    caches = sum(not own.isdisjoint(one.cpus) for one in machine.topology.l3_domains)
    return str(max(1, caches if count == "l3" else nodes))


def _of_a_rank(parsed: Parsed, what: Target, settings: Sequence[Option]) -> list[str]:
    """The launch that a rank begins with."""
    words = [sys.executable, "-P", "-m", "cputrain.launch", "launch"]
    if parsed.has("--virtual-local-rank"):  # LOCAL_RANK is 0 for all then; the agent knows better
        words = ["env", f"{SEAT}=${{local_rank}}", *words]
    for option in settings:
        if parsed.has(option.flag):
            words += _words(option.flag, parsed.values[option.flag])
    from shlex import join

    # as under torchrun, what ranks print is seen at once
    words.append(f"--python-args={join(['-u', *split_quoted(parsed, '--python-args')])}")
    switch = {"module": ["-m"], "command": ["--cmd", "--"]}.get(what.kind, ["--"])
    return [*words, *switch, what.name, *what.arguments]


def _words(flag: str, value: str) -> list[str]:
    return [flag] if value == flag else [f"{flag}={value}"]


def _check_nodes(count: str) -> None:
    least, colon, most = count.partition(":")
    numbers = (least, most) if colon else (least,)
    if not all(map(_is_number, numbers)) or int(numbers[0]) > int(numbers[-1]):
        raise UsageError(
            "--nnodes", "must be a whole number from 1, or MIN:MAX", found=repr(count),
            do="Say --nnodes 2, or --nnodes 1:4.",
        )  # fmt: skip


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 7 and int(word) > 0


def _check_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise NotFound(
            "torch", "is not installed for this python, and its agent starts ranks",
            do="Say: pip install torch",
        )  # fmt: skip
