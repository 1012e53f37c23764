"""`cputrain bench`: plain python against cputrain, side by side."""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from cputrain.errors import NotFound, UsageError
from cputrain.launch.options import Option, parse, split_quoted, usage, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from cputrain.bench import ScriptComparison
    from cputrain.bench.devices import DeviceComparison
    from cputrain.bench.loaders import LoaderComparison
    from cputrain.bench.networks import NetworkComparison
    from cputrain.bench.optimizers import OptimizerComparison
    from cputrain.bench.pools import PoolComparison
    from cputrain.launch.options import Parsed
    from cputrain.tune.result import SearchResult

OPTIONS = (
    Option(flag="--repeats", takes="N", help="rounds, each runs both ways once (default: 5)"),
    Option(flag="--launch-args", takes="'ARGS'", help="options for cputrain launch"),
    Option(
        flag="--against", takes="SCRIPT", help="what plain python runs (default: the same script)"
    ),
    Option(flag="--tune", takes="SECONDS", help="tune each script first, and compare that, too"),
    Option(
        flag="--exhaustive",
        help="with --tune: try every combination as well, which takes many times as long",
    ),
    Option(
        flag="--precision",
        takes="float32|bf16",
        choices=("float32", "bf16"),
        help="bf16: tune once more, with fewer bits allowed (default: float32)",
    ),
    Option(
        flag="--replicas",
        takes="LIST",
        help="compare these numbers of replicas, too: 2,4,auto",
    ),
    Option(flag="--backends", takes="LIST", help="compare these backends, too: zendnn,ipex"),
    Option(
        flag="--python",
        takes="PATH",
        help="compare another environment's interpreter, with its torch, too",
    ),
    Option(
        flag="--memory",
        help="sample the memory of all processes of a run, which makes it a little slower",
    ),
    Option(flag="--peers", help="compare other launchers that are installed, too"),
    Option(flag="--json", help="one JSON document with every run"),
    Option(flag="--markdown", help="a table for a page or a report"),
    Option(flag="--list", help="name the workloads that come with cputrain, and stop"),
    Option(flag="--help", short="-h", help="show this and stop"),
)

LAUNCH = ("-P", "-m", "cputrain.launch", "launch")
"""-P: the working folder must not put a module of its own in the launcher's way."""

TABLE_OPTIONS = (
    Option(flag="--json", help="one JSON document with every figure"),
    Option(flag="--markdown", help="tables for a page or a report"),
    Option(flag="--help", short="-h", help="show this and stop"),
)

OTHERS: dict[str, tuple[tuple[Option, ...], str]] = {
    "loaders": (
        (
            Option(
                flag="--repeats", takes="N", help="rounds, each runs every loader once (default: 5)"
            ),
            Option(flag="--quick", help="tiny data, to see that all of it works"),
            *TABLE_OPTIONS,
        ),
        "Runs torch's DataLoader, cputrain's, SPDL's (where it is installed) and a loop\n"
        "by hand in turns, and checks that they hand out the same batches.",
    ),
    "pools": (
        (
            Option(flag="--cases", takes="A,B", help="groups of cases (default: all of them)"),
            Option(flag="--rounds", takes="N", help="each runs every pool once (default: 5)"),
            Option(flag="--processes", takes="N", help="in each pool (default: the cores)"),
            Option(flag="--quick", help="very little to do, to see that all of it works"),
            *TABLE_OPTIONS,
        ),
        "Runs cputrain's Pool, torch's, the standard library's ProcessPoolExecutor, and\n"
        "joblib's and mpire's (where they are installed) in turns, each in a fresh\n"
        "process, and checks their results.",
    ),
    "devices": (
        (
            Option(flag="--devices", takes="A,B", help="of torch (default: cuda,cpu)"),
            Option(flag="--batch", takes="N", help="samples of a step (default: each case's own)"),
            Option(flag="--rounds", takes="N", help="each runs every way once (default: 5)"),
            Option(flag="--quick", help="very little to do, to see that all of it works"),
            *TABLE_OPTIONS,
        ),
        "Trains models of several widths on each device alone and divided among them\n"
        "(cputrain.Split) in turns, and compares speed and losses.",
    ),
    "networks": (
        (
            Option(flag="--devices", takes="A,B", help="of torch (default: ocl,cuda)"),
            Option(flag="--batches", takes="N,M", help="sizes of batches (default: 32,64)"),
            Option(flag="--rounds", takes="N", help="each runs every device once (default: 2)"),
            Option(flag="--side", takes="N", help="pixels of an image's side (default: 224)"),
            Option(flag="--quick", help="one step of tiny images, to see that all of it works"),
            *TABLE_OPTIONS,
        ),
        "Trains torchvision's networks on each device in turns, and compares speed and\n"
        "losses. Others are held against the last device.",
    ),
    "optimizers": (
        (
            Option(flag="--threads", takes="N,M", help="of torch (default: 1 and the cores)"),
            Option(flag="--rounds", takes="N", help="each steps both ways (default: 9)"),
            Option(flag="--quick", help="a few cells, to see that all of it works"),
            *TABLE_OPTIONS,
        ),
        "Times steps of optimizers, fused and as torch takes them, in turns, over numbers and\n"
        "sizes of tensors, threads, and parts of a table that have a gradient.",
    ),
}
"""What is compared without a script, by the word that asks for it: options behind it, and what is
done. A package of cputrain.bench of that name does it."""


def main(argv: Sequence[str]) -> int:
    """Compare, and say how much faster, what was changed, and whether the losses agree."""
    parsed = parse(argv, OPTIONS, "bench")
    if parsed.has("--help"):
        print(
            usage(
                "bench",
                "[options] [WORKLOAD ... | script.py] [its arguments]",
                "Runs a script under plain python and under cputrain launch in turns, in fresh\n"
                "processes, and compares speed and losses. Without a script: every workload.\n"
                "cputrain bench loaders compares DataLoaders with one another, cputrain bench\n"
                "pools pools of processes, and cputrain bench devices what dividing a batch among\n"
                "devices gives; cputrain bench networks trains torchvision's networks on each\n"
                "device, and cputrain bench optimizers times fused steps beside torch's. Each has\n"
                "a --help.",
                {"options": OPTIONS},
            )
        )
        return 0
    if parsed.has("--list"):
        _list()
        return 0
    if parsed.rest and parsed.rest[0] in OTHERS:
        return _without_script(parsed.rest[0], parsed)
    repeats = _repeats(parsed.values.get("--repeats", "5"))
    launch_arguments = split_quoted(parsed, "--launch-args")
    against = _against(parsed.values.get("--against"))
    if parsed.has("--exhaustive") and not parsed.has("--tune"):
        raise UsageError("--exhaustive", "needs --tune", do="Try --tune 60 --exhaustive.")
    documents = []
    for title, script in _scripts(parsed.rest):
        plain = script if against is None else (against, *script[1:])
        searches = _searches(parsed, script, launch_arguments)
        commands = _commands(parsed, plain, script, launch_arguments, searches)
        comparison = _compare(title, commands, repeats, samples_memory=parsed.has("--memory"))
        if parsed.has("--json"):
            found = {name: one.as_json() for name, one in searches.items()}
            documents.append({"workload": title, "searches": found, **comparison.as_json()})
        elif parsed.has("--markdown"):
            print(_markdown(title, comparison))
        else:
            _show(title, comparison)
            for name, one in searches.items():
                print(f"{name.capitalize()}, after {one.seconds:.0f} s: {one.reason}.")
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "comparisons": documents}, indent=1))
    return 0


def _scripts(rest: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Title and command of each script to compare: those named, or every workload."""
    from itertools import takewhile

    from cputrain.bench import workloads

    known = workloads()
    named = list(takewhile(known.__contains__, rest)) if rest else list(known)
    if named:
        return [(name, (known[name], *rest[len(named) :])) for name in named]
    if not os.path.isfile(rest[0]):
        raise NotFound(
            f"the script {rest[0]}",
            f"must be a file, {', '.join(OTHERS)}, or one of the workloads {', '.join(known)}",
            do="cputrain bench --list tells what they are.",
        )
    return [(os.path.basename(rest[0]), tuple(rest))]


def _against(named: str | None) -> str | None:
    """The script that stands for how it is done without cputrain."""
    from cputrain.bench import workloads

    if named is None or os.path.isfile(named):
        return named
    known = workloads()
    if named not in known:
        raise NotFound(
            f"the script {named} of --against",
            f"must be a file, or one of the workloads {', '.join(known)}",
            do="cputrain bench --list tells what they are.",
        )
    return str(known[named])


def _searches(
    parsed: Parsed, script: Sequence[str], launch_arguments: Sequence[str]
) -> dict[str, SearchResult]:
    """What tuning finds, by what it was allowed; nothing of it is remembered."""
    if not parsed.has("--tune"):
        return {}
    search = partial(_search, parsed.values["--tune"], script, launch_arguments)
    found = {"tuned": search("float32")}
    if parsed.has("--exhaustive"):
        found["best of all"] = search("float32", every=True)
    if parsed.values.get("--precision") == "bf16":
        found["tuned, bf16"] = search("bf16")
    return found


def _commands(
    parsed: Parsed,
    plain: Sequence[str],
    script: Sequence[str],
    launch_arguments: Sequence[str],
    searches: Mapping[str, SearchResult],
) -> dict[str, tuple[str, ...]]:
    """Every way to run it, by name."""
    launch = (sys.executable, *LAUNCH, *launch_arguments)
    commands = {"python": (sys.executable, *plain), "cputrain launch": (*launch, *script)}
    for name, found in searches.items():
        knobs = [f"--{knob.replace('_', '-')}={value}" for knob, value in found.settings.items()]
        commands[name] = (*launch, *knobs, *script)
    for count in filter(None, parsed.values.get("--replicas", "").split(",")):
        commands[f"{count} replicas"] = (*launch, f"--replicas={count}", *script)
    for name in filter(None, parsed.values.get("--backends", "").split(",")):
        commands[name] = (*launch, f"--backend={name}", *script)
    if parsed.has("--python"):
        path = parsed.values["--python"]
        torch, launches = _asked_of(path)
        commands[f"python, torch {torch}"] = (path, *plain)
        if launches:
            commands[f"cputrain launch, torch {torch}"] = (
                path, *LAUNCH, *launch_arguments, *script
            )  # fmt: skip
    if parsed.has("--peers"):
        from cputrain.bench.peers import peers

        commands |= {name: (*prefix, *plain) for name, prefix in peers().items()}
    return commands


def _asked_of(interpreter: str) -> tuple[str, bool]:
    """The version of its torch, and whether it has cputrain."""
    import subprocess

    ask = (
        "from importlib import metadata as m, util as u; "
        "print(m.version('torch'), u.find_spec('cputrain') is not None)"
    )
    try:
        said = subprocess.run(
            [interpreter, "-P", "-c", ask], capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            "--python", "must be a Python of an environment with torch",
            found=f"{interpreter!r}: {error}", do="Name its bin/python.",
        ) from None  # fmt: skip
    return said[0], said[1] == "True"


def _search(
    seconds: str,
    script: Sequence[str],
    launch_arguments: Sequence[str],
    precision: str,
    *,
    every: bool = False,
) -> SearchResult:
    from cputrain.bench import workloads
    from cputrain.launch import planning, target
    from cputrain.launch.commands import launch
    from cputrain.launch.commands.tune import find_plan, seconds_of
    from cputrain.machine import read_machine
    from cputrain.report.trials import watcher

    budget = float("inf") if every else seconds_of(seconds, "--tune")
    machine = read_machine()
    words = (*launch_arguments, f"--precision={precision}")
    plan = planning.plan_for(parse(words, launch.OPTIONS, "launch"), machine)
    # a workload takes few steps by itself; a trial ends when it has seen enough
    more = ("--steps", "10000") if script[0] in workloads().values() else ()
    what = target.read_target((*script, *more), module=False, command=False)
    with watcher() as watching:
        return find_plan(what, machine, plan, budget=budget, watching=watching)


def _compare(
    title: str, commands: dict[str, tuple[str, ...]], repeats: int, *, samples_memory: bool
) -> ScriptComparison:
    from cputrain.bench import compare

    def narrate(name: str, number: int, seconds: float) -> None:
        print(f"{title}: round {number} of {repeats}, {name} {seconds:.3g} s", file=sys.stderr)

    return compare(commands, repeats=repeats, samples_memory=samples_memory, on_run=narrate)


def _show(title: str, comparison: ScriptComparison) -> None:
    from cputrain.bench.markdown import COLUMNS, row
    from cputrain.report.terminal import console, show_table

    out = console()
    cells = [row(side, comparison) for side in comparison.sides]
    # on its side: two columns fit a terminal, nine do not
    show_table(
        out,
        ("", *(column[0] for column in cells)),
        list(zip(COLUMNS[1:], *(column[1:] for column in cells), strict=True)),
        title=title,
    )
    side = comparison.side("cputrain launch")
    said = comparison.last_report("cputrain launch")
    speed = side.speedup
    range_ = f" ({speed.lowest:.2f} to {speed.highest:.2f})" if comparison.repeats > 1 else ""
    print(f"cputrain launch ran {title} {speed.median:.2f} times as fast as python{range_}.")
    if said:
        print(f"Changed: {said}.")
    if side.losses_compared:
        print(f"The losses: {cells[1][-1]}.")


def _markdown(title: str, comparison: ScriptComparison) -> str:
    from cputrain.bench import as_markdown
    from cputrain.machine import read_machine

    return as_markdown(comparison, title=title, machine_line=read_machine().fingerprint())


def _list() -> None:
    from cputrain.bench import description, workloads

    lines = {name: description(path) for name, path in workloads().items()}
    lines["loaders"] = "DataLoaders side by side: torch's, cputrain's, SPDL's, a loop by hand."
    lines["networks"] = "Torchvision's networks on each device, OpenCL's and CUDA's say."
    lines["devices"] = "Batches divided among devices, beside each of them alone."
    lines["pools"] = "Pools of processes side by side: cputrain's, torch's, joblib's, mpire's."
    lines["optimizers"] = "Steps of optimizers, fused and as torch takes them."
    width = max(map(len, lines)) + 2
    for name, line in lines.items():
        print(f"{name:<{width}}{line}")


def _without_script(what: str, before: Parsed) -> int:
    """Compare loaders or pools; options stand before that word or behind it."""
    from importlib import import_module

    options, about = OTHERS[what]
    bench = import_module(f"cputrain.bench.{what}")
    named: list[str] = []
    values, words = dict(before.values), before.rest[1:]
    while words:  # options and cases in any order: no script follows
        behind = parse(words, options, f"bench {what}")
        values |= behind.values
        named += behind.rest[:1]
        words = behind.rest[1:]
    if "--help" in values:
        cases = "\n".join(f"  {name:<32}{title}" for name, title in bench.CASES.items())
        summary = f"{about}\n\ncases (default: all of them):\n{cases}"
        print(usage(f"bench {what}", "[options] [CASE ...]", summary, {"options": options}))
        return 0
    if before.has("--launch-args"):
        raise UsageError(
            "--launch-args", f"has no effect on {what}", do="Leave it out: nothing is launched."
        )
    compare: dict[str, Callable[..., Any]] = {
        "loaders": _loaders,
        "pools": _pools,
        "devices": _devices,
        "networks": _networks,
        "optimizers": _optimizers,
    }
    comparison = compare[what](named, values)
    if "--json" in values:
        print(json.dumps(comparison.as_json(), indent=1))
    elif "--markdown" in values:
        from cputrain.machine import read_machine

        print(bench.as_markdown(comparison, machine_line=read_machine().fingerprint()))
    else:
        _show_tables(bench, comparison)
    return 0


def _loaders(named: list[str], values: dict[str, str]) -> LoaderComparison:
    from cputrain.bench.loaders import compare_loaders

    repeats = _repeats(values.get("--repeats", "5"))
    return compare_loaders(named, repeats=repeats, quick="--quick" in values)


def _pools(named: list[str], values: dict[str, str]) -> PoolComparison:
    from cputrain.bench.pools import compare_pools

    named = named + [name for name in values.get("--cases", "").split(",") if name]
    return compare_pools(
        named,
        rounds=_rounds(values),
        processes=_repeats(values["--processes"], "--processes", "2")
        if "--processes" in values
        else None,
        quick="--quick" in values,
    )


def _devices(named: list[str], values: dict[str, str]) -> DeviceComparison:
    from cputrain.bench.devices import compare_devices

    return compare_devices(
        named,
        devices=[one for one in values.get("--devices", "cuda,cpu").split(",") if one],
        batch=_repeats(values["--batch"], "--batch", "256") if "--batch" in values else None,
        rounds=_rounds(values),
        quick="--quick" in values,
    )


def _networks(named: list[str], values: dict[str, str]) -> NetworkComparison:
    from cputrain.bench.networks import compare_networks

    quick = "--quick" in values
    batches = values.get("--batches", "2" if quick else "32,64").split(",")
    return compare_networks(
        named,
        devices=[one for one in values.get("--devices", "ocl,cuda").split(",") if one],
        batches=[_repeats(one, "--batches", "32,64") for one in batches],
        rounds=_rounds(values, 2),
        side=_repeats(values.get("--side", "64" if quick else "224"), "--side", "224"),
        steps=1 if quick else 10,
    )


def _optimizers(named: list[str], values: dict[str, str]) -> OptimizerComparison:
    from cputrain.bench.optimizers import compare_optimizers
    from cputrain.machine import read_machine

    cores = read_machine().budget.physical_cores
    threads = values.get("--threads", ",".join(dict.fromkeys(["1", str(cores)]))).split(",")
    quick = "--quick" in values
    return compare_optimizers(
        named,
        threads=[_repeats(count, "--threads", "1,2") for count in threads],
        rounds=_rounds(values, 2 if quick else 9),
        quick=quick,
    )


def _rounds(values: dict[str, str], default: int = 5) -> int:
    given = next((flag for flag in ("--rounds", "--repeats") if flag in values), None)
    return _repeats(values[given], given) if given else default


def _show_tables(bench: ModuleType, comparison: Any) -> None:
    from cputrain.report.terminal import console, show_table

    out = console()
    for case in comparison.cases:
        head, rows = bench.case_table(case)
        show_table(out, head, rows, title=case.title)
        if note := bench.case_note(case):
            print(f"{note}\n")
    print(bench.footnote(comparison))


def _repeats(value: str, flag: str = "--repeats", advice: str = "5") -> int:
    return whole_number(value, flag, advice=advice)
