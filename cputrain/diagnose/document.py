"""Read a diagnosis from the JSON document that `cputrain diagnose --json` prints."""

from __future__ import annotations

import json

from cputrain.diagnose.diagnosis import KIND, SCHEMA_VERSION, Diagnosis
from cputrain.diagnose.rates import is_possible
from cputrain.diagnose.records import record_from
from cputrain.errors import UsageError, text_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cputrain.diagnose.finding import Finding

ADVICE = "Make one with: cputrain diagnose --json SCRIPT > run.json"

MAX_CHARACTERS = 1 << 28
"""Characters of a file that are read; a larger file is truncated and then rejected."""


def read_diagnosis(path: str) -> Diagnosis:
    """Return the diagnosis in a file.

    Raises:
        UsageError: The file has no valid diagnosis; the message names the first fault.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS)
        document = json.loads(text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(path, "must be a file that can be read", found=reason, do=ADVICE) from None
    except UnicodeDecodeError:
        raise UsageError(path, "must be a JSON document", found="no text", do=ADVICE) from None
    except (ValueError, RecursionError):
        raise UsageError(
            path, "must be a JSON document", found=text_kind(text), do=ADVICE
        ) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(
            path, "must be the output of cputrain diagnose --json", found="another document",
            do=ADVICE,
        )  # fmt: skip
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            path, f"must have schema_version {SCHEMA_VERSION}",
            found=repr(document.get("schema_version"))[:80], do=ADVICE,
        )  # fmt: skip
    try:
        diagnosis = record_from(Diagnosis, document)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            path, "must hold a complete diagnosis", found=str(error), do=ADVICE
        ) from None
    return diagnosis.replace(findings=tuple(_possible(diagnosis.findings)))


def _possible(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings without impossible figures, which earlier versions of cputrain wrote."""
    for finding in findings:
        if is_possible(finding.title):
            yield finding.replace(evidence=tuple(filter(is_possible, finding.evidence)))
