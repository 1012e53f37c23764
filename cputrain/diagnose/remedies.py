"""Run a script with the remedies that are launch options, and measure their speed-ups."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.diagnose.diagnosis import profile_script
from cputrain.diagnose.finding import TriedRemedy
from cputrain.errors import UsageError
from cputrain.settings.core.registry import PLAIN_VALUES, SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.diagnose.diagnosis import Diagnosis
    from cputrain.diagnose.finding import Finding
    from cputrain.diagnose.step_profile import StepProfile
    from cputrain.tune.trial import Script

ALL_REMEDIES = "all of them, and the defaults of cputrain launch"
"""Title of the run with all remedies."""


def is_triable(finding: Finding, *, reduced: bool) -> bool:
    """Return whether a remedy consists of launch options and may be tried.

    Args:
        finding: Finding with the remedy.
        reduced: Whether remedies that lower the precision are allowed.
    """
    if finding.settings is None:
        return False
    return finding.exact or (
        reduced and all(SETTINGS[name].lowers_precision for name in finding.settings)
    )


def try_remedies(
    script: Script,
    diagnosis: Diagnosis,
    *,
    steps: int,
    longest: float,
    reduced: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[TriedRemedy, ...]:
    """Run the script with each remedy alone and with all, and return the measured speed-ups.

    KeyboardInterrupt ends it with the remedies that were measured.

    A remedy that changes results is not tried, unless it lowers the precision and `reduced` is
    set. The script runs under plain python once more; the speed-ups refer to the mean of its step
    times before and after.

    Args:
        script: Script that was diagnosed.
        diagnosis: Its diagnosis.
        steps: Number of steps that are timed.
        longest: Time limit of a run in seconds.
        reduced: Whether to try remedies that lower the precision.
        tell: Called with a message before each run.
    """
    tried = [finding for finding in diagnosis.findings if is_triable(finding, reduced=reduced)]
    if not tried:
        return ()

    def profile_with(settings: dict[str, str] | None) -> StepProfile | str:
        """Return the step profile with some settings, or the error."""
        try:
            return profile_script(script, steps, longest, settings=settings)[0]
        except UsageError as error:
            return str(error.found)

    threads = {"threads": str(diagnosis.seen.threads)}
    runs: list[tuple[str, dict[str, str], float | None, dict[str, str]]] = [
        (finding.title, finding.settings or {}, finding.speedup,
         {**PLAIN_VALUES, **threads, **(finding.settings or {})})
        for finding in tried
    ]  # fmt: skip
    combined: dict[str, str] = {}
    for finding in reversed(tried):  # where two set the same option, the larger gain wins
        combined.update(finding.settings or {})
    runs.append((ALL_REMEDIES, combined, None, combined))
    results: list[StepProfile | str] = []
    tell(f"{counted(len(runs) + 1, 'more run')} of the script; Ctrl-C keeps what is measured")
    repeated: StepProfile | str = ""
    try:
        for title, _, _, settings in runs:
            tell(f"with {title}" if title == ALL_REMEDIES else f"remedy against: {title}")
            results.append(profile_with(settings))
        tell("plain python once more")
        repeated = profile_with(None)
    except KeyboardInterrupt:
        tell(f"interrupted after {counted(len(results), 'remedy', 'remedies')}")
    plain_s = (
        diagnosis.seen.step
        if isinstance(repeated, str)
        else (diagnosis.seen.step + repeated.step) / 2
    )
    return tuple(
        TriedRemedy(
            title=title, settings=settings, predicted=predicted,
            measured=None if isinstance(result, str) else plain_s / result.step,
            fault=result if isinstance(result, str) else "",
        )
        for (title, settings, predicted, _), result in zip(runs, results, strict=False)
    )  # fmt: skip
