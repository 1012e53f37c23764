"""Run jobs beside one another until all have ended."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import Counter, deque
from itertools import islice

from cputrain.errors import ResourceError
from cputrain.many.cores_per_job import CoresPerJob, JobRate
from cputrain.many.folder import result_row
from cputrain.many.job import JobState, Outcome
from cputrain.many.job_process import SUPERVISOR_KILLED, JobProcess
from cputrain.many.orphans import adopt_orphans, kill_orphans
from cputrain.many.output import last_lines, last_values
from cputrain.many.snapshot import QueueSnapshot, RunningJob, TimeLeft
from cputrain.many.stacks import read_rule
from cputrain.memory.tree import TreeMemorySampler
from cputrain.record import Record
from cputrain.runtime.common_data import create_common_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from cputrain.many.core_allocator import CoreAllocator
    from cputrain.many.folder import Folder
    from cputrain.many.job import Job
    from cputrain.many.memory_budget import MemoryBudget
    from cputrain.many.stacks import StackRule

    class QueueWatcher(Protocol):
        """Shows the progress of a queue."""

        is_live: bool
        """Whether it shows snapshots."""

        def update(self, snapshot: QueueSnapshot) -> None:
            """Show the state of the queue."""

        def ended(self, job: Job, outcome: Outcome, state: JobState) -> None:
            """Show how a job has ended; WAITING if it is going to be started again."""


TICK_S = 0.2
"""Seconds between two looks at memory and progress."""

RESULTS_INTERVAL_S = 2.0
"""Least seconds between two writes of the result files."""

MAX_STACKED = 64
"""Largest number of jobs in one process, whatever its script allows."""

INTERRUPT_GRACE_S = 10.0
"""Seconds that jobs get to end after Ctrl-C."""

MEMORY_GRACE_S = 2.0
"""Seconds that a job gets to end when memory is nearly used up."""

MEMORY = "memory was nearly used up"
"""Reason for stopping a job that is started again later, alone."""

INTERRUPTED = "the queue was interrupted"
"""Reason for stopping all jobs."""

KILLED = 128 + signal.SIGKILL
"""Exit code of a job that the kernel has killed, mostly for lack of memory."""


class QueueOptions(Record):
    """How a queue runs its jobs."""

    launch_options: tuple[str, ...] = ()
    """Options of `cputrain launch`."""

    cores: int | None = None
    """Cores for each job; None for as many as are found to be best."""

    max_running: int | None = None
    """Largest number of jobs at the same time; None for as many as fit."""


class QueueEntry:
    """A job with its state.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = JobState.WAITING
        """State; the queue alone changes it, and counts the changes."""
        self.outcome: Outcome | None = None
        self.num_attempts = 0
        """Attempts that have begun and were not stopped by the queue."""
        self.is_alone = False
        """Whether it is started when nothing else runs."""
        self.is_stackable = True
        """Whether it may be started with others in one process, if its script can do that."""
        self.is_from_before = False
        """Whether an earlier run has done it."""


class Queue:
    """Jobs, and the processes of those that run.

    Args:
        jobs: What is run, in this order.
        folder: Where outputs and results are kept.
        allocator: The cores.
        memory: The memory.
        watcher: Shows the progress.
        options: How jobs are run.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        allocator: CoreAllocator,
        memory: MemoryBudget,
        watcher: QueueWatcher,
        options: QueueOptions,
    ) -> None:
        self.entries = [QueueEntry(job) for job in jobs]
        self._folder = folder
        self._allocator = allocator
        self._memory = memory
        self._watcher = watcher
        self._options = options
        self._cores_per_job = CoresPerJob(allocator.num_cores)
        self._time_left = TimeLeft()
        self._sampler = TreeMemorySampler()
        self._stack_rules: dict[tuple[str, str], StackRule | None] = {}
        self._running: dict[JobProcess, list[QueueEntry]] = {}
        self._signals: list[int] = []
        self._common_data = create_common_data()
        self._started_at = time.monotonic()
        self._results_at = 0.0
        self._has_new_results = False
        self.faults: list[str] = []
        """What could not be written, and the like."""
        self._counts = Counter({JobState.WAITING: len(self.entries)})
        self._waiting: deque[QueueEntry] = deque()
        self._waiting_alone: deque[QueueEntry] = deque()
        for entry in self.entries:
            outcome = folder.read_outcome(entry.job)
            if outcome is not None and outcome.is_success:
                self._change(entry, JobState.DONE)
                entry.outcome = outcome
                entry.is_from_before = True
            else:
                self._waiting.append(entry)

    @property
    def signal_number(self) -> int:
        """The signal that ended the queue early; 0 if none did."""
        return self._signals[0] if self._signals else 0

    def count(self, state: JobState) -> int:
        """Return the number of jobs in a state."""
        return self._counts[state]

    def _change(self, entry: QueueEntry, state: JobState) -> None:
        self._counts[entry.state] -= 1
        self._counts[state] += 1
        entry.state = state

    def run(self) -> None:
        """Run all jobs, or those that were started before a signal to stop."""
        adopt_orphans()
        wakeup, write_end = os.pipe()
        for descriptor in (wakeup, write_end):
            os.set_blocking(descriptor, False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = [signal.signal(number, self._on_signal) for number in numbers]
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            self._loop(wakeup)
        finally:
            for process in list(self._running):  # an error of this class must leave none behind
                process.stop(signal.SIGKILL, 0.0, INTERRUPTED)
            signal.set_wakeup_fd(previous)
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            for descriptor in (wakeup, write_end, self._common_data):
                os.close(descriptor)
        self._write_results()

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)

    def _loop(self, wakeup: int) -> None:
        num_handled = 0
        next_tick = 0.0
        while True:
            if len(self._signals) > num_handled:
                num_handled = len(self._signals)
                self._stop_all(self._signals[0], is_first=num_handled == 1)
            if not self._signals:
                self._start_jobs()
            if not self._running:
                return
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._look()
            poll = select.poll()  # select fails with descriptors from 1024 on
            poll.register(wakeup, select.POLLIN)
            by_descriptor = {process.fileno(): process for process in self._running}
            for descriptor in by_descriptor:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(1000 * max(0.0, next_tick - now)):
                if descriptor == wakeup:
                    os.read(wakeup, 4096)
                else:
                    self._read(by_descriptor[descriptor])

    def _stop_all(self, number: int, *, is_first: bool) -> None:
        """Pass a signal on to all jobs; kill them at the second one."""
        for process in self._running:
            if is_first:
                process.stop(signal.Signals(number), INTERRUPT_GRACE_S, INTERRUPTED)
            else:
                process.stop(signal.SIGKILL, 0.0, INTERRUPTED)

    def _start_jobs(self) -> None:
        """Start jobs while there are cores and memory for them."""
        num_processes = min(
            self._allocator.num_cores // (self._options.cores or 1),
            self._options.max_running or len(self.entries),
        )
        share = -(-self.count(JobState.WAITING) // max(1, num_processes))
        while entry := self._next_entry():
            if not self._start(self._stack_of(entry, share)):
                return

    def _stack_of(self, entry: QueueEntry, share: int) -> list[QueueEntry]:
        """Return the jobs that run in one process with a waiting one, itself included.

        Args:
            entry: The job.
            share: Jobs for each process if all are started now: more would leave cores idle.
        """
        rule = self._stack_rule(entry)
        if rule is None:
            return [entry]
        entries = (
            each
            for each in self._waiting
            if each.is_stackable
            and self._stack_rule(each) == rule
            and rule.allows(entry.job, each.job)
        )
        return list(islice(entries, max(1, min(rule.at_most, share, MAX_STACKED))))

    def _stack_rule(self, entry: QueueEntry) -> StackRule | None:
        """Return which jobs may run in one process with a job; None if none may."""
        if entry.is_alone or not entry.is_stackable:
            return None
        target = entry.job.target
        key = (str(target.kind), target.name)
        if key not in self._stack_rules:
            self._stack_rules[key] = read_rule(target)
        return self._stack_rules[key]

    def _next_entry(self) -> QueueEntry | None:
        """Return the next job to start; None if it must wait for those that run."""
        if len(self._running) >= (self._options.max_running or len(self.entries)):
            return None
        if any(process.is_alone for process in self._running):
            return None
        if self._waiting:
            entry = self._waiting[0]
            return entry if self._memory.fits(entry.job, list(self._running)) else None
        return self._waiting_alone[0] if self._waiting_alone and not self._running else None

    def _start(self, entries: list[QueueEntry]) -> bool:
        """Start a job, or several in one process; return whether there were enough cores."""
        entry = entries[0]
        allocator = self._allocator
        num_waiting = self.count(JobState.WAITING)
        limit = self._options.max_running
        if limit is not None:
            num_waiting = min(num_waiting, limit - len(self._running))
        count = entry.job.cores or self._options.cores
        if count is None:
            rates = [rate for process in self._running if (rate := process.rate())]
            count = self._cores_per_job.next(num_waiting, allocator.num_free, rates)
        if entry.is_alone:
            count = allocator.num_free
        cores = allocator.take(min(count, allocator.num_cores))
        if cores is None:
            return False
        for each in entries:
            (self._waiting_alone if each.is_alone else self._waiting).remove(each)
            each.num_attempts += 1
            self._folder.forget(each.job)
        try:
            process = JobProcess(
                [each.job for each in entries],
                self._folder,
                cores,
                attempt=entry.num_attempts,
                launch_options=self._options.launch_options,
                common_data=f"/proc/{os.getpid()}/fd/{self._common_data}",
                is_alone=entry.is_alone,
            )
        except ResourceError as error:
            allocator.release(cores)
            if len(entries) > 1:
                self._unstack(entries)
            else:
                self._end(entry, Outcome(exit_code=125, elapsed_s=0.0, error=str(error)))
            return True
        self._cores_per_job.started(len(cores))
        self._running[process] = entries
        for each in entries:
            self._change(each, JobState.RUNNING)
        return True

    def _unstack(self, entries: list[QueueEntry]) -> None:
        """Let jobs that were to share a process wait for one of their own."""
        for entry in entries:
            entry.is_stackable = False
            entry.num_attempts -= 1
            self._change(entry, JobState.WAITING)
            self._waiting.append(entry)

    def _look(self) -> None:
        """Measure memory, stop a job if it is nearly used up, and show the progress."""
        samples = self._sampler.sample(process.supervisor.pid for process in self._running)
        for process in self._running:
            if sample := samples.get(process.supervisor.pid):
                process.memory_bytes = sample.current_bytes
                process.peak_bytes = max(process.peak_bytes, sample.peak_bytes)
        excess = self._memory.excess(list(self._running))
        if excess is not None:
            excess.stop(signal.SIGTERM, MEMORY_GRACE_S, MEMORY)
        if self._watcher.is_live:
            self._watcher.update(self._snapshot())
        now = time.monotonic()
        if self._has_new_results and now >= self._results_at:
            self._results_at = now + RESULTS_INTERVAL_S
            self._write_results()

    def _read(self, process: JobProcess) -> None:
        """Read from a job's supervisor; if the job has ended, decide what follows."""
        rate = process.rate()
        outcome = process.read_answer()
        if outcome is None:
            return
        entries = self._running.pop(process)
        if outcome.reason == SUPERVISOR_KILLED:
            kill_orphans({running.supervisor.pid for running in self._running})
        self._allocator.release(process.cores)
        if not outcome.reason:
            self._memory.ended(outcome)
            self._time_left.add(outcome)
        if rate is None and outcome.is_success and not outcome.steps:
            rate = JobRate(
                cores=outcome.cores, steps_per_s=1 / max(1e-9, outcome.elapsed_s), has_steps=False
            )
        if rate is not None:
            self._cores_per_job.add(rate)
        if len(entries) > 1:
            self._end_stack(process, entries, outcome)
        else:
            self._end(entries[0], outcome)

    def _end_stack(self, process: JobProcess, entries: list[QueueEntry], outcome: Outcome) -> None:
        """Decide what follows the end of a process of several jobs.

        If it has failed, or its script has trained the first alone, the others get processes of
        their own.
        """
        if outcome.reason == INTERRUPTED:
            done, left = entries, []
        elif outcome.is_success:
            done, left = entries[: outcome.stacked], entries[outcome.stacked :]
        else:
            done, left = [], entries
        for place, entry in enumerate(done):
            self._end(entry, process.outcome_of(place, outcome))
        if outcome.is_success and outcome.stacked > 1 and not outcome.result:
            self.faults.append(
                f"{process.job.target.name} must print a JSON object for each of the "
                f"{outcome.stacked} jobs of a process at its end: their results are empty"
            )
        if left:
            self._unstack(left)
            if not outcome.is_success:
                self._watcher.ended(process.job, outcome, JobState.WAITING)

    def _end(self, entry: QueueEntry, outcome: Outcome) -> None:
        """Decide what follows the end of a job's process."""
        entry.outcome = outcome
        was_killed = outcome.reason == MEMORY or (
            outcome.exit_code == KILLED and not outcome.reason
        )
        if outcome.is_success:
            self._change(entry, JobState.DONE)
        elif outcome.reason == INTERRUPTED:
            self._change(entry, JobState.WAITING)
        elif was_killed and not entry.is_alone and len(self.entries) > 1:
            self._change(entry, JobState.WAITING)
            entry.is_alone = True
            entry.num_attempts -= 1
            self._waiting_alone.append(entry)
        elif entry.num_attempts <= entry.job.retries:
            self._change(entry, JobState.WAITING)
            (self._waiting_alone if entry.is_alone else self._waiting).append(entry)
        else:
            self._change(entry, JobState.FAILED)
        if entry.state in (JobState.DONE, JobState.FAILED):
            self._has_new_results = True
            try:
                self._folder.write_outcome(entry.job, outcome)
            except ResourceError as error:
                self._add_fault(error)
        self._watcher.ended(entry.job, outcome, entry.state)

    def _add_fault(self, error: ResourceError) -> None:
        if str(error) not in self.faults:
            self.faults.append(str(error))

    def _write_results(self) -> None:
        self._has_new_results = False
        rows = [
            result_row(entry.job, entry.outcome)
            for entry in self.entries
            if entry.outcome is not None and entry.state in (JobState.DONE, JobState.FAILED)
        ]
        parameters = list(dict.fromkeys(
            name for entry in self.entries for name in entry.job.parameters
        ))  # fmt: skip
        try:
            self._folder.write_results(rows, parameters)
        except ResourceError as error:
            self._add_fault(error)

    def _snapshot(self) -> QueueSnapshot:
        running = []
        for process in self._running:
            rate = process.rate()
            running.append(
                RunningJob(
                    name=process.job.name,
                    cores=len(process.cores),
                    elapsed_s=process.elapsed_s,
                    steps=process.steps,
                    steps_per_s=None if rate is None else rate.steps_per_s,
                    loss=last_values(last_lines(process.log)).get("loss"),
                    memory_bytes=process.memory_bytes,
                    left_s=self._time_left.of_job(process),
                )
            )
        num_waiting = self.count(JobState.WAITING)
        return QueueSnapshot(
            counts={state: self.count(state) for state in JobState},
            running=tuple(running),
            elapsed_s=time.monotonic() - self._started_at,
            left_s=self._time_left.of_queue(
                list(self._running), num_waiting, self._allocator.num_cores
            ),
            is_stopping=bool(self._signals),
        )
