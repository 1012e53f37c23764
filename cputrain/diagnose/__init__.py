"""Why a script is slower than the machine allows, and what to do about it."""

from __future__ import annotations

from cputrain.diagnose.applied import Applied, apply
from cputrain.diagnose.diagnosis import Diagnosis, diagnose
from cputrain.diagnose.finding import Finding, Sure
from cputrain.diagnose.roof import Roof

__all__ = ["Applied", "Diagnosis", "Finding", "Roof", "Sure", "apply", "diagnose"]
