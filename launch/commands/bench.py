"""`cputrain bench`: compare the throughput of plain python and cputrain."""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from cputrain.counting import counted
from cputrain.errors import NotFound, UsageError
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.options import Option, parse, split_quoted, whole_number
from cputrain.launch.target import find_executable, read_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from cputrain.bench import ScriptComparison
    from cputrain.bench.devices import DeviceComparison
    from cputrain.bench.loaders import LoaderComparison
    from cputrain.bench.many import ManyComparison
    from cputrain.bench.networks import NetworkComparison
    from cputrain.bench.optimizers import OptimizerComparison
    from cputrain.bench.pools import PoolComparison
    from cputrain.bench.steps import StepComparison
    from cputrain.diagnose.step_roof import StepRoof
    from cputrain.launch.options import Parsed
    from cputrain.target import Target
    from cputrain.tune.result import SearchResult

OPTIONS = (
    Option(flag="--repeats", takes="N", help="rounds, each runs every command once (default: 5)"),
    Option(flag="--launch-args", takes="'ARGS'", help="options for cputrain launch"),
    Option(
        flag="--against", takes="SCRIPT", help="script for plain python (default: the same script)"
    ),
    Option(flag="--tune", takes="TIME", help="tune each script, and compare the result too"),
    Option(
        flag="--learn",
        takes="N",
        help="have launch --learn run N steps of a workload, or your script once; compare that too",
    ),
    Option(
        flag="--exhaustive",
        help="with --tune: also try every combination, which takes many times as long",
    ),
    Option(
        flag="--precision",
        takes="float32|bf16",
        choices=("float32", "bf16"),
        help="bf16: also tune with reduced precision allowed (default: float32)",
    ),
    Option(
        flag="--replicas",
        takes="LIST",
        help="also compare these numbers of replicas: 2,4,auto",
    ),
    Option(flag="--backends", takes="LIST", help="also compare these backends: zendnn,ipex"),
    Option(
        flag="--python",
        takes="PATH",
        help="also compare the interpreter of another environment, with its torch",
    ),
    Option(
        flag="--memory",
        help="sample the memory of all processes of a run, which slows it slightly",
    ),
    Option(
        flag="--roof",
        help="compare step times with the least that this machine needs for a step's work",
    ),
    Option(flag="--peers", help="also compare other launchers that are installed"),
    Option(flag="--json", help="print a JSON document with every run"),
    Option(flag="--markdown", help="print a Markdown table"),
    Option(flag="--all", help="run every workload of cputrain, without a script"),
    Option(flag="--list", help="list the workloads of cputrain and exit"),
)

ROUNDING = 1e-5
"""Relative difference of losses above which a sentence says where it comes from."""

LAUNCH = ("-P", "-m", "cputrain.launch", "launch")
"""Arguments of the interpreter; -P keeps modules of the working folder from being imported."""

TABLE_OPTIONS = (
    Option(flag="--json", help="print a JSON document with every figure"),
    Option(flag="--markdown", help="print Markdown tables"),
)


def _case_benchmark(name: str, summary: str, *options: Option) -> Command:
    """Return the command of a benchmark without a script, which takes names of its cases."""
    return Command(
        name=f"bench {name}",
        form="[options] [CASE ...]",
        summary=summary,
        groups=(Group(title="Options", options=(*options, *TABLE_OPTIONS)),),
    )


CASE_BENCHMARKS = {
    "loaders": _case_benchmark(
        "loaders",
        "Runs torch's DataLoader, cputrain's, SPDL's (if it is installed) and a plain "
        "loop in turns, and checks that their batches are equal.",
        Option(
            flag="--repeats", takes="N", help="rounds, each runs every loader once (default: 5)"
        ),
        Option(flag="--quick", help="tiny data, to test the benchmark itself"),
    ),
    "pools": _case_benchmark(
        "pools",
        "Runs cputrain's Pool, torch's, the standard library's ProcessPoolExecutor, and "
        "joblib's and mpire's (if they are installed) in turns, each in a fresh process, "
        "and checks their results.",
        Option(flag="--cases", takes="A,B", help="groups of cases (default: all of them)"),
        Option(flag="--rounds", takes="N", help="each runs every pool once (default: 5)"),
        Option(flag="--processes", takes="N", help="processes of each pool (default: the cores)"),
        Option(flag="--quick", help="tiny tasks, to test the benchmark itself"),
    ),
    "devices": _case_benchmark(
        "devices",
        "Trains models of several widths on each device alone, and with batches sharded "
        "over the devices (cputrain.Split), in turns; compares throughput and losses.",
        Option(flag="--devices", takes="A,B", help="torch devices (default: cuda,cpu)"),
        Option(flag="--batch", takes="N", help="batch size (default: each case's own)"),
        Option(flag="--rounds", takes="N", help="each runs every variant once (default: 5)"),
        Option(flag="--quick", help="tiny models, to test the benchmark itself"),
    ),
    "networks": _case_benchmark(
        "networks",
        "Trains torchvision's networks on each device in turns, and compares throughput "
        "and losses. The last device is the baseline.",
        Option(
            flag="--devices",
            takes="A,B",
            help="torch devices, with +float16 under autocast (default: ocl,cuda)",
        ),
        Option(flag="--batches", takes="N,M", help="batch sizes (default: 32,64)"),
        Option(flag="--rounds", takes="N", help="each runs every device once (default: 2)"),
        Option(flag="--side", takes="N", help="height and width of images (default: 224)"),
        Option(flag="--quick", help="one step of tiny images, to test the benchmark itself"),
    ),
    "optimizers": _case_benchmark(
        "optimizers",
        "Times optimizer steps, fused and with torch's defaults, in turns, over numbers "
        "and sizes of tensors, threads, and the share of embedding rows with a gradient.",
        Option(flag="--threads", takes="N,M", help="torch threads (default: 1 and the cores)"),
        Option(flag="--rounds", takes="N", help="each steps both variants (default: 9)"),
        Option(flag="--quick", help="a few cases, to test the benchmark itself"),
    ),
    "steps": _case_benchmark(
        "steps",
        "Times whole training steps of small networks: eager, with a compiled model, and "
        "by cputrain.Step, in turns; compares losses.",
        Option(flag="--threads", takes="N,M", help="torch threads (default: 1)"),
        Option(flag="--rounds", takes="N", help="each times every way once (default: 9)"),
        Option(flag="--jax", takes="PYTHON", help="an interpreter with JAX and Optax: compare it"),
        Option(flag="--quick", help="without what compiles, to test the benchmark itself"),
    ),
    "many": _case_benchmark(
        "many",
        "Runs trainings with several seeds by cputrain many and Many, by plain python one after "
        "another and all at once, and by joblib and Ray (if they are installed), in turns; "
        "compares total time, memory and losses.",
        Option(
            flag="--ways",
            takes="A,B",
            help="of: in turn, at once, joblib, ray, many, recorded, stacked, Many",
        ),
        Option(flag="--trainings", takes="N", help="trainings in each case (default: 8)"),
        Option(flag="--rounds", takes="N", help="each runs every way once (default: 3)"),
        Option(flag="--quick", help="a few steps, to test the benchmark itself"),
    ),
}
"""Benchmarks without a script, by name; the package of cputrain.bench with that name runs it."""

CASE_TITLES = {
    "loaders": "DataLoaders",
    "pools": "Pools of processes",
    "devices": "Batches sharded over several devices",
    "networks": "Torchvision's networks on each device",
    "optimizers": "Fused optimizer steps",
    "steps": "Whole steps of small networks",
    "many": "Many trainings on one machine",
}
"""Titles of these benchmarks."""

COMMAND = Command(
    name="bench",
    form="[options] [WORKLOAD ... | script.py] [its arguments]",
    files="*.py",
    words=tuple(CASE_BENCHMARKS),
    summary="Runs a script with plain python and with cputrain launch in turns, in fresh "
    "processes, and compares throughput and losses.",
    notes_title="Benchmarks without a script, each with its own --help",
    notes=tuple((f"cputrain bench {name}", title) for name, title in CASE_TITLES.items()),
    examples=(
        Example(line="cputrain bench train.py", does="five rounds of python and launch"),
        Example(line="cputrain bench --tune 2m train.py", does="the tuned plan, too"),
        Example(line="cputrain bench --list", does="the workloads of cputrain"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, and print throughput, changes and whether the losses agree."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    if parsed.has("--list"):
        _print_list()
        return 0
    if parsed.rest and parsed.rest[0] in CASE_BENCHMARKS:
        return _run_case_benchmark(parsed.rest[0], parsed)
    repeats = _parse_count(parsed.values.get("--repeats", "5"))
    launch_arguments = split_quoted(parsed, "--launch-args")
    baseline = _baseline_script(parsed.values.get("--against"))
    if parsed.has("--exhaustive") and not parsed.has("--tune"):
        raise UsageError(
            "--exhaustive", "requires --tune", do="For example: --tune 60 --exhaustive"
        )
    documents: list[dict[str, Any]] = []
    scripts = _scripts(parsed.rest, is_all=parsed.has("--all"))
    _check_variants(parsed, launch_arguments)
    learn_steps = (
        whole_number(parsed.values["--learn"], "--learn", least=20, most=1_000_000, advice="300")
        if parsed.has("--learn")
        else 0
    )
    for title, script in scripts:
        python_command = script if baseline is None else (baseline, *script[1:])
        searches = _run_searches(parsed, script, launch_arguments)
        learnt = _learn(title, learn_steps, script, launch_arguments) if learn_steps else None
        commands = _commands_to_compare(
            parsed, python_command, script, launch_arguments, searches, learnt
        )
        try:
            comparison = _compare(title, commands, repeats, samples_memory=parsed.has("--memory"))
        except KeyboardInterrupt:  # before a round was complete
            if not documents:
                raise
            break
        if parsed.has("--roof"):
            comparison = comparison.replace(roof=_step_roof(script))
        if comparison.repeats < repeats:
            print(
                f"cputrain bench: interrupted after {comparison.repeats} of {repeats} rounds",
                file=sys.stderr,
            )
        if parsed.has("--json"):
            results = {name: result.as_json() for name, result in searches.items()}
            documents.append({"workload": title, "searches": results, **comparison.as_json()})
        elif parsed.has("--markdown"):
            print(_markdown(title, comparison))
        else:
            _print_comparison(title, comparison)
            for name, result in searches.items():
                print(f"{name.capitalize()}, after {result.seconds:.0f} s: {result.reason}.")
        if comparison.repeats < repeats:
            break
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "comparisons": documents}, indent=1))
    return 0


def _scripts(rest: Sequence[str], *, is_all: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Return title and command of each script: the named ones, or every workload."""
    from itertools import takewhile

    from cputrain.bench import workloads

    paths = workloads()
    if not rest and not is_all:
        raise UsageError(
            "the script",
            "is missing",
            do="Usage: cputrain bench [options] train.py [its arguments]; "
            "for every benchmark of cputrain, which takes an hour: cputrain bench --all",
        )
    names = list(takewhile(paths.__contains__, rest)) if rest else list(paths)
    if names:
        return [(name, (paths[name], *rest[len(names) :])) for name in names]
    if not os.path.lexists(rest[0]):
        from cputrain.launch.hints import similar_script
        from cputrain.suggestions import closest, did_you_mean

        benchmarks = (*CASE_BENCHMARKS, *paths)
        raise NotFound(
            f"the script {rest[0]}",
            "does not exist, and is no benchmark of cputrain",
            do=did_you_mean(similar_script(rest[0]) or closest(rest[0], benchmarks))
            or "The benchmarks: cputrain bench --list",
        )
    find_executable(read_target(rest), os.environ, is_launch=False)
    return [(os.path.basename(rest[0]), tuple(rest))]


def _baseline_script(name: str | None) -> str | None:
    """Return the script that plain python runs; None without --against."""
    from cputrain.bench import workloads

    if name is None or os.path.isfile(name):
        return name
    paths = workloads()
    if name not in paths:
        raise NotFound(
            f"the script {name} of --against",
            f"must be a file, or one of the workloads {', '.join(paths)}",
            do="See: cputrain bench --list",
        )
    return str(paths[name])


def _run_searches(
    parsed: Parsed, script: Sequence[str], launch_arguments: Sequence[str]
) -> dict[str, SearchResult]:
    """Search as the options ask; return the results by name. Nothing is saved for launch."""
    if not parsed.has("--tune"):
        return {}
    search = partial(_search, parsed.values["--tune"], script, launch_arguments)
    results = {"tuned": search("float32")}
    if parsed.has("--exhaustive"):
        results["best of all"] = search("float32", is_exhaustive=True)
    if parsed.values.get("--precision") == "bf16":
        results["tuned, bf16"] = search("bf16")
    return results


def _commands_to_compare(
    parsed: Parsed,
    python_command: Sequence[str],
    script: Sequence[str],
    launch_arguments: Sequence[str],
    searches: Mapping[str, SearchResult],
    learnt: Mapping[str, str] | None,
) -> dict[str, tuple[str, ...]]:
    """Return the command lines to compare, by name."""
    from cputrain.tune.result import option_words

    launch = (sys.executable, *LAUNCH, *launch_arguments)
    commands = {"python": (sys.executable, *python_command), "cputrain launch": (*launch, *script)}
    variants = {name: result.settings for name, result in searches.items()}
    if learnt is not None:
        variants["learnt"] = dict(learnt)
    for name, settings in variants.items():
        commands[name] = (*launch, *option_words(settings), *script)
    for count in filter(None, parsed.values.get("--replicas", "").split(",")):
        commands[f"{count} replicas"] = (*launch, f"--replicas={count}", *script)
    for name in filter(None, parsed.values.get("--backends", "").split(",")):
        commands[name] = (*launch, f"--backend={name}", *script)
    if parsed.has("--python"):
        path = parsed.values["--python"]
        torch, has_cputrain = _torch_of_interpreter(path)
        commands[f"python, torch {torch}"] = (path, *python_command)
        if has_cputrain:
            commands[f"cputrain launch, torch {torch}"] = (
                path, *LAUNCH, *launch_arguments, *script
            )  # fmt: skip
    if parsed.has("--peers"):
        from cputrain.bench.peers import peers

        commands |= {name: (*prefix, *python_command) for name, prefix in peers().items()}
    return commands


def _learn(
    title: str, num_steps: int, script: Sequence[str], launch_arguments: Sequence[str]
) -> dict[str, str]:
    """Run a script with launch --learn, and return the settings that it keeps.

    They are stored in a folder of this run, not for later launches.
    """
    import subprocess
    import tempfile

    from cputrain.bench import workloads
    from cputrain.tune.result import settings_text
    from cputrain.tune.store import cache_name

    extra_arguments = ("--steps", str(num_steps)) if script[0] in workloads().values() else ()
    with tempfile.TemporaryDirectory(prefix="cputrain-learn-") as cache:
        command = (sys.executable, *LAUNCH, *launch_arguments, "--learn", *script, *extra_arguments)
        done = subprocess.run(
            command,
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise UsageError(
                f"the script {script[0]}", "must run with launch --learn",
                found=f"exit code {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}",
            )  # fmt: skip
        path = os.path.join(cache, "cputrain", "tuned", f"{cache_name(script[0])}.json")
        settings: dict[str, str] = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                settings = json.load(file)["settings"]
    print(f"{title}: learnt {settings_text(settings)}", file=sys.stderr)
    return settings


def _check_variants(parsed: Parsed, launch_arguments: Sequence[str]) -> None:
    """Raise UsageError if launch would refuse a variant: before the first run."""
    from cputrain.launch import planning
    from cputrain.launch.commands import launch
    from cputrain.machine import read_machine

    variants = [
        (f"--{option}={value}",)
        for option, names in (("replicas", "--replicas"), ("backend", "--backends"))
        for value in filter(None, parsed.values.get(names, "").split(","))
    ]
    machine = read_machine(detail=False)
    for words in ((), *variants):
        launch_options = parse(
            (*launch_arguments, *words), launch.COMMAND.options, "cputrain launch"
        )
        planning.plan_for(launch_options, machine)


def _torch_of_interpreter(interpreter: str) -> tuple[str, bool]:
    """Return the version of an interpreter's torch, and whether cputrain is installed for it."""
    import subprocess

    code = (
        "from importlib import metadata as m, util as u; "
        "print(m.version('torch'), u.find_spec('cputrain') is not None)"
    )
    try:
        output = subprocess.run(
            [interpreter, "-P", "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            "--python", "must be the interpreter of an environment with torch",
            found=f"{interpreter!r}: {error}", do="Name the environment's bin/python.",
        ) from None  # fmt: skip
    return output[0], output[1] == "True"


def _step_roof(script: Sequence[str]) -> StepRoof:
    """Count the work of a script's step, and return the least time that this machine needs."""
    from cputrain.diagnose.step_roof import measure_step_roof
    from cputrain.launch.commands.tune import trial_script
    from cputrain.machine import RootSource, read_machine

    with trial_script(_long_target(script), (), allow_side_effects=False) as trial:
        return measure_step_roof(trial, read_machine(RootSource()), _print_progress)


def _long_target(script: Sequence[str]) -> Target:
    """Return a script whose run ends after the steps that are timed, whatever it has itself."""
    from cputrain.bench import workloads
    from cputrain.launch import target

    # workloads have few steps by default
    extra_arguments = ("--steps", "10000") if script[0] in workloads().values() else ()
    return target.read_target((*script, *extra_arguments), module=False, command=False)


def _print_progress(message: str) -> None:
    print(f"cputrain bench: {message}", file=sys.stderr)


def _search(
    budget_text: str,
    script: Sequence[str],
    launch_arguments: Sequence[str],
    precision: str,
    *,
    is_exhaustive: bool = False,
) -> SearchResult:
    """Tune a script for at most `budget_text` seconds, or try every combination."""
    from cputrain.launch import planning
    from cputrain.launch.commands import launch
    from cputrain.launch.commands.tune import find_plan
    from cputrain.machine import read_machine
    from cputrain.quantities import parse_search_time
    from cputrain.report.trials import watcher

    budget = float("inf") if is_exhaustive else parse_search_time(budget_text, "--tune")
    machine = read_machine()
    words = (*launch_arguments, f"--precision={precision}")
    plan = planning.plan_for(parse(words, launch.COMMAND.options, "cputrain launch"), machine)
    with watcher() as progress:
        return find_plan(_long_target(script), machine, plan, budget=budget, progress=progress)


def _compare(
    title: str, commands: dict[str, tuple[str, ...]], repeats: int, *, samples_memory: bool
) -> ScriptComparison:
    from time import monotonic

    from cputrain.bench import compare
    from cputrain.report.figures import duration

    total = repeats * len(commands)
    begin, done = monotonic(), 0
    print(
        f"{title}: {counted(total, 'run')}, {counted(repeats, 'round')} of {', '.join(commands)}; "
        "Ctrl-C keeps complete rounds",
        file=sys.stderr,
    )

    def print_run(name: str, round_number: int, seconds: float) -> None:
        nonlocal done
        done += 1
        left_s = (monotonic() - begin) / done * (total - done)
        left = f", about {duration(left_s)} left" if done < total else ""
        print(
            f"{title}: round {round_number} of {repeats}, {name} {seconds:.3g} s{left}",
            file=sys.stderr,
        )

    return compare(commands, repeats=repeats, samples_memory=samples_memory, on_run=print_run)


def _print_comparison(title: str, comparison: ScriptComparison) -> None:
    from cputrain.bench.markdown import header, roof_sentence, row
    from cputrain.report.terminal import console, show_table

    out = console()
    columns = [row(side, comparison) for side in comparison.sides]
    # transposed: a column for each command fits a terminal, one for each figure does not
    show_table(
        out,
        ("", *(column[0] for column in columns)),
        list(zip(header(comparison)[1:], *(column[1:] for column in columns), strict=True)),
        title=title,
    )
    launch_side = comparison.side("cputrain launch")
    output = comparison.last_report("cputrain launch")
    speed = launch_side.speedup
    range_ = f" ({speed.lowest:.2f} to {speed.highest:.2f})" if comparison.repeats > 1 else ""
    print(f"cputrain launch ran {title} {speed.median:.2f} times as fast as python{range_}.")
    if output:
        print(f"Changed: {output}.")
    if comparison.roof is not None:
        print(roof_sentence(comparison.roof))
    if launch_side.losses_compared:
        print(f"The losses: {columns[1][-1]}.")
        if (launch_side.loss_difference or 0.0) > ROUNDING:
            print(
                "Rounding differences grow with every step; cputrain tune tells whether they are "
                "larger than plain python's own."
            )


def _markdown(title: str, comparison: ScriptComparison) -> str:
    from cputrain.bench import as_markdown
    from cputrain.machine import read_machine

    return as_markdown(comparison, title=title, machine_line=read_machine().summary())


def _print_list() -> None:
    from cputrain.bench import description, workloads

    lines = {name: description(path) for name, path in workloads().items()}
    lines |= {name: f"{title}." for name, title in CASE_TITLES.items()}
    width = max(map(len, lines)) + 2
    for name, line in lines.items():
        print(f"{name:<{width}}{line}")


def _run_case_benchmark(benchmark: str, outer: Parsed) -> int:
    """Run a benchmark without a script; its options may stand before or after its name."""
    from importlib import import_module

    command = CASE_BENCHMARKS[benchmark]
    bench = import_module(f"cputrain.bench.{benchmark}")
    command = command.replace(
        notes_title="Cases (default: all of them)", notes=tuple(bench.CASES.items())
    )
    case_names: list[str] = []
    values, words = dict(outer.values), outer.rest[1:]
    while words:  # options and cases in any order, as no script follows
        parsed = command.read(words)
        if parsed is None:
            return 0
        values |= parsed.values
        case_names += parsed.rest[:1]
        words = parsed.rest[1:]
    if outer.has("--launch-args"):
        raise UsageError(
            "--launch-args",
            f"has no effect on {benchmark}",
            do="Leave it out: nothing is launched.",
        )
    compare: dict[str, Callable[..., Any]] = {
        "loaders": _loaders,
        "pools": _pools,
        "devices": _devices,
        "networks": _networks,
        "optimizers": _optimizers,
        "steps": _steps,
        "many": _many,
    }
    comparison = compare[benchmark](case_names, values)
    if "--json" in values:
        print(json.dumps(comparison.as_json(), indent=1))
    elif "--markdown" in values:
        from cputrain.machine import read_machine

        print(bench.as_markdown(comparison, machine_line=read_machine().summary()))
    else:
        _print_tables(bench, comparison)
    return 0


def _loaders(case_names: list[str], values: dict[str, str]) -> LoaderComparison:
    from cputrain.bench.loaders import compare_loaders

    repeats = _parse_count(values.get("--repeats", "5"))
    return compare_loaders(case_names, repeats=repeats, quick="--quick" in values)


def _pools(case_names: list[str], values: dict[str, str]) -> PoolComparison:
    from cputrain.bench.pools import compare_pools

    case_names = case_names + [name for name in values.get("--cases", "").split(",") if name]
    return compare_pools(
        case_names,
        rounds=_rounds(values),
        processes=_parse_count(values["--processes"], "--processes", "2")
        if "--processes" in values
        else None,
        quick="--quick" in values,
    )


def _many(case_names: list[str], values: dict[str, str]) -> ManyComparison:
    from cputrain.bench.many import compare_many

    return compare_many(
        case_names,
        ways=[way for way in values.get("--ways", "").split(",") if way],
        num_jobs=_parse_count(values.get("--trainings", "8"), "--trainings", "8"),
        rounds=_rounds(values, 3),
        quick="--quick" in values,
    )


def _devices(case_names: list[str], values: dict[str, str]) -> DeviceComparison:
    from cputrain.bench.devices import compare_devices

    return compare_devices(
        case_names,
        devices=[device for device in values.get("--devices", "cuda,cpu").split(",") if device],
        batch=_parse_count(values["--batch"], "--batch", "256") if "--batch" in values else None,
        rounds=_rounds(values),
        quick="--quick" in values,
    )


def _networks(case_names: list[str], values: dict[str, str]) -> NetworkComparison:
    from cputrain.bench.networks import compare_networks

    quick = "--quick" in values
    batches = values.get("--batches", "2" if quick else "32,64").split(",")
    return compare_networks(
        case_names,
        devices=[device for device in values.get("--devices", "ocl,cuda").split(",") if device],
        batches=[_parse_count(batch, "--batches", "32,64") for batch in batches],
        rounds=_rounds(values, 2),
        side=_parse_count(values.get("--side", "64" if quick else "224"), "--side", "224"),
        steps=1 if quick else 10,
    )


def _optimizers(case_names: list[str], values: dict[str, str]) -> OptimizerComparison:
    from cputrain.bench.optimizers import compare_optimizers
    from cputrain.machine import read_machine

    cores = read_machine().budget.physical_cores
    quick = "--quick" in values
    return compare_optimizers(
        case_names,
        threads=_threads(values, ",".join(dict.fromkeys(["1", str(cores)]))),
        rounds=_rounds(values, 2 if quick else 9),
        quick=quick,
    )


def _steps(case_names: list[str], values: dict[str, str]) -> StepComparison:
    from cputrain.bench.steps import compare_steps

    quick = "--quick" in values
    return compare_steps(
        case_names,
        threads=_threads(values, "1"),
        rounds=_rounds(values, 2 if quick else 9),
        quick=quick,
        jax=values.get("--jax", ""),
    )


def _threads(values: dict[str, str], default: str) -> list[int]:
    counts = values.get("--threads", default).split(",")
    return [_parse_count(count, "--threads", "1,2") for count in counts]


def _rounds(values: dict[str, str], default: int = 5) -> int:
    flag = next((flag for flag in ("--rounds", "--repeats") if flag in values), None)
    return _parse_count(values[flag], flag) if flag else default


def _print_tables(bench: ModuleType, comparison: Any) -> None:
    from cputrain.report.terminal import console, show_table

    out = console()
    for case in comparison.cases:
        head, rows = bench.case_table(case)
        show_table(out, head, rows, title=case.title)
        if note := bench.case_note(case):
            print(f"{note}\n")
    print(bench.footnote(comparison))


def _parse_count(value: str, flag: str = "--repeats", advice: str = "5") -> int:
    return whole_number(value, flag, advice=advice)
