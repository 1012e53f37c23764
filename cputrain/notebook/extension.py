"""IPython extension `%load_ext cputrain`: registers the magics, and tables to display values."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RENDERERS = {
    ("cputrain.plan.plan", "Plan"): "plan",
    ("cputrain.machine.facts", "Machine"): "machine",
    ("cputrain.tune.result", "SearchResult"): "search_result",
}
"""Prefix of the functions of cputrain.report that render a class, by its module and name.

The packages of these classes may not import cputrain.report, so the formatters are registered here;
IPython registers them by name, and imports nothing."""


def load_ipython_extension(shell: Any) -> None:
    """Register the magics and formatters; IPython calls it for `%load_ext cputrain`."""
    from cputrain.notebook.magics import cputrain_setup, tune_magic

    shell.register_magic_function(cputrain_setup, "line", "cputrain_setup")
    shell.register_magic_function(tune_magic(shell), "line_cell", "cputrain_tune")
    register_formatters(shell)


def register_formatters(shell: Any) -> None:
    """Have IPython display plans, machines and search results as tables."""
    for (module, name), renderer in RENDERERS.items():
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type_by_name(module, name, _html_formatter(renderer))
        formatters["text/plain"].for_type_by_name(module, name, _text_formatter(renderer))


def unload_ipython_extension(shell: Any) -> None:
    """Remove magics and formatters, for `%unload_ext cputrain`; applied settings stay applied."""
    for name in ("cputrain_setup", "cputrain_tune"):
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    for module, name in RENDERERS:
        for kind in ("text/html", "text/plain"):
            shell.display_formatter.formatters[kind].pop(f"{module}.{name}", None)


def _html_formatter(renderer: str) -> Callable[[object], str]:
    def render(value: object) -> str:
        from cputrain.report import html

        text: str = getattr(html, f"{renderer}_html")(value)
        return text

    return render


def _text_formatter(renderer: str) -> Callable[..., None]:
    def render(value: object, printer: Any, cycle: bool) -> None:  # noqa: ARG001  (IPython's form)
        from cputrain.report import plain

        printer.text(getattr(plain, f"{renderer}_text")(value))

    return render
