"""HTML and SVG elements of the page; this module escapes all text."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def element(name: str, *inside: str, **attributes: object) -> str:
    """Return an element with escaped attributes around inner markup.

    In attribute names a trailing underscore is dropped (`class_`), and others become hyphens.
    An attribute with the value None is omitted.
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{attribute_text}>{''.join(inside)}</{name}>"


def text(name: str, content: object, **attributes: object) -> str:
    """Return an element with escaped text."""
    return element(name, escape(str(content)), **attributes)


def tip(*lines: str) -> str:
    """Return the tooltip of a mark from its non-empty lines."""
    return "\n".join(line for line in lines if line)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[int] = frozenset()
) -> str:
    """Return a table in a scrollable container.

    Args:
        head: Headings, as text.
        rows: Cells of each row, as markup.
        numbers: Indices of numeric columns.
    """

    def cell(name: str, index: int, inside: str) -> str:
        return element(name, inside, class_="number" if index in numbers else None)

    header = element("tr", *(cell("th", index, escape(name)) for index, name in enumerate(head)))
    body = [
        element("tr", *(cell("td", index, markup) for index, markup in enumerate(row)))
        for row in rows
    ]
    markup = element("table", element("thead", header), element("tbody", *body))
    return element("div", markup, class_="wide")


def percent(fraction: float) -> str:
    """Format a fraction as a percentage for CSS and SVG."""
    return f"{100 * fraction:.3f}%"
