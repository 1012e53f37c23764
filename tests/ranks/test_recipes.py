"""Every recipe is what its scheduler takes: Slurm's runs, the others obey their schemas."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from cputrain.launch import cluster
from cputrain.launch.commands.launch import COMMAND
from cputrain.launch.options import parse
from tests.launch.programs import environment, plain
from tests.ranks.slurm import running_cluster

ROOT = Path(__file__).parents[2]

RECIPES = ROOT / "launch" / "recipes"

RANKS = str(ROOT / "examples" / "ranks.py")


@pytest.fixture
def slurm(tmp_path_factory):
    yield from running_cluster(tmp_path_factory)


def test_slurm_runs_a_job_of_two_tasks(tmp_path, slurm):
    alone = json.loads(plain(tmp_path, RANKS).stdout)["losses"]
    words = (
        "--nodes=1", "--ntasks=2", "--ntasks-per-node=2", "--cpus-per-task=1",
        str(RECIPES / "slurm.sbatch"), RANKS, "--checkpoint", "run.pt",
    )  # fmt: skip
    tried = slurm.say("sbatch", "--test-only", *words, cwd=tmp_path)
    assert tried.returncode == 0, tried.stderr
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    state = slurm.run(
        "--output=out", *words, cwd=tmp_path,
        environment=environment(tmp_path, RANKS="1", PATH=path),
    )  # fmt: skip
    said = (tmp_path / "out").read_text()
    assert state == "COMPLETED", said
    (told,) = (json.loads(line) for line in said.splitlines() if line.startswith('{"losses"'))
    assert told["ranks"] == 2
    assert told["losses"] == pytest.approx(alone, abs=1e-5)
    assert (tmp_path / "run.pt").exists()


def of(name):
    return list(yaml.safe_load_all((RECIPES / name).read_text()))


def is_taken(words):
    """As a command of ours."""
    assert words[:2] == ["cputrain", "launch"]
    parsed = parse(words[2:], COMMAND.options, "cputrain launch")
    assert cluster.needs_agent(parsed, {})
    assert parsed.rest[0] == "train.py"


def test_kubernetes_takes_the_job():
    import kubernetes_validate

    service, job = of("job.yaml")
    for one in (service, job):
        kubernetes_validate.validate(one, "1.30", strict=True)
    unknown = {**job, "spec": {**job["spec"], "pods": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(unknown, "1.30", strict=True)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    is_taken(container["command"])
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:29400" in container["command"]
    assert f"--nnodes={job['spec']['completions']}" in container["command"]


def test_kubeflow_takes_the_train_job():
    # its models take a second to import
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    (job,) = of("trainjob.yaml")
    taken = TrainerV1alpha1TrainJob.from_dict(job)
    known = json.loads(taken.to_json())
    assert known == job  # nothing that it does not know
    is_taken(job["spec"]["trainer"]["command"])
