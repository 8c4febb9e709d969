"""Figures with sliders: recomputed by a live kernel, and moving without one in the static book.

`explore(draw, position=range(33), …)` draws one frame for each combination of values. The frames
travel inside the output, and a few lines of script swap them. Where a kernel runs, the output also
offers an `ipywidgets` view, which JupyterLab prefers: its sliders call `draw` again.
"""

import html
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvpipe.svg import Drawing, Picture, caption_html, content_id, render

MAX_FRAMES = 96  # a page carries all of them
MAX_BYTES = 400_000

_PLAYER = """
for (const figure of document.querySelectorAll("figure.kv-explore:not([data-ready])")) {
  figure.dataset.ready = "";
  const data = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
  const stage = figure.querySelector(".kv-stage");
  const inputs = [...figure.querySelectorAll(".kv-controls input, .kv-controls select")];
  const show = () => {
    let index = 0;
    inputs.forEach((input, i) => {
      const label = data.labels[i][+input.value];
      index = index * data.labels[i].length + +input.value;
      input.setAttribute("aria-valuetext", label);
      if (input.nextElementSibling) input.nextElementSibling.textContent = label;
    });
    stage.innerHTML = data.frames[index].map(part => data.parts[part]).join("\\n");
    figure.dataset.frame = index;
  };
  inputs.forEach(input => { input.disabled = false; input.addEventListener("input", show); });
}
"""


@dataclass(frozen=True)
class Slider:
    """The values a reader can choose from: one frame each, and finer steps with a kernel.

    Words give a menu, numbers a slider. `name` is what the reader sees; `unit` follows the value.
    """

    values: Sequence[Any]
    name: str = ""
    unit: str = ""
    start: int = 0  # index into `values` of the frame shown first
    live_values: Sequence[Any] | None = None
    label: Callable[[Any], str] = str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a slider needs at least one value")
        if not 0 <= self.start < len(self.values):
            raise ValueError(f"start {self.start} is not an index into {len(self.values)} values")

    def text(self, value: Any) -> str:
        """A value as the reader sees it."""
        return f"{self.label(value)} {self.unit}".rstrip()

    @property
    def is_menu(self) -> bool:
        """Whether the values are words."""
        return isinstance(self.values[0], str)


@dataclass(frozen=True)
class Explorer:
    """A figure with sliders; display it as the last expression of a cell."""

    draw: Callable[..., Drawing]
    sliders: Mapping[str, Slider]
    alt: Callable[..., str]
    caption: str

    @cached_property
    def first(self) -> dict[str, Any]:
        """The values shown before anything is moved."""
        return {key: slider.values[slider.start] for key, slider in self.sliders.items()}

    @cached_property
    def frames(self) -> list[str]:
        """One SVG per combination of values; the last slider varies fastest."""
        combinations = itertools.product(*(slider.values for slider in self.sliders.values()))
        prefix = content_id(self.caption + "".join(self.sliders))
        return [
            self.frame(dict(zip(self.sliders, values, strict=True)), prefix)
            for values in combinations
        ]

    def frame(self, values: Mapping[str, Any], id_prefix: str | None = None) -> str:
        """The SVG for one choice of values."""
        return render(self.draw(**values), alt=self.alt(**values), id_prefix=id_prefix)

    @property
    def first_index(self) -> int:
        """The frame shown before anything is moved."""
        index = 0
        for slider in self.sliders.values():
            index = index * len(slider.values) + slider.start
        return index

    def still(self) -> Picture:
        """The first frame as an ordinary figure."""
        return Picture(self.frame(self.first), self.alt(**self.first), self.caption)

    def to_html(self) -> str:
        """The `<figure>` with its frames, controls and script; needs no kernel and no library."""
        text = (
            '<figure class="kv-figure kv-explore">'
            f'<div class="kv-stage" style="overflow-x:auto">\n{self.frames[self.first_index]}\n'
            f"</div>{self._controls()}{caption_html(self.caption)}\n"
            f'<script type="application/json">{self._data()}</script>\n'
            f"<script>{_PLAYER}</script></figure>"
        )
        if len(text) > MAX_BYTES:
            raise ValueError(
                f"the frames weigh {len(text):,} bytes, more than {MAX_BYTES:,}: "
                f"use fewer values ({len(self.frames)} frames now) or fewer points per line"
            )
        return text

    def _controls(self) -> str:
        rows = "".join(_control(key, slider) for key, slider in self.sliders.items())
        return f'<div class="kv-controls" style="margin:.6em auto">{rows}</div>'

    def _data(self) -> str:
        """Frames as lists of line numbers: what all frames share is stored once."""
        parts: dict[str, int] = {}
        frames = [
            [parts.setdefault(line, len(parts)) for line in frame.split("\n")]
            for frame in self.frames
        ]
        labels = [[slider.text(v) for v in slider.values] for slider in self.sliders.values()]
        data = {"labels": labels, "parts": list(parts), "frames": frames}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle = {"text/html": self.to_html(), "text/plain": f"[figure] {self.alt(**self.first)}"}
        return _live_view(self) | bundle


def explore(
    draw: Callable[..., Drawing],
    *,
    alt: str | Callable[..., str],
    caption: str,
    **sliders: Slider | Sequence[Any],
) -> Explorer:
    """Show `draw(**values)` with one slider per keyword, such as `position=range(33)`.

    `draw` returns axes of fixed limits, so that only what moves changes. `alt` describes the frame
    and may be a function of the same values.
    """
    sliders = {
        key: values if isinstance(values, Slider) else Slider(list(values))
        for key, values in sliders.items()
    }
    n_frames = 1
    for slider in sliders.values():
        n_frames *= len(slider.values)
    if not sliders or n_frames > MAX_FRAMES:
        raise ValueError(f"{n_frames} frames from {len(sliders)} sliders; 1 to {MAX_FRAMES} fit")
    describe = alt if callable(alt) else lambda **_: alt
    return Explorer(draw, sliders, describe, caption)


def _control(key: str, slider: Slider) -> str:
    """One labelled input; a native element, so the keyboard works as everywhere else."""
    name = html.escape(slider.name or key.replace("_", " "))
    shown = html.escape(slider.text(slider.values[slider.start]))
    if slider.is_menu:
        options = "".join(
            f'<option value="{index}"{" selected" if index == slider.start else ""}>'
            f"{html.escape(slider.text(value))}</option>"
            for index, value in enumerate(slider.values)
        )
        return f"<label><span>{name}</span> <select disabled>{options}</select></label>"
    return (
        f'<label><span>{name}</span> <input type="range" min="0" max="{len(slider.values) - 1}" '
        f'step="1" value="{slider.start}" aria-valuetext="{shown}" disabled> '
        f"<output>{shown}</output></label>"
    )


def _live_view(explorer: Explorer) -> dict[str, Any]:
    """The same figure as an `ipywidgets` view; nothing where no notebook kernel is running."""
    try:
        import ipywidgets
        from IPython import get_ipython
    except ImportError:
        return {}
    if getattr(get_ipython(), "kernel", None) is None:
        return {}
    stage = ipywidgets.HTML(explorer.still().to_html())
    controls = {
        key: ipywidgets.SelectionSlider(
            options=[(slider.text(v), v) for v in slider.live_values or slider.values],
            value=slider.values[slider.start],
            description=slider.name or key.replace("_", " "),
            style={"description_width": "initial"},
            layout={"width": "24em"},
        )
        for key, slider in explorer.sliders.items()
    }

    def redraw(_: object) -> None:
        values = {key: control.value for key, control in controls.items()}
        stage.value = Picture(explorer.frame(values), "", explorer.caption).to_html()

    for control in controls.values():
        control.observe(redraw, "value")
    view = ipywidgets.VBox([*controls.values(), stage])
    return view._repr_mimebundle_()
