"""Launch of several ranks, on one node or more, by torch's elastic agent.

The options are torchrun's, and are passed on to the agent. For each rank, the agent starts
`cputrain launch` with the same settings; this launch finds its rank in the environment, makes a
plan for the rank's share of the node's cores, and execs the script.
"""

from __future__ import annotations

import os
import sys

from cputrain.counting import counted
from cputrain.errors import NotFound, UsageError
from cputrain.launch.options import Option, split_quoted
from cputrain.launch.process import Start
from cputrain.machine.ranks import AGENT_PID, SEAT
from cputrain.suggestions import closest, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.target import Target


def _underscored(flag: str) -> str:
    """Return a flag's name with underscores and without leading dashes."""
    return flag[2:].replace("-", "_")


def _option(flag: str, help_: str, metavar: str = "", short: str = "") -> Option:
    """Return an option of torchrun's, with the alias in underscores that torchrun accepts."""
    alias = f"--{_underscored(flag)}"
    return Option(
        flag=flag, help=help_, takes=metavar, short=short,
        aliases=() if alias == flag else (alias,), is_advanced=flag not in MOST_USED,
    )  # fmt: skip


MOST_USED = frozenset({
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--rdzv-endpoint",
})  # fmt: skip
"""Options that --help shows."""

OPTIONS = (
    _option("--nproc-per-node", "ranks on this node; auto: one per GPU, or per NUMA node without",
            "auto|N|numa|l3"),
    _option("--nnodes", "number of nodes, or a range for an elastic job", "N|MIN:MAX"),
    _option("--node-rank", "rank of this node, with --master-addr", "N"),
    _option("--master-addr", "address of the node with rank 0", "HOST"),
    _option("--master-port", "port on the node with rank 0", "PORT"),
    _option("--rdzv-backend", "rendezvous backend", "static|c10d|etcd"),
    _option("--rdzv-endpoint", "address of the rendezvous", "HOST[:PORT]"),
    _option("--rdzv-id", "id of the job in the rendezvous", "NAME"),
    _option("--rdzv-conf", "further settings of the rendezvous", "A=1,B=2"),
    _option("--standalone", "single-node job with a rendezvous of its own"),
    _option("--local-addr", "address of this node for the other nodes", "HOST"),
    _option("--max-restarts", "how often all ranks are restarted when one fails", "N"),
    _option("--monitor-interval", "seconds between checks of the ranks", "SECONDS"),
    _option("--shutdown-timeout", "seconds until ranks are killed after a signal (default: 3)",
            "SECONDS"),
    _option("--signals-to-handle", "signals that are passed on to ranks", "A,B"),
    _option("--log-dir", "folder for the ranks' logs", "FOLDER"),
    _option("--redirects", "streams to write to the logs: 1, 2, 3, or 0:3,1:1", "WHICH", "-r"),
    _option("--tee", "streams to write to the logs and the terminal", "WHICH", "-t"),
    _option("--local-ranks-filter", "ranks whose output is shown", "0,1"),
    _option("--duplicate-stdout-filters", "copy output lines with these words to one log", "A,B"),
    _option("--duplicate-stderr-filters", "the same for standard error", "A,B"),
    _option("--logs-specs", "entry point of torchrun's LogsSpecs", "NAME"),
    _option("--event-log-handler", "torchrun's handler of its events", "NAME"),
    _option("--role", "role of the ranks, a name", "NAME"),
    _option("--numa-binding", "torchrun's, for GPUs: node, socket, exclusive, …", "NAME"),
    _option("--virtual-local-rank", "each rank sees only its own GPU, as LOCAL_RANK 0"),
    _option("--run-path", "accepted for compatibility with torchrun, without effect"),
)  # fmt: skip
"""torchrun's options except --start-method, which has no effect on an agent of commands."""

IGNORED_OPTIONS = frozenset({"--run-path"})
"""Options that are accepted and not passed on."""

AGENT = ("-P", "-m", "cputrain.ranks")
"""Arguments of the interpreter that run the agent."""

COUNTED_BY_LAUNCH = frozenset({"auto", "numa", "l3"})
"""Values of --nproc-per-node that `count_ranks` resolves."""

COUNTED_BY_AGENT = frozenset({"gpu", "cpu", "xpu"})
"""Values of --nproc-per-node that the agent resolves."""

AGENT_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Variable that torch's agent sets for each rank."""

NPROC_VARIABLE = "PET_NPROC_PER_NODE"
"""Torchrun's variable with the number of ranks on this node."""

PR_SET_PDEATHSIG = 1
"""Option of prctl on Linux."""


def needs_agent(parsed: Parsed, environment: Mapping[str, str]) -> bool:
    """Return whether to start ranks: an option or a PET_* variable of torchrun's is set.

    Kubeflow sets PET_* variables. A rank inherits them, and must not start ranks again.
    """
    if any(parsed.has(option.flag) for option in OPTIONS):
        return True
    return AGENT_VARIABLE not in environment and any(
        f"PET_{_underscored(option.flag).upper()}" in environment for option in OPTIONS
    )


def exit_with_agent(environment: Mapping[str, str]) -> None:
    """Have the kernel kill this process when the agent that started it exits."""
    if sys.platform != "linux" or environment.get(AGENT_PID) != str(os.getppid()):
        return
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def agent_start(
    parsed: Parsed, target: Target, settings: Sequence[Option], machine: Machine
) -> Start:
    """Return the start of the agent with torchrun's options and the command of a rank.

    Args:
        settings: Options that are passed on to each rank's launch.

    Raises:
        UsageError: An option has an invalid value.
        NotFound: torch is not installed.
    """
    if parsed.has("--plan"):
        raise UsageError(
            "--plan", "cannot be given with ranks", found="a plan for a single process",
            do="Leave it out: each rank makes a plan for its share of the cores.",
        )  # fmt: skip
    _check_torch()
    agent_options = {
        option.flag: parsed.values[option.flag]
        for option in OPTIONS
        if parsed.has(option.flag) and option.flag not in IGNORED_OPTIONS
    }
    if parsed.has("--nproc-per-node") or NPROC_VARIABLE in os.environ:
        agent_options["--nproc-per-node"] = number_of_ranks(parsed, os.environ, machine)
    _check_nodes(agent_options.get("--nnodes", "1"))
    words = [word for flag, value in agent_options.items() for word in _option_words(flag, value)]
    rank_command = _rank_command(parsed, target, settings)
    return Start(
        program=sys.executable,
        argv=(sys.executable, *AGENT, *words, "--no-python", *rank_command),
        environment={},
        cpus=None,
        interleave=None,
    )


def notes_on_ranks(parsed: Parsed, environment: Mapping[str, str], machine: Machine) -> list[str]:
    """Return notes on ranks that share a core, and on nodes that cannot find one another."""
    notes = []
    ranks, cores = number_of_ranks(parsed, environment, machine), machine.budget.physical_cores
    if ranks.isdecimal() and int(ranks) > cores:
        notes.append(
            f"--nproc-per-node {ranks} starts more ranks than this node's "
            f"{counted(cores, 'core')}: some share a core, and all wait for them"
        )
    is_known = (
        any(parsed.has(flag) for flag in ("--rdzv-endpoint", "--master-addr", "--standalone"))
        or "PET_RDZV_ENDPOINT" in environment
        or "PET_MASTER_ADDR" in environment
    )
    if parsed.has("--nnodes") and parsed.values["--nnodes"] != "1" and not is_known:
        notes.append(
            "waiting for other nodes on this machine: for those of others, give all nodes "
            "--rdzv-backend c10d --rdzv-endpoint HOST:PORT, with the first node as HOST"
        )
    return notes


def number_of_ranks(parsed: Parsed, environment: Mapping[str, str], machine: Machine) -> str:
    """Return the number of ranks on this node, or a word that the agent resolves.

    Raises:
        UsageError: It is neither a number nor such a word.
    """
    value = parsed.values.get("--nproc-per-node", environment.get(NPROC_VARIABLE, "1"))
    if value in COUNTED_BY_LAUNCH:
        return count_ranks(value, machine)
    if value not in COUNTED_BY_AGENT and not _is_number(value):
        words = sorted(COUNTED_BY_LAUNCH | COUNTED_BY_AGENT)
        raise UsageError(
            "--nproc-per-node", f"must be a whole number from 1, or {', '.join(words)}",
            found=repr(value), do=did_you_mean(closest(value, words))
            or "For example: --nproc-per-node auto",
        )  # fmt: skip
    return value


def count_ranks(value: str, machine: Machine) -> str:
    """Resolve a value of --nproc-per-node to a number of ranks, or auto for the agent to count."""
    if value == "auto" and machine.gpu_driver:
        return "auto"
    usable_cpus = set(machine.budget.cpus)
    num_nodes = sum(not usable_cpus.isdisjoint(node.cpus) for node in machine.nodes)
    num_l3s = sum(not usable_cpus.isdisjoint(l3.cpus) for l3 in machine.topology.l3_domains)
    return str(max(1, num_l3s if value == "l3" else num_nodes))


def _rank_command(parsed: Parsed, target: Target, settings: Sequence[Option]) -> list[str]:
    """Return the `cputrain launch` command line that the agent runs for each rank."""
    command = [sys.executable, "-P", "-m", "cputrain.launch", "launch"]
    if parsed.has("--virtual-local-rank"):  # LOCAL_RANK is 0 in all ranks; the agent substitutes
        command = ["env", f"{SEAT}=${{local_rank}}", *command]
    for option in settings:
        if parsed.has(option.flag):
            command += _option_words(option.flag, parsed.values[option.flag])
    from shlex import join

    # unbuffered output, as torchrun's ranks have
    command.append(f"--python-args={join(['-u', *split_quoted(parsed, '--python-args')])}")
    switch = {"module": ["-m"], "command": ["--cmd", "--"]}.get(target.kind, ["--"])
    return [*command, *switch, target.name, *target.arguments]


def _option_words(flag: str, value: str) -> list[str]:
    return [flag] if value == flag else [f"{flag}={value}"]


def _check_nodes(value: str) -> None:
    """Raise UsageError unless the value of --nnodes is N or MIN:MAX."""
    min_nodes, colon, max_nodes = value.partition(":")
    numbers = (min_nodes, max_nodes) if colon else (min_nodes,)
    if not all(map(_is_number, numbers)) or int(numbers[0]) > int(numbers[-1]):
        raise UsageError(
            "--nnodes", "must be a whole number from 1, or MIN:MAX", found=repr(value),
            do="For example: --nnodes 2, or --nnodes 1:4",
        )  # fmt: skip


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 7 and int(word) > 0


def _check_torch() -> None:
    """Raise NotFound if torch is not installed; looks for it without importing it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise NotFound(
            "torch", "is not installed for this Python, and is required to start ranks",
            do="Run: pip install torch",
        )  # fmt: skip
