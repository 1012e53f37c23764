"""Counters read from the files of a given system, and from the live system."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from cputrain.machine.source import RootSource
from cputrain.runtime.counters import Counters, other_cpu_seconds

FILES = {
    "proc/stat": "cpu 9 9 9\ncpu0 100 0 100 5000 7 0 0 0 0 0\ncpu1 50 0 50 5000 7 0 0 300 0 0\n"
    "cpu12 900 0 0 0 0 0 0 0 0 0\nintr 1\n",
    "proc/self/task/7/schedstat": "9 2000000000 3\n",
    "proc/self/task/8/schedstat": "9 500000000 3\n",
    "proc/self/task/9/schedstat": "\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=4500000\nfull total=9\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=99000000\n",
    "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "proc/self/cgroup": "0::/users/one\n",
    "sys/fs/cgroup/users/cpu.max": "200000 100000\n",
    "sys/fs/cgroup/users/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000\n",
    "sys/fs/cgroup/users/one/cpu.stat": "throttled_usec 1\n",
    "sys/fs/cgroup/users/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3500000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
    "sys/devices/system/cpu/cpu12/thermal_throttle/core_throttle_count": "100\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2000000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3000000\n",
    "proc/self/numa_maps": "7f00 default anon=9 dirty=9 N0=3 N1=6 kernelpagesize_kB=4\n"
    "7f10 interleave anon=1 N1=1 kernelpagesize_kB=2048\n"
    "7f20 default file=/lib/x.so mapped=8 N0=8 kernelpagesize_kB=4\n"
    "7f30 default\n",
}


def counters(folder):
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Counters(RootSource(str(folder)), (0, 1))


def test_counters_of_a_given_system(tmp_path):
    reader = counters(tmp_path)
    now = reader.now()
    assert now["throttled_seconds"] == 2.5  # of the control group with the quota
    assert now["hot"] == 7
    assert now["busy_seconds"] == 600 / os.sysconf("SC_CLK_TCK")
    assert now["steal_seconds"] == 300 / os.sysconf("SC_CLK_TCK")
    assert now["waiting_seconds"] == 2.5
    assert now["pressure_seconds"] == 4.5
    assert now["stalled_seconds"] == 3.5  # of the innermost control group that has it
    assert reader.clock() == 2.5e9
    assert reader.placed() == {"0": 3 * 4096, "1": 6 * 4096 + (2 << 20)}


def test_missing_files_count_as_zero(tmp_path):
    reader = Counters(RootSource(str(tmp_path)), (0, 1))
    now = reader.now()
    assert now["throttled_seconds"] == now["hot"] == now["busy_seconds"] == 0
    assert (reader.clock(), reader.placed()) == (0, {})


def test_counters_of_the_live_system_grow():
    reader = Counters()
    before = reader.now()
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        torch.ones(1 << 16).add_(1)
    after = reader.now()
    assert after["user_seconds"] > before["user_seconds"]
    assert after["busy_seconds"] > before["busy_seconds"]
    assert all(after[name] >= before[name] for name in before)


def test_cpu_time_of_descendants_is_counted_as_workers(tmp_path):
    """A child and a grandchild, both alive and after they ended."""
    spin = "import time; print(flush=True)\nwhile time.process_time() < {}: pass"
    inner = [sys.executable, "-c", spin.format(0.5)]
    outer = f"import subprocess\nsubprocess.run({inner!r}, check=True)\n" + spin.format(0.5)
    reader = Counters()
    before = reader.now()
    with subprocess.Popen(
        [sys.executable, "-c", outer + "\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the grandchild runs
        child.stdout.readline()  # the grandchild has ended, and the child runs
        living = reader.now()
        assert living["workers_seconds"] - before["workers_seconds"] >= 0.4
        child.communicate(b"\n")
    after = reader.now()
    assert after["workers_seconds"] - before["workers_seconds"] >= 0.9


def test_other_cpu_time_excludes_this_process_and_its_workers():
    counted = {"busy_seconds": 9.0, "user_seconds": 3.0, "system_seconds": 1.0,
               "workers_seconds": 2.0}  # fmt: skip
    assert other_cpu_seconds(counted) == 3
    assert other_cpu_seconds({**counted, "busy_seconds": 5.0}) == 0  # clock ticks are coarse
    assert other_cpu_seconds({}) == 0
