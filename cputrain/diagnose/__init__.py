"""Diagnose why a training script is slower than the machine allows, and what to do about it."""

from __future__ import annotations

from cputrain.diagnose.comparison import DiagnosisComparison, compare
from cputrain.diagnose.diagnosis import Diagnosis, diagnose
from cputrain.diagnose.document import read_diagnosis
from cputrain.diagnose.finding import Confidence, Finding, TriedRemedy
from cputrain.diagnose.remedies import try_remedies
from cputrain.diagnose.roof import Roof

__all__ = [
    "Confidence",
    "Diagnosis",
    "DiagnosisComparison",
    "Finding",
    "Roof",
    "TriedRemedy",
    "compare",
    "diagnose",
    "read_diagnosis",
    "try_remedies",
]
