"""Text and marks of the page: everything that comes from a script is escaped here."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def element(name: str, *inside: str, **attributes: object) -> str:
    """An element; its attributes are escaped, what is inside is markup already. A name that Python
    has for itself ends in an underscore, and others stand for hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>"


def text(name: str, what: object, **attributes: object) -> str:
    """An element with a text."""
    return element(name, escape(str(what)), **attributes)


def tip(*lines: str) -> str:
    """What is told of a mark when it is pointed at, or comes into focus."""
    return "\n".join(line for line in lines if line)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[int] = frozenset()
) -> str:
    """A table, which may be wider than a phone. Cells are markup already."""

    def cell(name: str, at: int, inside: str) -> str:
        return element(name, inside, class_="number" if at in numbers else None)

    top = element("tr", *(cell("th", at, escape(one)) for at, one in enumerate(head)))
    lines = [element("tr", *(cell("td", at, one) for at, one in enumerate(row))) for row in rows]
    whole = element("table", element("thead", top), element("tbody", *lines))
    return element("div", whole, class_="wide")


def part(share: float) -> str:
    """A place or a length within a chart, in percent."""
    return f"{100 * share:.3f}%"
