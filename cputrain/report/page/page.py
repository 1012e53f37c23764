"""HTML page of a diagnosis: the template page.html, with what it draws computed here."""

from __future__ import annotations

from importlib.resources import files

from cputrain.machine import format_list
from cputrain.report import figures
from cputrain.report.page.roofline import make_roofline
from cputrain.report.page.timeline import make_timeline, phases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cputrain.diagnose import Diagnosis

CAUSE_NAMES = {
    "memory": "memory traffic",
    "capacity": "too little memory",
    "work": "too little parallel work",
    "input": "waiting for input",
    "overlap": "poor overlap",
    "units": "unused CPU units",
    "code": "unoptimised code",
}
"""Display name of each cause."""


LEAST_SHARE = 0.005
"""Fraction of a step below which layers are folded."""


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the HTML page of a diagnosis, with its style sheet and script embedded."""
    from jinja2 import Environment
    from markupsafe import Markup

    folder = files("cputrain.report.page")
    template, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    environment.filters.update(
        command=_command,
        cpu_list=format_list,
        milliseconds=figures.milliseconds,
        options=_options,
        percent=_percent,
        reached=figures.reached,
        roughness=figures.roughness,
        shapes=figures.shapes,
        spread=figures.spread,
        tip=_tip,
        whole_percent="{:.0%}".format,
    )
    return environment.from_string(template).render(
        diagnosis=diagnosis,
        seen=diagnosis.seen,
        phases=phases(diagnosis.seen),
        timeline=make_timeline(diagnosis.seen),
        roofline=make_roofline(diagnosis),
        cause_names=CAUSE_NAMES,
        least_share=LEAST_SHARE,
        no_finding=figures.no_finding(diagnosis),
        operator_share=figures.operator_share,
        part_of=figures.part_of,
        rate=figures.rate,
        style=Markup(style),
        script=Markup(script),
    )


def _percent(fraction: float) -> str:
    """Format a fraction as a percentage for CSS and SVG."""
    return f"{100 * fraction:.3f}%"


def _tip(lines: Iterable[str]) -> str:
    """Return the tooltip of a mark from its non-empty lines."""
    return "\n".join(filter(None, lines))


def _command(settings_and_script: tuple[Mapping[str, str], str]) -> str:
    """Return the command line of a remedy."""
    from shlex import quote

    settings, script = settings_and_script
    return " ".join(filter(None, ("cputrain launch", _options(settings), quote(script))))


def _options(settings: Mapping[str, str]) -> str:
    """Format settings as command-line options."""
    return " ".join(figures.option(*setting) for setting in settings.items())
