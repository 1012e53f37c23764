"""%load_ext cputrain: the magics, and how values of ours are shown."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHOWN = {
    ("cputrain.plan.plan", "Plan"): "plan",
    ("cputrain.machine.facts", "Machine"): "machine",
    ("cputrain.tune.found", "Found"): "found",
}
"""Where each value lives, and how cputrain.report calls it. These parts may not import a report,
so that they are shown is said here; IPython waits until somebody loads them."""


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext cputrain."""
    from cputrain.notebook.magics import cputrain_setup, tune_magic

    shell.register_magic_function(cputrain_setup, "line", "cputrain_setup")
    shell.register_magic_function(tune_magic(shell), "line_cell", "cputrain_tune")
    show_values(shell)


def show_values(shell: Any) -> None:
    """Have values of ours shown as tables."""
    for (module, name), what in SHOWN.items():
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type_by_name(module, name, _html(what))
        formatters["text/plain"].for_type_by_name(module, name, _text(what))


def unload_ipython_extension(shell: Any) -> None:
    """Called by %unload_ext cputrain. What was applied stays."""
    for name in ("cputrain_setup", "cputrain_tune"):
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    for module, name in SHOWN:
        for kind in ("text/html", "text/plain"):
            shell.display_formatter.formatters[kind].pop(f"{module}.{name}", None)


def _html(what: str) -> Callable[[object], str]:
    def shown(value: object) -> str:
        from cputrain.report import html

        made: str = getattr(html, f"{what}_html")(value)
        return made

    return shown


def _text(what: str) -> Callable[..., None]:
    def shown(value: object, printer: Any, cycle: bool) -> None:  # noqa: ARG001  (IPython's form)
        from cputrain.report import plain

        printer.text(getattr(plain, f"{what}_text")(value))

    return shown
