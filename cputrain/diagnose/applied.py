"""Remedies that are options, tried: is the gain what was predicted?"""

from __future__ import annotations

from cputrain.diagnose.diagnosis import run
from cputrain.diagnose.finding import Applied
from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.diagnose.diagnosis import Diagnosis
    from cputrain.diagnose.finding import Finding
    from cputrain.diagnose.seen import Seen
    from cputrain.tune.trial import Script

BARE = {
    "placement": "none", "memory_policy": "local", "loader": "off", "allocator": "default",
    "huge_pages": "off", "short_waits": "off", "flush_denormals": "off", "fused_optimizer": "off",
    "channels_last": "off", "compile": "off", "gradient_exchange": "torch",
}  # fmt: skip
"""A launch that changes nothing by itself, so that a remedy is alone."""

TOGETHER = "all of them, and what cputrain launch does by itself"


FEWER_BITS = frozenset({"precision"})
"""Options that give up bits, which `--precision` allows."""


def is_tried(finding: Finding, *, reduced: bool) -> bool:
    """Return whether a remedy is an option that may be tried."""
    if finding.settings is None:
        return False
    return finding.exact or (reduced and finding.settings.keys() <= FEWER_BITS)


def apply(
    script: Script,
    found: Diagnosis,
    *,
    steps: int,
    longest: float,
    reduced: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Applied, ...]:
    """Run the script with each remedy alone, and with all. Those that give up bits are tried only
    where that is allowed, and others that are not exact never. Plain python runs once more, and a
    step of it is the mean of both."""
    tried = [one for one in found.findings if is_tried(one, reduced=reduced)]
    if not tried:
        return ()

    def step_of(settings: dict[str, str] | None) -> Seen | str:
        try:
            return run(script, steps, longest, settings=settings)[0]
        except UsageError as error:
            return str(error.found)

    threads = {"threads": str(found.seen.threads)}
    ways: list[tuple[str, dict[str, str], float | None, dict[str, str]]] = [
        (one.title, one.settings or {}, one.speedup, {**BARE, **threads, **(one.settings or {})})
        for one in tried
    ]
    every: dict[str, str] = {}
    for one in reversed(tried):  # where two say something else of one option, the larger gain does
        every.update(one.settings or {})
    ways.append((TOGETHER, every, None, every))
    steps_seen: list[Seen | str] = []
    for title, _, _, settings in ways:
        tell(f"with {title}" if title == TOGETHER else f"without: {title}")
        steps_seen.append(step_of(settings))
    tell("plain python once more")
    again = step_of(None)
    plain = found.seen.step if isinstance(again, str) else (found.seen.step + again.step) / 2
    return tuple(
        Applied(
            title=title, settings=settings, predicted=predicted,
            measured=None if isinstance(seen, str) else plain / seen.step,
            fault=seen if isinstance(seen, str) else "",
        )
        for (title, settings, predicted, _), seen in zip(ways, steps_seen, strict=True)
    )  # fmt: skip
