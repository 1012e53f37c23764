"""Folder of a queue: logs, outcomes and results, from which a queue continues after its end.

many-train/
    logs/NAME.log          what a job has printed
    outcomes/NAME.json     how a job has ended; written whole or not at all
    progress/NAME          steps of running jobs
    results.jsonl          a line for each job that has ended
    results.csv            the same as a table
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from contextlib import suppress

from cputrain.errors import ResourceError, UsageError
from cputrain.many.job import Job, Outcome
from cputrain.many.output import last_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SUBFOLDERS = ("logs", "outcomes", "progress")

COLUMNS = ("state", "exit_code", "elapsed_s", "steps", "peak_bytes", "cores", "attempts", "stacked",
           "error")  # fmt: skip
"""Columns of results.csv between the parameters and what the jobs printed."""


class Folder:
    """Folder of one queue, which it holds alone.

    Args:
        path: The folder; it is created.
        task: Number of the only job that is run, by a task of Slurm; None for a whole queue.

    Raises:
        UsageError: Another queue uses it, or it cannot be written to.
    """

    def __init__(self, path: str, task: int | None = None) -> None:
        self.path = os.path.abspath(path)
        self.is_of_task = task is not None
        """Whether other tasks have jobs of the same queue."""
        lock = "lock" if task is None else f"lock-{task}"
        try:
            for name in SUBFOLDERS:
                os.makedirs(os.path.join(self.path, name), exist_ok=True)
            self._lock = open(os.path.join(self.path, lock), "a+", encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                "--folder",
                "must be a folder that can be written to",
                found=f"{path}: {error.strerror}",
                do="Name another folder.",
            ) from None
        self._take_lock(path)

    def _take_lock(self, path: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise UsageError(
                "--folder",
                "must be used by one queue at a time",
                found=f"{path}, which the process {holder} uses",
                do="Wait for it, or name another folder.",
            ) from None
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def close(self) -> None:
        """Let other queues use the folder."""
        if not self.is_of_task:
            for name in os.listdir(os.path.join(self.path, "progress")):
                os.unlink(os.path.join(self.path, "progress", name))
        self._lock.truncate(0)
        self._lock.close()

    def log(self, job: Job) -> str:
        """Return the path of a job's output."""
        return os.path.join(self.path, "logs", f"{job.file_name}.log")

    def outcome(self, job: Job) -> str:
        """Return the path of a job's outcome."""
        return os.path.join(self.path, "outcomes", f"{job.file_name}.json")

    def progress(self, job: Job) -> str:
        """Return the path of a job's count of steps."""
        return os.path.join(self.path, "progress", job.file_name)

    def read_outcome(self, job: Job) -> Outcome | None:
        """Return how a job ended in an earlier run; None if it has not ended."""
        try:
            with open(self.outcome(job), encoding="utf-8") as file:
                document = json.load(file)
            if document["key"] != job.key:
                return None
            values = {name: document[name] for name in Outcome.record_fields if name in document}
            outcome = Outcome(**values)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if "result" not in document:  # the queue ended before it read the job's output
            outcome = outcome.replace(
                **last_result(
                    self.log(job),
                    has_failed=not outcome.is_success,
                    stacked=outcome.stacked,
                    place=outcome.place,
                )
            )
        return outcome

    def stack(self, job: Job) -> str:
        """Return the path of the arguments of all jobs that one process is to train."""
        return f"{self.progress(job)}.stack"

    def share_log(self, first: Job, job: Job) -> None:
        """Let a job's output be that of another, whose process trains it, too.

        Raises:
            OSError: The file system has no links.
        """
        os.link(self.log(first), self.log(job))

    def forget(self, job: Job) -> None:
        """Remove a job's outcome and output, before it is started again."""
        for path in (self.outcome(job), self.log(job)):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def write_outcome(self, job: Job, outcome: Outcome) -> None:
        """Save how a job ended.

        Raises:
            ResourceError: It cannot be written.
        """
        text = json.dumps({"key": job.key, **outcome.as_json()})
        self._write(self.outcome(job), text)

    def write_results(self, rows: Sequence[Mapping[str, Any]], parameters: Sequence[str]) -> None:
        """Write the results of all jobs so far, as JSON lines and as a table.

        Args:
            rows: One for each job that has ended, as `result_row` makes it.
            parameters: Names of the parameters.

        Raises:
            ResourceError: They cannot be written.
        """
        if self.is_of_task:
            return
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self._write(os.path.join(self.path, "results.jsonl"), lines)
        values = list(dict.fromkeys(name for row in rows for name in row["result"]))
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["job", *parameters, *COLUMNS, *values])
        for row in rows:
            writer.writerow([
                row["job"],
                *(row["parameters"].get(name, "") for name in parameters),
                *(row[name] for name in COLUMNS),
                *(row["result"].get(name, "") for name in values),
            ])  # fmt: skip
        self._write(os.path.join(self.path, "results.csv"), table.getvalue())

    def _write(self, path: str, text: str) -> None:
        temporary = f"{path}.{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            raise ResourceError.of(error, path, "could not be written") from None


def result_row(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return a job's line of results.jsonl."""
    return {
        "job": job.name,
        "parameters": job.parameters,
        "state": "done" if outcome.is_success else "failed",
        "exit_code": outcome.exit_code,
        "elapsed_s": round(outcome.elapsed_s, 3),
        "steps": outcome.steps,
        "peak_bytes": outcome.peak_bytes,
        "cores": outcome.cores,
        "attempts": outcome.attempts,
        "stacked": outcome.stacked,
        "error": outcome.reason or outcome.error,
        "result": outcome.result,
    }
