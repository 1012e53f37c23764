"""Libraries nobody here wrote: what they print and save under a launch is what python has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cputrain.tune.trial import SITE
from tests.launch.programs import LAUNCH, PYTHON, environment, launch, plain
from tests.libraries.output import differences
from tests.selected import cases, selected
from tests.torchvision_folder import FOLDER as TORCHVISION

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
DRIVER = str(HERE / "run_scripts.py")

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "hydra_app")

SHORT = ("torch_files",)
"""Scripts that `make test` runs: they import no other library."""

EXACT = 1e-5
"""How far numbers may be apart, relatively, where only the order of additions differs."""

NOISY = 1e-4
"""Where Adam follows gradients that are rounding alone, as those of attention's key biases are:
plain python is 2e-5 apart from itself on another number of threads."""

SHORT_WAYS = ("default",)
"""Options that `make test` runs them with."""

REDUCED = 0.2
"""With bf16."""

PLANS = {
    way: json.dumps(
        {
            "values": {"fused_optimizer": True, "loader": True, **values},
            "says": [], "environment": {}, "settings": {},
        }
    )
    for way, values in {"bf16": {"precision": "bf16"}, "replicas": {"replicas": 2}}.items()
}  # fmt: skip
"""On machines without bf16 and with a single core, too."""

OPTIONS = {
    "default": (), "channels_last": ("--channels-last=on",), "compile": ("--compile=on",),
    "record_step": ("--record-step=auto",),
}  # fmt: skip

CHANGES = {"record_step": {"CXX": "none"}}
"""Environment variables: without a compiler, operators are replayed after the third step."""

COMPILED = ("accelerate_plain", "torch_func")
"""Scripts that are run with compiled models: Inductor takes minutes for the others together."""

TOLD = {
    ("bf16", "torch_func"): [
        "Sequential left without autocast: torch.func transforms it",
        "Sequential left without autocast: every module has a hook, which would see bf16",
    ],
    ("bf16", "torch_utils"): [
        "Quantized left without autocast: quant (QuantStub) has a hook, which would see bf16",
    ],
    ("replicas", "hf_resume"): ["batches of 1 model divided among 2 replicas"],
    ("replicas", "opacus_private"): [
        "batches of GradSampleModule undivided: _module.conv (Conv2d) has a hook",
    ],
    ("replicas", "lightning_resume"): ["batches of 1 model divided among 2 replicas"],
    ("replicas", "timm_models"): ["divided among 2 replicas"],
    ("channels_last", "timm_models"): ["convolutions channels last"],
    ("default", "sb3_agents"): ["fused Adam"],
}
"""What the line after a run says of models that an option is for, or cannot be for."""


class Run(NamedTuple):
    """What came of one script."""

    code: str
    out: str
    err: str
    line: str
    folder: Path


def run_all(folder: Path, runs: list[list[str]], *before: str, **changes: str) -> dict[str, Run]:
    """Run scripts with arguments under one interpreter, and read what came of each."""
    subprocess.run(
        [*before, DRIVER, str(folder), json.dumps(runs)],
        env=environment(
            folder, OMP_NUM_THREADS="1", TORCHVISION_FOLDER=str(TORCHVISION), **changes
        ),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=900,
    )
    return {name: read(folder / name) for name, *_ in runs}


def read(folder: Path) -> Run:
    """Read what the driver left of one run."""
    texts = [
        path.read_text() if (path := folder.with_suffix(f".{what}")).exists() else ""
        for what in ("code", "out", "err", "line")
    ]
    code, out, err, line = (text.replace(str(folder), "FOLDER") for text in texts)
    return Run(code, out, err, line, folder)


def every(names: Any = NAMES) -> list[list[str]]:
    """Return the runs of scripts without arguments, but for the search over processes."""
    alone = {"skorch_search": ["--alone"]}
    return [[name, str(SCRIPTS / f"{name}.py"), *alone.get(name, [])] for name in names]


@pytest.fixture(scope="session")
def python(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Under plain python."""
    names = selected(request, NAMES, __file__)
    return run_all(tmp_path_factory.mktemp("python"), every(names), PYTHON)


@pytest.fixture(scope="session")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Run]]:
    """Under each option, made when it is first asked for."""
    return {}


def under(
    way: str, ways: dict[str, dict[str, Run]], factory: pytest.TempPathFactory, names: list[str]
) -> dict[str, Run]:
    """Return what came of each script under one option."""
    if way not in ways:
        folder = factory.mktemp(way)
        if way in PLANS:
            changes = {"PYTHONPATH": SITE, "CPUTRAIN_PLAN": PLANS[way]}
            ways[way] = run_all(folder, every(names), PYTHON, **changes)
        else:
            names = list(COMPILED) if way == "compile" else names
            before = (*LAUNCH, "--quiet", *OPTIONS[way])
            ways[way] = run_all(folder, every(names), *before, **CHANGES.get(way, {}))
    return ways[way]


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_runs_under_plain_python(name: str, python: dict[str, Run]) -> None:
    assert python[name].code == "0", python[name].err
    assert python[name].out.count("\n") >= 5


@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(
            way, name, marks=[pytest.mark.long] * (name not in SHORT or way not in SHORT_WAYS)
        )
        for way in (*OPTIONS, *PLANS)
        for name in (COMPILED if way == "compile" else NAMES)
    ],
)
def test_a_script_prints_and_saves_what_it_does_under_python(
    way: str,
    name: str,
    python: dict[str, Run],
    ways: dict[str, dict[str, Run]],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = selected(request, NAMES, __file__)
    theirs, ours = python[name], under(way, ways, tmp_path_factory, names)[name]
    assert ours.code == "0", ours.err
    exact = NOISY if (way, name) == ("replicas", "hf_resume") else EXACT
    near = {"within": REDUCED, "small": 1.0} if way == "bf16" else {"within": exact}
    assert not differences(ours.out, theirs.out, **near)
    if (way, name) != ("replicas", "torch_errors"):  # frames of a replica's thread are others
        assert not differences(ours.err, theirs.err, within=EXACT)
    assert written(ours.folder) == written(theirs.folder)
    for told in TOLD.get((way, name), []):
        assert told in ours.line


def written(folder: Path) -> set[str]:
    """Return the files of a run, but for the time and the process in their names.

    Hypothesis keeps the constants of modules outside of site-packages, as those of an editable
    installation of ours are.
    """
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "tfevents" not in path.name and ".hypothesis" not in path.parts
    }


# a checkpoint of one side, gone on from on the other


class Sides(NamedTuple):
    """Both sides, each from its own checkpoint and from the other's."""

    straight: dict[str, Run]
    crossed: dict[str, Run]


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sides]:
    """Trained halfway on each side, and to the end on each from either half."""
    lightning, trainer = (str(SCRIPTS / f"{name}_resume.py") for name in ("lightning", "hf"))
    halves = {
        "lightning": [lightning, "--epochs", "2"], "trainer": [trainer, "--steps", "6"],
    }  # fmt: skip
    folders = {side: tmp_path_factory.mktemp(f"{side}_side") for side in ("python", "launch")}
    before = {"python": (PYTHON,), "launch": (*LAUNCH, "--quiet")}
    for side, folder in folders.items():
        run_all(folder, [[name, *words] for name, words in halves.items()], *before[side])
    found: dict[str, dict[str, Run]] = {}
    for side, folder in folders.items():
        runs = []
        for origin, place in folders.items():
            mine = folder / f"from_{origin}"
            mine.mkdir()
            for name, saved in (("lightning", "checkpoints"), ("trainer", "out")):
                # each goes on in a copy: what is saved next must not meet the other's
                shutil.copytree(place / name / saved, mine / name / saved)
            runs += [
                [f"from_{origin}/lightning", lightning, "--epochs", "4",
                 "--resume", "checkpoints/last.ckpt"],
                [f"from_{origin}/trainer", trainer, "--steps", "9",
                 "--resume", "out/checkpoint-6"],
            ]  # fmt: skip
        found[side] = run_all(folder, runs, *before[side])
    return {
        name: Sides(
            {side: found[side][f"from_{side}/{name}"] for side in found},
            {
                side: found[side][f"from_{other}/{name}"]
                for side, other in (("python", "launch"), ("launch", "python"))
            },
        )
        for name in halves
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["lightning", "trainer"])
@pytest.mark.parametrize("side", ["python", "launch"])
def test_a_checkpoint_of_the_other_side_is_gone_on_from(
    name: str, side: str, sides: dict[str, Sides]
) -> None:
    expected = sides[name].straight["python"]
    assert expected.code == "0", expected.err
    for run in (sides[name].crossed[side], sides[name].straight[side]):
        assert run.code == "0", run.err
        assert not differences(run.out, expected.out, within=EXACT)
        assert written(run.folder) == written(expected.folder)


# programs that start others


def alike(
    folder: Path, *words: str, options: tuple[str, ...] = (), within: float = EXACT, **changes: str
) -> tuple[str, str]:
    """Run a program both ways, compare what came of it, and return what it printed under each."""
    places = [folder / "python", folder / "launch"]
    for place in places:
        place.mkdir()
    changes = {"OMP_NUM_THREADS": "1", **changes}
    theirs = plain(folder, *words, where=places[0], **changes)
    ours = launch(folder, *options, *words, where=places[1], **changes)
    assert ours.returncode == theirs.returncode, ours.stderr
    out, expected = (
        done.stdout.replace(str(place), "FOLDER")
        for done, place in zip((ours, theirs), reversed(places), strict=True)
    )
    assert not differences(out, expected, within=within)
    lines = [line for line in ours.stderr.splitlines() if not line.startswith("cputrain: ")]
    assert not differences("\n".join(lines), theirs.stderr, within=within)
    assert [path.count("/") for path in sorted(written(places[1]))] == [
        path.count("/") for path in sorted(written(places[0]))
    ]
    return out, expected


@pytest.mark.long
def test_hydra_runs_its_jobs(tmp_path: Path) -> None:
    words = ("--multirun", "seed=1,2", "optimizer.lr=0.01", "hydra.sweep.dir=jobs")
    out, _ = alike(tmp_path, str(SCRIPTS / "hydra_app.py"), *words)
    assert out.count("\njob ") == 2
    logs = [
        (tmp_path / side / "jobs" / "1" / "hydra_app.log").read_text()
        for side in ("launch", "python")
    ]
    assert not differences(*logs, within=EXACT)
    assert "step 4 loss" in logs[0]


@pytest.mark.long
def test_a_search_over_processes_finds_the_same(tmp_path: Path) -> None:
    """What a worker is told of threads is compared as well, where the script set nothing."""
    out, _ = alike(tmp_path, str(SCRIPTS / "skorch_search.py"))
    assert "grid {" in out


@pytest.mark.long
def test_accelerate_launches_under_a_launch(tmp_path: Path) -> None:
    words = (
        "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no",
    )  # fmt: skip
    out, _ = alike(tmp_path, *words, str(SCRIPTS / "accelerate_plain.py"))
    assert out.count("loss") >= 20


@pytest.mark.long
def test_a_test_suite_ends_as_it_does_under_python(tmp_path: Path) -> None:
    """Hypothesis finds out whether numbers are flushed to zero, and refuses to go on then."""
    words = (
        "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib",
        "-c", os.devnull, f"--rootdir={HERE / 'suite'}", f"--confcutdir={HERE / 'suite'}",
        str(HERE / "suite" / "network.py"),
    )  # fmt: skip
    out, _ = alike(tmp_path, *words)
    assert "2 failed, 4 passed, 1 skipped" in out


@pytest.mark.long
@pytest.mark.executed  # the kernel's ZeroMQ keeps what it knew before a fork
def test_a_notebook_has_the_same_outputs(tmp_path: Path) -> None:
    """Its kernel is a process of Jupyter's, and trains under the plan."""
    for name in ("python", "launch"):
        (tmp_path / name).mkdir()
        shutil.copy(HERE / "training.ipynb", tmp_path / name)
    words = ("-m", "nbconvert", "--to", "notebook", "--execute", "--output", "done")
    changes = {"OMP_NUM_THREADS": "1"}
    for run, name in ((plain, "python"), (launch, "launch")):
        done = run(tmp_path, *words, "training.ipynb", where=tmp_path / name, **changes)
        assert done.returncode == 0, done.stderr
    ours, theirs = (cell_outputs(tmp_path / name / "done.ipynb") for name in ("launch", "python"))
    assert len(ours) == 5
    assert not differences("\n".join(ours), "\n".join(theirs), within=EXACT)


def cell_outputs(path: Path) -> list[str]:
    """Return the outputs of each cell; text comes in as many pieces as the clock would have."""
    texts = []
    for cell in json.loads(path.read_text())["cells"]:
        streams: dict[str, str] = {}
        others = []
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                streams[output["name"]] = streams.get(output["name"], "") + "".join(output["text"])
            else:
                others.append(json.dumps(output, sort_keys=True))
        texts.append(json.dumps(streams, sort_keys=True) + " ".join(others))
    return texts
