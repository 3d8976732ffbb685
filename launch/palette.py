"""Colours for hosts: evenly spread hues of about the same lightness, in any number.

Hues are spread in OKLCH, where equal steps look equal (Björn Ottosson, "A perceptual color space
for image processing", 2020). Where neighbours would look alike every second one is darker, as long
as an eye can tell them apart.
"""

from __future__ import annotations

import math

INK = "#1b2432"
QUIET = "#68727f"
FAINT = "#d9dee5"
PAPER = "#ffffff"
CARD = "#f5f7fa"

_FIRST_HUE = 0.70  # of a turn: blue, with which a picture of one host looks calm
_CIRCLE = 0.9  # of a turn, so that the last host does not look like the first
_ALTERNATE = range(9, 65)


def host_colours(count: int) -> list[str]:
    """``#rrggbb`` for each of ``count`` hosts."""
    colours = []
    for i in range(count):
        turn = (_FIRST_HUE + _CIRCLE * i / max(count, 3)) % 1.0
        dark = count in _ALTERNATE and i % 2
        colours.append(oklch(0.64 if dark else 0.74, 0.115 if dark else 0.125, turn))
    return colours


def oklch(lightness: float, chroma: float, turn: float) -> str:
    """``#rrggbb`` of a colour by lightness 0..1, chroma 0..0.3 and hue as a part of a turn."""
    angle = 2 * math.pi * turn
    a, b = chroma * math.cos(angle), chroma * math.sin(angle)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_to_byte(value):02x}" for value in linear)


def _to_byte(linear: float) -> int:
    value = min(max(linear, 0.0), 1.0)
    curved = 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
    return round(255 * curved)
