"""Figures as inline SVG: in the page's colours, the same bytes on every run, alt text demanded."""

import hashlib
import html
import io
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#010203"  # drawn in this colour, shown in the page's text colour (`currentColor`)
CELLS = "cells"  # group id of cells that touch: drawn without blending, so that no seams show
_PT_TO_PX = 4 / 3
_SMALLEST_SCALE = 0.62  # below this, text is unreadable and the figure scrolls in its own box

Drawing = Axes | Figure


@dataclass(frozen=True)
class Picture:
    """A figure ready to be displayed: SVG with alt text, and a caption that states the point."""

    svg: str
    alt: str
    caption: str

    def to_html(self) -> str:
        """The `<figure>` element."""
        return (
            '<figure class="kv-figure"><div class="kv-stage" style="overflow-x:auto">\n'
            f"{self.svg}\n</div>{caption_html(self.caption)}</figure>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": f"[figure] {self.alt}"}


def picture(drawing: Drawing, *, alt: str, caption: str) -> Picture:
    """Show a drawing as the last expression of a notebook cell; `plots.figure` is this function."""
    if not caption.strip():
        raise ValueError("caption is empty: say in one sentence what the reader should see")
    return Picture(render(drawing, alt=alt), alt, caption)


def caption_html(caption: str) -> str:
    """A caption as HTML; text between backquotes becomes code."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(caption, quote=False))
    return f"<figcaption>{text}</figcaption>"


def render(drawing: Drawing, *, alt: str, id_prefix: str | None = None) -> str:
    """The drawing as one `<svg>` element, one tag per line.

    Ids are unique to the content unless `id_prefix` fixes them, as the frames of one figure need.
    """
    if not alt.strip():
        raise ValueError("alt text is empty: describe the figure for a reader who cannot see it")
    svg = _shrink(_matplotlib_svg(drawing))
    prefix = id_prefix or content_id(svg)
    return _label(_renumber_ids(svg, prefix), alt)


def content_id(text: str) -> str:
    """A short name for a content; starts with a letter, as an id must."""
    return "k" + hashlib.sha256(text.encode()).hexdigest()[:7]


def _matplotlib_svg(drawing: Drawing) -> str:
    figure = drawing if isinstance(drawing, Figure) else drawing.get_figure(root=True)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvpipe"}):
        figure.savefig(buffer, format="svg", transparent=True)
    return buffer.getvalue()


def _shrink(svg: str) -> str:
    """Drop what a page does not need and round coordinates to 1/100 point."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = svg.replace(f'<g id="{CELLS}">', '<g shape-rendering="crispEdges">')
    svg = re.sub(r"<[^>]+>", _shrink_tag, svg, flags=re.S)
    svg = re.sub(r"<defs>\s*</defs>", "", svg)
    lines = (line.strip() for line in svg.splitlines())
    return "\n".join(line for line in lines if line)


def _shrink_tag(match: re.Match[str]) -> str:
    tag = re.sub(r"\s+", " ", match[0])
    tag = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag)
    tag = re.sub(r"(\.\d*?)0+(?=\D)", lambda tail: tail[1].rstrip("."), tag)
    tag = re.sub(r'font-family: [^;"]*;? ?', "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", tag)
    tag = tag.replace(INK, "currentColor").replace("xlink:href", "href").replace(' "', '"')
    return tag


def _renumber_ids(svg: str, prefix: str) -> str:
    """Keep only the ids that something refers to, renamed so that no two figures share one."""
    used = list(dict.fromkeys(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg)))
    names = {old: f"{prefix}-{number}" for number, old in enumerate(used)}

    def rename(match: re.Match[str]) -> str:
        return f' id="{names[match[1]]}"' if match[1] in names else ""

    svg = re.sub(r' id="([^"]*)"', rename, svg)
    return re.sub(r"((?:url\(#|href=\"#))([^)\"]+)", partial(_point_to, names), svg)


def _point_to(names: dict[str, str], match: re.Match[str]) -> str:
    return match[1] + names[match[2]]


def _label(svg: str, alt: str) -> str:
    """Replace the fixed size by one that follows the page, and add the alt text."""
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    natural = float(width) * _PT_TO_PX
    style = (
        f"display:block;width:100%;height:auto;max-width:{1.25 * natural:.0f}px;"
        f"min-width:{_SMALLEST_SCALE * natural:.0f}px;margin:0 auto;"
        "stroke-linejoin:round;fill:currentColor"
    )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(alt)}" style="{style}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
