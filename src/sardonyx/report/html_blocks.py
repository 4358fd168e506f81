"""Building blocks of self-contained HTML pages, which load no script, font or picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

COLOURS = ("#9a5b3f", "#2f6f8f", "#7a8b3c", "#b08a2e", "#6b5b95", "#3f8f7b", "#a04a6a", "#5c6f82")
"""Colours of categories; distinct in lightness too, for readers with red-green colour blindness."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top;
  overflow-wrap: break-word }
th { font-weight: 600 } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.proved { color: #1c6b2f } .open { color: #8a5a00 } .quiet { color: #666 }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
svg text { font: 13px system-ui, sans-serif; fill: #222 } svg .axis { stroke: #bbb } svg .small { fill: #666 }
svg { max-width: 100%; height: auto }
"""


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Return a whole HTML page.

    Args:
        title: Title and first heading.
        subtitle: Line below the title.
        sections: HTML fragments, see :func:`section`.
    """
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        f'<h1>{escape(title)}</h1>\n<p class="quiet">{escape(subtitle)}</p>\n'
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a part of a page, with a heading."""
    return f"<h2>{escape(title)}</h2>\n{body}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return an HTML table of texts; the columns of ``numbers`` are right-aligned."""

    def cells(tag: str, row: Sequence[str]) -> str:
        classes = ((' class="n"' if i in numbers else "", escape(cell)) for i, cell in enumerate(row))
        return "".join(f"<{tag}{mark}>{text}</{tag}>" for mark, text in classes)

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>\n{body}\n</tbody></table>"


def details(title: str, body: str) -> str:
    """Return a section that is collapsed until the reader opens the title."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


_SVG_STYLE = "text { font: 13px system-ui, sans-serif; fill: #222 } .axis { stroke: #bbb } .small { fill: #666 }"


def svg(width: float, height: float, parts: Iterable[str], label: str, *, alone: bool = False) -> str:
    """Return a picture.

    Args:
        width: Width in pixels on a page that is wide enough.
        height: Height in pixels.
        parts: SVG elements.
        label: Description for readers who cannot see the picture.
        alone: Return a file of its own, with its fonts and colours.
    """
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    style = f'<style>{_SVG_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>' if alone else ""
    return (
        f'<svg{space} viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{escape(label)}">{style}\n' + "\n".join(parts) + "\n</svg>"
    )


def ticks(low: float, high: float) -> Iterator[float]:
    """Yield four to ten round numbers between two bounds."""
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if (high - low) / s <= 8)
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield round(number * step, 9)
