"""Slurm's own programs as a cluster: one controller, one node, keys of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONFIGURATION = """
ClusterName=cputrain
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacks() -> str:
    """What there is not; empty where a cluster can be had."""
    if os.name != "posix" or os.getuid() != 0:
        return "root"
    return ", ".join(one for one in PROGRAMS if not shutil.which(one))


class NoClusterError(Exception):
    """It cannot be had."""


def running_cluster(factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster, for a fixture; skip the test where there can be none."""
    if lacks():
        pytest.skip(f"needs Slurm; there is no {lacks()}")
    try:
        cluster = Cluster(factory.mktemp("slurm"))
    except NoClusterError as error:
        pytest.skip(f"needs Slurm; {error}")
    yield cluster
    cluster.close()


class Cluster:
    """Its programs, running."""

    def __init__(self, folder) -> None:
        self._folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0], folder=folder, ports=_free_ports(2),
            cpus=os.cpu_count(),
        ))  # fmt: skip
        self.environment = {**os.environ, "SLURM_CONF": str(configuration)}
        self._running: list[subprocess.Popen[bytes]] = []
        self._start(
            "munged", "--foreground", "--force", f"--socket={folder}/munge", f"--key-file={key}",
            f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        self._until(lambda: (folder / "munge").exists())
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D")
        self._until(lambda: "State=IDLE" in self.say("scontrol", "show", "node").stdout)

    def say(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """A command of Slurm's."""
        return subprocess.run(
            words, env={**self.environment, **options.pop("environment", {})}, text=True,
            capture_output=True, timeout=240, **options,
        )  # fmt: skip

    def run(self, *words: str, **options) -> str:
        """Submit a job; return its state at its end, or after four minutes.

        `sbatch --wait` polls at intervals of up to half a minute.
        """
        submitted = self.say("sbatch", "--parsable", *words, **options)
        assert submitted.returncode == 0, submitted.stderr
        end, state = time.monotonic() + 240, "PENDING"
        while state in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
            job = self.say("scontrol", "--oneliner", "show", "job", submitted.stdout.strip()).stdout
            state = job.partition("JobState=")[2].partition(" ")[0]
        return state

    def close(self) -> None:
        for one in reversed(self._running):
            one.terminate()
        for one in reversed(self._running):
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()

    def _start(self, *words: str) -> None:
        with open(self._folder / f"{words[0]}.out", "wb") as out:
            self._running.append(
                subprocess.Popen(words, env=self.environment, stdout=out, stderr=out)
            )

    def _until(self, is_so) -> None:
        end = time.monotonic() + 60
        while not is_so():
            if time.monotonic() > end:
                self.close()
                logs = "\n".join(one.read_text()[-2000:] for one in self._folder.glob("*.[ol]*"))
                print(logs)
                raise NoClusterError("its programs do not start here")
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    """At this moment."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
