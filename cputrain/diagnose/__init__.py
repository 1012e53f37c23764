"""Why a script is slower than the machine allows, and what to do about it."""

from __future__ import annotations

from cputrain.diagnose.applied import apply
from cputrain.diagnose.compared import Compared, compare
from cputrain.diagnose.diagnosis import Diagnosis, diagnose
from cputrain.diagnose.finding import Applied, Finding, Sure
from cputrain.diagnose.kept import read_diagnosis
from cputrain.diagnose.roof import Roof

__all__ = [
    "Applied",
    "Compared",
    "Diagnosis",
    "Finding",
    "Roof",
    "Sure",
    "apply",
    "compare",
    "diagnose",
    "read_diagnosis",
]
