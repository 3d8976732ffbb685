"""A sheet on which pictures are drawn, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from meshfeed.launch.palette import INK, PAPER
from meshfeed.pipeline.plan.errors import ConfigError

_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
_STRIPE = 13.0


@dataclass(slots=True)
class Sheet:
    """SVG elements, in drawing order.

    Attributes:
        width, height: in units of the drawing.
        body: elements.
        defs: what they refer to.
    """

    width: float
    height: float
    body: list[str] = field(default_factory=list)
    defs: list[str] = field(default_factory=list)

    def rect(
        self,
        box: tuple[float, float, float, float],
        fill: str,
        *,
        radius: float = 0,
        extra: str = "",
    ) -> None:
        """A rectangle; ``box`` is left, top, width, height."""
        x, y, width, height = box
        self.body.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'rx="{radius:.1f}" fill="{fill}"{" " + extra if extra else ""}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12,
        fill: str = INK,
        bold: bool = False,
        anchor: str = "start",
        extra: str = "",
    ) -> None:
        """Words whose middle line is at ``y``."""
        weight = ' font-weight="600"' if bold else ""
        self.body.append(
            f'<text x="{x:.1f}" y="{y + size * 0.36:.1f}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}{" " + extra if extra else ""}>{escape(words)}</text>'
        )

    def line(self, points: tuple[float, float, float, float], colour: str, extra: str = "") -> None:
        """A line; ``points`` is x1, y1, x2, y2."""
        x1, y1, x2, y2 = points
        self.body.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" '
            f'stroke="{colour}" {extra}/>'
        )

    def stripes(self, name: str, colours: Sequence[str]) -> str:
        """A fill of slanted stripes, one colour after another, over and over."""
        share = 100 / len(colours)
        stops = "".join(
            f'<stop offset="{at:.3f}%" stop-color="{colour}"/>'
            for i, colour in enumerate(colours)
            for at in (i * share, (i + 1) * share)
        )
        reach = _STRIPE * len(colours) / 2**0.5
        self.defs.append(
            f'<linearGradient id="{name}" gradientUnits="userSpaceOnUse" spreadMethod="repeat" '
            f'x1="0" y1="0" x2="{reach:.2f}" y2="{reach:.2f}">{stops}</linearGradient>'
        )
        return f"url(#{name})"

    def render(self, title: str) -> str:
        """The SVG text."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" font-family="{_FONT}" role="img">'
            f"<title>{escape(title)}</title><defs>{''.join(self.defs)}</defs>"
            f'<rect width="{self.width:g}" height="{self.height:g}" fill="{PAPER}"/>'
            f"{''.join(self.body)}</svg>\n"
        )


def write_picture(path: Path, svg: str) -> None:
    """Writes SVG text, making folders that are missing.

    Raises:
        ConfigError: the path is that of another format.
    """
    if path.suffix.lower() != ".svg":
        raise ConfigError(
            "picture", f"{path} is no .svg file", "A browser shows it and can save it as PNG"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")
