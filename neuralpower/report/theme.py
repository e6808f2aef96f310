"""Colours and marks that tell series apart, the same ones for whoever draws.

All other style stands beside this file: `page.css` and `page.js` of pages, `theme.mplstyle` of pictures.
"""

from __future__ import annotations

from typing import NamedTuple

# Okabe and Ito's colours for white and black paper, then four of Tol's: any colour vision tells them apart.
PALETTE = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #808080 #AA4499 #44AA99 #999933".split()


class Mark(NamedTuple):
    """One shape, under the names that plotly and matplotlib have for it."""

    plotly: str
    matplotlib: str


SYMBOLS = tuple(
    Mark(*pair.split())
    for pair in (
        *("circle o", "square s", "diamond D", "triangle-down v", "triangle-up ^"),
        *("cross P", "x X", "triangle-left <", "triangle-right >", "star *"),
    )
)
HATCHES = tuple(Mark(one, one * 3) for one in ("", "/", ".", "x", "\\", "+"))


def colour(index: int) -> str:
    """Of the n-th series; they repeat after ten."""
    return PALETTE[index % len(PALETTE)]


def symbol(index: int) -> Mark:
    """Of the n-th series; where colours repeat, symbols are others."""
    return SYMBOLS[(index + index // len(PALETTE)) % len(SYMBOLS)]


def hatch(index: int) -> Mark:
    """Pattern of the n-th series' bars."""
    return HATCHES[index % len(HATCHES)]
