"""torchrun's options: each is taken, and means what it means there."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from cputrain.errors import UsageError
from cputrain.launch import cluster
from cputrain.launch.commands.launch import COMMAND, RANK_OPTIONS
from cputrain.launch.options import parse
from cputrain.launch.target import read_target
from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from tests.launch.programs import launch, script

MACHINES = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))

MACHINE = read_machine(detail=False)

OWN = {"--start-method": "ours is the script's; torchrun's is for functions, and starts no command"}

VALUES = {"--nnodes": "1:3", "--numa-binding": "node", "--tee": "0:3,1:1", "--redirects": "3",
          "--log-dir": "/tmp", "--rdzv-conf": "is_host=1,timeout=9", "--shutdown-timeout": "7",
          "--monitor-interval": "2.5", "--local-ranks-filter": "0"}  # fmt: skip

ACTIONS = [one for one in get_args_parser()._actions if one.option_strings and one.dest != "help"]

NAMES = [name for one in ACTIONS for name in one.option_strings]


def agents(argv):
    """The options that the agent gets for this command line of ours, as torchrun reads them."""
    parsed = parse(argv, COMMAND.options, "cputrain launch")
    assert cluster.needs_agent(parsed, {})
    what = read_target(parsed.rest, module=parsed.has("--module"), command=parsed.has("--cmd"))
    start = cluster.agent_start(parsed, what, RANK_OPTIONS, MACHINE)
    return get_args_parser().parse_args(start.argv[4:]), start.argv


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_a_command_line_of_torchrun_means_the_same(name, form):
    (action,) = [one for one in ACTIONS if name in one.option_strings]
    flag = next(one for one in reversed(action.option_strings) if one.startswith("--"))
    flag = flag.replace("_", "-")
    assert {one.replace("_", "-") for one in action.option_strings if one[:2] == "--"} == {flag}
    if flag in OWN:
        return
    if action.nargs == 0:
        words = [name]
    else:
        value = VALUES.get(flag, "2")
        words = form.format(name, value).split(" ") if name[:2] == "--" else [name, value]
    line = ["--nproc-per-node", "2", *words, "train.py", "--own", "-t"]
    theirs = get_args_parser().parse_args(line)
    found, _ = agents(line)
    for one in ACTIONS:
        if one.dest not in {"module", "no_python", "run_path", "start_method"}:
            assert getattr(found, one.dest) == getattr(theirs, one.dest), one.dest
    assert found.no_python
    assert found.training_script_args[-3:] == ["train.py", "--own", "-t"]


def test_a_rank_begins_with_a_launch_of_the_same_settings():
    line = ["--nproc-per-node", "2", "--threads", "3", "-q", "-m", "pack.age"]
    found, _ = agents([*line, "--steps", "5"])
    words = [found.training_script, *found.training_script_args]
    at = words.index("launch")
    rest = parse(words[at + 1 :], COMMAND.options, "cputrain launch")
    assert rest.values["--threads"] == "3"
    assert rest.has("--quiet")
    assert rest.has("--module")
    assert rest.values["--python-args"] == "-u"
    assert rest.rest == ("pack.age", "--steps", "5")
    assert not any(rest.has(one.flag) for one in cluster.OPTIONS)


def test_torchruns_variables_ask_for_ranks_but_not_in_one():
    parsed = parse(["train.py"], COMMAND.options, "cputrain launch")
    assert not cluster.needs_agent(parsed, {})
    assert cluster.needs_agent(parsed, {"PET_NNODES": "2"})
    assert not cluster.needs_agent(parsed, {"PET_NNODES": "2", "TORCHELASTIC_RUN_ID": "x"})


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_ranks_are_counted_where_the_machine_says(path):
    machine = read_machine(read_capture(str(path)))
    own = set(machine.budget.cpus)
    nodes = [one for one in machine.nodes if own & set(one.cpus)]
    caches = [one for one in machine.topology.l3_domains if own & set(one.cpus)]
    assert (
        cluster.count_ranks("numa", machine)
        == cluster.count_ranks("auto", machine)
        == str(len(nodes))
    )
    assert cluster.count_ranks("l3", machine) == str(max(1, len(caches)))
    assert cluster.count_ranks("auto", machine.replace(gpu_driver="nvidia")) == "auto"


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_torchruns_variable_counts_ranks_as_the_option_does(path, monkeypatch):
    """The agent knows numbers, but neither NUMA nodes nor caches."""
    machine = read_machine(read_capture(str(path)))
    what = read_target(["train.py"], module=False, command=False)
    named = parse(["--nproc-per-node", "numa", "train.py"], COMMAND.options, "cputrain launch")
    as_option = cluster.agent_start(named, what, RANK_OPTIONS, machine).argv
    monkeypatch.setenv("PET_NPROC_PER_NODE", "numa")
    bare = parse(["train.py"], COMMAND.options, "cputrain launch")
    assert cluster.agent_start(bare, what, RANK_OPTIONS, machine).argv == as_option
    monkeypatch.setenv("PET_NPROC_PER_NODE", "many")
    with pytest.raises(UsageError, match="--nproc-per-node must be a whole number"):
        cluster.agent_start(bare, what, RANK_OPTIONS, machine)


def test_a_plan_for_one_process_is_refused():
    parsed = parse(
        ["--nproc-per-node", "2", "--plan", "p.json", "x.py"], COMMAND.options, "cputrain launch"
    )
    what = read_target(parsed.rest, module=False, command=False)
    with pytest.raises(UsageError, match="--plan cannot be given with ranks"):
        cluster.agent_start(parsed, what, RANK_OPTIONS, MACHINE)


LOOP = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (LOOP, True),
        (LOOP + "import os; os.environ['RANK']", False),  # it divides its work itself
        ("import torch; torch.distributed.init_process_group('gloo')\n" + LOOP, False),
        (
            "import torch; torch.distributed.init_process_group('gloo')\n" + LOOP
            + "torch.distributed.destroy_process_group()", False,
        ),
    ],
    ids=["alone", "reads its rank", "a group", "a group that is gone"],
)  # fmt: skip
@pytest.mark.long
def test_ranks_that_never_met_are_told_at_the_end(
    tmp_path: Path, text: str, *, is_told: bool
) -> None:
    done = launch(tmp_path, "--nproc-per-node", "2", str(script(tmp_path, text)))
    assert done.returncode == 0, done.stderr
    note = "the script did not use torch.distributed: 2 ranks have run the same training"
    assert (note in done.stderr) is is_told
    assert done.stderr.count(note) <= 1


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--nproc-per-node", "900"), "starts more ranks than this node's"),
        (("--nnodes", "2"), "--rdzv-backend c10d --rdzv-endpoint HOST:PORT"),
        (("--nnodes", "1:2"), "--rdzv-backend c10d --rdzv-endpoint HOST:PORT"),
        (("--nnodes", "2", "--rdzv-endpoint", "node1:29400"), ""),
        (("--nnodes", "2", "--master-addr", "node1"), ""),
        (("--nnodes", "1"), ""),
        (("--standalone", "--nproc-per-node", "1"), ""),
    ],
)
def test_ranks_that_share_cores_and_nodes_without_an_address_are_told(
    words: tuple[str, ...], note: str
) -> None:
    parsed = parse((*words, "x.py"), COMMAND.options, "cputrain launch")
    notes = cluster.notes_on_ranks(parsed, {}, MACHINE)
    assert len(notes) == bool(note)
    assert all(note in each for each in notes)
