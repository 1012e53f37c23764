"""The process in which a backend is asked for, or examined: what goes wrong ends here.

python -m cputrain.backends probe NAME HOST      answers with lines of JSON
python -m cputrain.backends examine NAME         reads a line of JSON, answers with one; so on
"""

from __future__ import annotations

import json
import os
import sys

from cputrain.backends.backend import Available, Host
from cputrain.backends.process import MARK
from cputrain.backends.registry import backend_called

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Backend


def main(argv: list[str]) -> int:
    """Do the one or the other."""
    # what libraries print is not ours to answer with
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def answer(document: dict[str, Any]) -> None:
            print(f"{MARK}{json.dumps(document)}", file=answers, flush=True)

        try:
            backend = backend_called(argv[1])
        except Exception as error:  # (another package's code: whatever it raises is told)
            answer({"unavailable": {"reason": f"it cannot be loaded: {_told(error)}", "do": ""}})
            return 0
        if argv[0] == "probe":
            host = json.loads(argv[2])
            _probe(backend, Host(**{**host, "isa": frozenset(host["isa"])}), answer)
        else:
            _examine(backend, answer)
    return 0


def _probe(backend: Backend, host: Host, answer: Any) -> None:
    answer(
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
        found = backend.probe(host)
    except Exception as error:  # (another package's code: whatever it raises is told)
        answer({"unavailable": {"reason": f"its probe fails: {_told(error)}", "do": ""}})
        return
    if not isinstance(found, Available):
        answer({"unavailable": found.as_json()})
        return
    answer({"available": found.as_json()})
    if problem := _problem_of_import(backend):
        answer({"unavailable": {"reason": problem, "do": ""}})


def _problem_of_import(backend: Backend) -> str:
    try:
        backend.load()
    except Exception as error:  # (another package's code: whatever it raises is told)
        return f"it cannot be imported: {_told(error)}"
    return ""


def _examine(backend: Backend, answer: Any) -> None:
    from cputrain.backends.examination import Examination

    examination = Examination(backend)
    problem = _problem_of_import(backend)
    for line in sys.stdin:
        if problem:
            answer({"unavailable": {"reason": problem, "do": ""}})
            continue
        try:
            answer(examination.do(json.loads(line)))
        except Exception as error:  # (the backend's: whatever it raises is what was found)
            answer({"error": _told(error)})


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
