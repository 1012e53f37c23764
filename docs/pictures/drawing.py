"""SVG pictures with one palette, readable on light and dark screens and on paper."""

from __future__ import annotations

from html import escape

INK, PAPER, FAINT, LINE = "#16323d", "#ffffff", "#5b717b", "#b9c7cd"
COLORS = ("#0b6e8a", "#b8581b", "#4b7a2b", "#7a4b9a")
"""Colors with a contrast of at least 4.5 on paper."""

TINTS = ("#d8edf3", "#f8e3d3", "#e0efd6", "#ebe0f3")
"""The same, for areas with text on them."""

FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Drawing:
    """A picture of fixed size on a white card.

    Args:
        width: Width of the view box.
        height: Height of the view box.
        title: What is to be seen, for screen readers.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="{FONT}" font-size="13" fill="{INK}">\n'
            f"<title>{escape(title)}</title>\n"
        )
        self._parts: list[str] = []
        self.box(0.5, 0.5, width - 1, height - 1, fill=PAPER, stroke=LINE, radius=8)

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = PAPER,
        stroke: str = INK, radius: float = 4,
    ) -> None:  # fmt: skip
        """Draw a rectangle with round corners."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: float = 13,
        color: str = INK, bold: bool = False, mono: bool = False,
    ) -> None:  # fmt: skip
        """Write a line of text with its baseline at `y`."""
        style = ' font-weight="600"' * bold + f' font-family="{MONO}"' * mono
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}" '
            f'fill="{color}"{style}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = INK, width: float = 1.2,
        dashes: str = "",
    ) -> None:  # fmt: skip
        """Draw a straight line."""
        style = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" '
            f'stroke-width="{width:g}"{style}/>'
        )

    def circle(self, x: float, y: float, radius: float, *, fill: str) -> None:
        """Draw a disc."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, color: str = FAINT) -> None:
        """Draw a line with a head at its end."""
        length = max(1e-9, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        self.line(x1, y1, x2 - 6 * dx, y2 - 6 * dy, color=color, width=1.6)
        points = [(x2, y2), (x2 - 9 * dx - 4 * dy, y2 - 9 * dy + 4 * dx),
                  (x2 - 9 * dx + 4 * dy, y2 - 9 * dy - 4 * dx)]  # fmt: skip
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{path}" fill="{color}"/>')

    def svg(self) -> str:
        """Return the picture as a document."""
        return self._head + "\n".join(self._parts) + "\n</svg>\n"
