"""Entry point of a backend's process, which probes or examines the backend.

A separate process contains crashes and output of the backend's libraries.

    python -m cputrain.backends probe NAME HOST      prints answers as lines of JSON
    python -m cputrain.backends examine NAME         answers each line of JSON on stdin with a line
"""

from __future__ import annotations

import json
import os
import sys

from cputrain.backends.backend import Available, Host
from cputrain.backends.process import ANSWER_PREFIX
from cputrain.backends.registry import load_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Backend


def main(argv: list[str]) -> int:
    """Probe or examine a backend, as `argv` says; return the exit code 0."""
    # Answers go to the original stdout; what libraries print goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout_file:
        os.dup2(2, 1)

        def send_answer(document: dict[str, Any]) -> None:
            print(f"{ANSWER_PREFIX}{json.dumps(document)}", file=stdout_file, flush=True)

        try:
            backend = load_backend(argv[1])
        except Exception as error:  # another package's code may raise anything
            send_answer(
                {
                    "unavailable": {
                        "reason": f"it cannot be loaded: {_describe_error(error)}",
                        "do": "",
                    }
                }
            )
            return 0
        if argv[0] == "probe":
            host = json.loads(argv[2])
            _probe(backend, Host(**{**host, "isa": frozenset(host["isa"])}), send_answer)
        else:
            _examine(backend, send_answer)
    return 0


def _probe(backend: Backend, host: Host, send_answer: Any) -> None:
    send_answer(
        {
            "title": backend.title,
            "purpose": backend.purpose,
            "torch": backend.torch,
            "legacy": backend.legacy,
            "trains": backend.trains,
            "evaluates": backend.evaluates,
            "environment": dict(backend.environment()),
        }
    )
    try:
        result = backend.probe(host)
    except Exception as error:  # another package's code may raise anything
        send_answer(
            {"unavailable": {"reason": f"its probe fails: {_describe_error(error)}", "do": ""}}
        )
        return
    if not isinstance(result, Available):
        send_answer({"unavailable": result.as_json()})
        return
    send_answer({"available": result.as_json()})
    if problem := _import_problem(backend):
        send_answer({"unavailable": {"reason": problem, "do": ""}})


def _import_problem(backend: Backend) -> str:
    try:
        backend.load()
    except Exception as error:  # another package's code may raise anything
        return f"it cannot be imported: {_describe_error(error)}"
    return ""


def _examine(backend: Backend, send_answer: Any) -> None:
    from cputrain.backends.examination import Examination

    examination = Examination(backend)
    problem = _import_problem(backend)
    for line in sys.stdin:
        if problem:
            send_answer({"unavailable": {"reason": problem, "do": ""}})
            continue
        try:
            send_answer(examination.handle(json.loads(line)))
        except Exception as error:  # an exception of the backend is a result of the examination
            send_answer({"error": _describe_error(error)})


def _describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
