"""A figure with sliders carries its frames, moves in a browser, is recomputed by a kernel."""

import json
import math
import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from kvpipe import notebooks, plots, widgets


def turned(position: int, base: str = "q") -> plots.Axes:
    return plots.rotated_pair({base: (math.cos(position), math.sin(position))})


def sample(**options) -> widgets.Explorer:
    default = {"position": range(4), "base": ["q", "k"], "caption": "It turns."}
    alt = {"alt": lambda position, base: f"{base} at {position}"}
    return widgets.explore(turned, **(default | alt | options))


def data_of(page: str) -> dict:
    text = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(text)


def test_one_frame_per_combination_with_the_last_slider_fastest():
    alts = [re.search('aria-label="([^"]*)"', frame)[1] for frame in sample().frames]
    assert alts == [f"{base} at {p}" for p in range(4) for base in "qk"]


def test_the_page_carries_every_frame_unchanged_and_what_they_share_once():
    explorer = sample()
    page = explorer.to_html()
    data = data_of(page)
    carried = ["\n".join(data["parts"][part] for part in frame) for frame in data["frames"]]
    assert carried == explorer.frames
    assert len(set(carried)) == 8
    assert len(page) < 0.5 * sum(map(len, carried))


def test_the_first_frame_is_on_the_page_before_any_script_runs():
    explorer = sample(position=widgets.Slider(range(4), start=2))
    shown = explorer.to_html().split('<script type="application/json">')[0]
    assert explorer.frames[4] in shown
    assert 'aria-label="q at 2"' in explorer.still().svg
    assert re.search(r'type="range" min="0" max="3" step="1" value="2" aria-valuetext="2"', shown)


def test_words_give_a_menu_and_numbers_a_labelled_slider():
    slider = widgets.Slider([1, 2], name="Batch <size>", unit="rows", label=lambda n: f"{n:,}")
    page = sample(position=slider).to_html()
    assert "<span>Batch &lt;size&gt;</span>" in page
    assert "<output>1 rows</output>" in page
    assert '<option value="0" selected>q</option><option value="1">k</option>' in page


def test_nothing_in_the_frames_can_close_the_script_element():
    page = sample(base=["</script><b>", "k"], alt=lambda **_: "</script>").to_html()
    assert page.count("</script>") == 2
    assert data_of(page)["labels"][1][0] == "</script><b>"


def test_output_is_the_same_on_every_run():
    assert sample().to_html() == sample().to_html()


def test_too_many_frames_are_refused_with_their_number():
    with pytest.raises(ValueError, match="200 frames from 2 sliders; 1 to 96 fit"):
        sample(position=range(100))
    with pytest.raises(ValueError, match="at least one value"):
        widgets.explore(turned, alt="a", caption="c", position=[])
    with pytest.raises(ValueError, match="start 4 is not an index into 4 values"):
        widgets.Slider(range(4), start=4)


def test_frames_that_weigh_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(widgets, "MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match="more than 10,000"):
        sample().to_html()


def test_outside_a_kernel_there_is_no_live_view():
    assert set(sample()._repr_mimebundle_()) == {"text/html", "text/plain"}


SHOW = """
from kvpipe import plots, widgets
explorer = widgets.explore(
    lambda position: plots.rotated_pair({"q": (1.0, position / 8)}),
    alt=lambda position: f"q at {position}", caption="It turns.",
    position=widgets.Slider([0, 2, 4], live_values=range(5)),
)
explorer
"""
MOVE = """
from ipywidgets.widgets.widget import _instances
slider, stage = (
    next(w for w in _instances.values() if type(w).__name__ == name)
    for name in ("SelectionSlider", "HTML")
)
before = stage.value
slider.value = 3
assert 'aria-label="q at 0"' in before and 'aria-label="q at 3"' in stage.value
"""


def saved_notebook(path, *sources: str) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    nbformat.write(notebook, path)
    return notebook


def test_in_a_kernel_a_slider_computes_frames_that_the_page_does_not_hold(tmp_path):
    notebook = saved_notebook(tmp_path / "a.ipynb", SHOW, MOVE)
    NotebookClient(notebook, kernel_name="python3", store_widget_state=False).execute()
    data = notebook.cells[0].outputs[0].data
    assert {"text/html", "text/plain", notebooks.WIDGET_VIEW} == set(data)


def test_an_executed_notebook_holds_frames_but_no_widget_of_a_dead_kernel(tmp_path):
    path = tmp_path / "a.ipynb"
    saved_notebook(path, SHOW)
    notebooks.execute(path)
    saved = nbformat.read(path, as_version=4)
    assert set(saved.cells[0].outputs[0].data) == {"text/html", "text/plain"}
    assert saved.cells[0].execution_count == 1
    assert set(saved.metadata) == {"kernelspec"}
    nbformat.validate(saved)


def test_a_failing_notebook_is_not_saved(tmp_path):
    path = tmp_path / "a.ipynb"
    saved_notebook(path, "1 / 0")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebooks.execute(path)
    assert path.read_bytes() == before


def nbval(path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", path]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent)


def test_nbval_accepts_a_figure_with_sliders_and_notices_a_changed_one(tmp_path):
    path = tmp_path / "a.ipynb"
    saved_notebook(path, SHOW)
    notebooks.execute(path)
    assert nbval(path).returncode == 0
    path.write_text(path.read_text().replace("position / 8", "position / 9"))
    changed = nbval(path)
    assert changed.returncode == 1 and "text/html" in changed.stdout


@pytest.mark.browser
def test_keyboard_and_menu_move_the_figure(chromium, tmp_path):
    explorer = sample()
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><body>{explorer.to_html()}</body>", encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())

    def alt() -> str:
        return page.locator(".kv-stage svg").get_attribute("aria-label")

    assert alt() == "q at 0"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert alt() == "q at 2"
    slider = page.get_by_label("position")
    assert slider.get_attribute("aria-valuetext") == "2"
    assert page.locator("output").text_content() == "2"
    page.get_by_label("base").select_option("k")
    assert alt() == "k at 2"
    page.close()


@pytest.mark.browser
def test_two_figures_on_one_page_move_alone(chromium, tmp_path):
    path = tmp_path / "page.html"
    other = sample(caption="Another.", base=["v"])
    path.write_text(f"<body>{sample().to_html()}{other.to_html()}</body>", encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.locator("input").nth(1).press("End")
    alts = [svg.get_attribute("aria-label") for svg in page.locator(".kv-stage svg").all()]
    assert alts == ["q at 0", "v at 3"]
    page.close()
