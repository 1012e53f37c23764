"""HTML elements of the page; text that comes from a script is escaped here."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def element(name: str, *inside: str, **attributes: object) -> str:
    """Return an element with escaped attributes around inner markup.

    In attribute names a trailing underscore is dropped (`class_`), and others become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>"


def text(name: str, what: object, **attributes: object) -> str:
    """Return an element with escaped text."""
    return element(name, escape(str(what)), **attributes)


def tip(*lines: str) -> str:
    """Return the tooltip of a mark from its non-empty lines."""
    return "\n".join(line for line in lines if line)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[int] = frozenset()
) -> str:
    """Return a table in a scrollable container; cells are markup, `numbers` are numeric columns."""

    def cell(name: str, at: int, inside: str) -> str:
        return element(name, inside, class_="number" if at in numbers else None)

    top = element("tr", *(cell("th", at, escape(one)) for at, one in enumerate(head)))
    lines = [element("tr", *(cell("td", at, one) for at, one in enumerate(row))) for row in rows]
    whole = element("table", element("thead", top), element("tbody", *lines))
    return element("div", whole, class_="wide")


def part(share: float) -> str:
    """Format a fraction as a percentage for CSS and SVG."""
    return f"{100 * share:.3f}%"
