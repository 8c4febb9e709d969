"""The built book: whole, self-contained, readable on a phone and in the dark, searchable."""

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import yaml
from pybtex.database import parse_string

from kvpipe import book, book_pages, ledger

PHONE = {"width": 360, "height": 740}


def page_paths(site: Path) -> list[str]:
    """Every page of the site, relative to it."""
    paths = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(path.as_posix() for path in paths if path.parts[0] != "_static")


def chapters(site: Path) -> list[str]:
    return [path for path in page_paths(site) if path.startswith("notebooks/")]


def open_page(chromium, url: str, **options):
    """A page with foreign requests blocked; whatever goes wrong collects in `page.trouble`."""
    page = chromium.new_context(**options).new_page()
    page.trouble = []

    def guard(route):
        if urllib.parse.urlsplit(route.request.url).hostname in ("127.0.0.1", None):
            return route.continue_()
        page.trouble.append(f"foreign request: {route.request.url}")
        return route.abort()

    page.route("**/*", guard)
    page.on("console", lambda m: m.type in ("error", "warning") and page.trouble.append(m.text))
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("requestfailed", lambda request: page.trouble.append(f"failed: {request.url}"))
    page.on("response", lambda r: r.status >= 400 and page.trouble.append(f"{r.status}: {r.url}"))
    page.goto(url, wait_until="networkidle")
    if options.get("java_script_enabled", True):
        page.evaluate("() => window.MathJax?.startup?.promise")
    return page


@pytest.fixture
def visit(chromium, address):
    """Open pages of the book by their path, or by a full address."""
    pages = []

    def visited(path: str, **options):
        url = path if "://" in path else f"{address}/{path}"
        pages.append(open_page(chromium, url, **options))
        return pages[-1]

    yield visited
    for page in pages:
        page.context.close()


@pytest.fixture(scope="module")
def inspected(chromium, address, site) -> dict[str, dict]:
    """What a browser finds on every page, each opened once: trouble, formulas, width on a phone."""
    found = {}
    for path in page_paths(site):
        page = open_page(chromium, f"{address}/{path}")
        found[path] = page.evaluate(
            """() => ({
                written: document.querySelectorAll(".math").length,
                drawn: document.querySelectorAll(".math mjx-container svg").length,
                wrong: [...document.querySelectorAll("[data-mjx-error]")].map(
                    e => e.dataset.mjxError),
            })"""
        )
        page.set_viewport_size(PHONE)
        found[path]["width"] = page.evaluate("document.scrollingElement.scrollWidth")
        found[path]["trouble"] = page.trouble
        page.context.close()
    return found


# --- the files -----------------------------------------------------------------------------------


def test_the_site_has_every_page_of_the_table_of_contents(root, site):
    toc = yaml.safe_load((root / "book/_toc.yml").read_text())
    listed = [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]
    assert [name for name in listed if not (site / f"{name}.html").is_file()] == []


def test_no_page_names_a_foreign_script_style_or_image(site):
    pattern = re.compile(
        r"<(?:script|img|iframe|link|source)[^>]*(?:src|href)=\"(https?:)?//[^>]*>"
    )
    loaded = {
        path: [
            tag[0]
            for tag in pattern.finditer((site / path).read_text())
            if "canonical" not in tag[0]
        ]
        for path in page_paths(site)
    }
    assert {path: tags for path, tags in loaded.items() if tags} == {}


def test_no_page_is_heavier_than_two_megabytes(site):
    heavy = {path: (site / path).stat().st_size for path in page_paths(site)}
    assert {path: size for path, size in heavy.items() if size > 2e6} == {}


def test_mathjax_comes_from_the_installed_package(site):
    copied = (site / "_static" / book_pages.MATHJAX_ENTRY).read_bytes()
    assert copied == (book_pages.mathjax_folder() / "tex-svg.js").read_bytes()


def test_a_chapter_can_be_downloaded_as_the_committed_notebook(root, site):
    assert chapters(site)
    for path in chapters(site):
        links = re.findall(r'href="([^"]*\.ipynb)"', (site / path).read_text())
        assert links, path
        notebook = ((site / path).parent / links[0]).resolve()
        committed = root / Path(path).with_suffix(".ipynb")
        assert json.loads(notebook.read_text()) == json.loads(committed.read_text())


def test_every_picture_has_alt_text(site):
    for path in page_paths(site):
        text = (site / path).read_text()
        tags = re.findall(r"<img[^>]*>|<svg[^>]*role=\"img\"[^>]*>", text)
        bare = [tag for tag in tags if not re.search(r'(alt|aria-label)="[^"]+"', tag)]
        assert bare == [], path


def test_the_index_links_the_chapters_that_exist_and_only_those(root, site):
    text = (site / "book/index.html").read_text()
    cards = re.findall(r'class="[^"]*sd-card-title[^"]*">\s*(\d) · ', text)
    linked = re.findall(r'sd-stretched-link[^>]*href="\.\./notebooks/0(\d)_', text)
    assert cards == list("123456")
    assert linked == [path.stem[1] for path in sorted((root / "notebooks").glob("0*.ipynb"))]


# --- the problems --------------------------------------------------------------------------------


def listed_problems(root: Path) -> list[str]:
    """The problems in the order of the table of contents, which sidebar and "next" follow."""
    toc = yaml.safe_load((root / "book/_toc.yml").read_text())
    entries = [c for part in toc["parts"] for c in part["chapters"]]
    practice = next(entry for entry in entries if entry["file"] == "book/practice")
    return [Path(section["file"]).parent.name for section in practice["sections"]]


def test_every_problem_is_in_the_contents_by_chapter_and_order(root):
    matters = {}
    for path in (root / "practice/problems").glob("*/problem.md"):
        about = yaml.safe_load(path.read_text().split("---")[1])
        matters[about["chapter"], about["order"]] = path.parent.name
    assert len(matters) == len(list((root / "practice/problems").glob("*/problem.md")))
    assert listed_problems(root) == [matters[place] for place in sorted(matters)]


def test_a_problem_page_says_level_minutes_section_and_how_to_start(root, site):
    for slug in listed_problems(root):
        statement = (root / f"practice/problems/{slug}/problem.md").read_text()
        about = yaml.safe_load(statement.split("---")[1])
        path = site / f"practice/problems/{slug}/problem.html"
        text = path.read_text()
        assert f"{about['difficulty'].capitalize()} · {about['minutes']} minutes · " in text
        command = re.sub("<[^>]*>", "", text)
        assert f"$ python practice/judge.py start {slug}\n" in command
        assert about["section"] in text
        if not any(f"/{about['chapter']:02}_" in chapter for chapter in chapters(site)):
            continue  # the chapter is planned
        link = re.search(
            r'href="([^"#]*)#([^"]*)">(?:<[^>]*>)*' + re.escape(about["section"]), text
        )
        assert f'id="{link[2]}"' in (path.parent / link[1]).read_text(), slug


PROBLEM = """---
difficulty: hard
minutes: 5
section: "Chapter 2, What's sent, and when"
---

# A title

# comment in code
"""


def test_the_facts_of_a_problem_stand_below_its_title_and_link_only_what_exists():
    linked = book_pages.head_problem(PROBLEM, "a-b", ["book/index", "notebooks/02_pipeline"])
    assert "# A title\n\n:::{container} kv-about\nHard · 5 minutes · [Chapter 2, What's" in linked
    assert "](../../../notebooks/02_pipeline.ipynb#whats-sent-and-when)\n" in linked
    assert linked.count("kv-about") == linked.count("judge.py start a-b") == 1
    unlinked = book_pages.head_problem(PROBLEM, "a-b", ["notebooks/01_transformer"])
    assert "· Chapter 2, What's sent, and when\n" in unlinked


# --- the papers ----------------------------------------------------------------------------------


def labels_of(bibtex: str) -> list[str]:
    entries = parse_string(bibtex, "bibtex").entries
    return list(book_pages.AuthorYearLabels().format_labels(list(entries.values())))


def paper(key: str, author: str, year: str = "2023") -> str:
    return f"@misc{{{key}, author = {{{author}}}, title = {{T}}, year = {{{year}}}}}\n"


def test_a_paper_is_labelled_as_the_text_cites_it():
    one, two = paper("a", "de Jong, M."), paper("b", r"Fan, A. and Lebr{\'o}n, F.")
    many = paper("c", "Fan, A. and Lewis, M. and others")
    expected = ["de Jong, 2023", "Fan and Lebrón, 2023", "Fan et al., 2023"]
    assert labels_of(one + two + many) == expected


def test_labels_that_would_not_tell_papers_apart_are_refused():
    with pytest.raises(ValueError, match=r"Fan, 2023 names two papers: .* \{2023a\}"):
        labels_of(paper("a", "Fan, A.") + paper("b", "Fan, B."))
    with pytest.raises(ValueError, match="c: name two authors or more before `and others`"):
        labels_of(paper("c", "Fan, A. and others"))


def test_the_list_of_papers_is_sorted_and_carries_the_labels_of_the_text(site):
    plain = {
        path: re.sub(r"<[^>]*>", "", (site / path).read_text()).replace("\N{NO-BREAK SPACE}", " ")
        for path in page_paths(site)
    }
    assert [path for path, text in plain.items() if "and others" in text] == []
    listed = re.findall(r"\[([^\[\]]+, \d{4}[a-z]?)\]", plain["book/bibliography.html"])
    assert len(listed) > 20 and listed == sorted(listed, key=str.lower)
    for path in chapters(site):
        cited = re.findall(r"\[([^\[\]\n]+ et al\., \d{4}[a-z]?)\]", plain[path])
        assert cited and set(cited) <= set(listed)


# --- building ------------------------------------------------------------------------------------


def copy_of_the_pages(root: Path, target: Path) -> Path:
    """A book of the Markdown pages only, which builds in seconds."""
    shutil.copytree(root / "book", target / "book")
    shutil.copytree(root / "practice/problems", target / "practice/problems")
    shutil.copy(root / "_config.yml", target)
    toc = target / "book/_toc.yml"
    toc.write_text(
        "format: jb-book\nroot: book/index\n"
        "chapters:\n"
        + "".join(f"  - file: book/{page}\n" for page in ("how-to-use", "notation", "ledger"))
        + "  - file: book/bibliography\n"
    )
    index = target / "book/index.md"
    index.write_text(re.sub(r":link.*\n", "", index.read_text()))
    return target


def test_a_warning_fails_the_build(root, tmp_path, capfd):
    copy = copy_of_the_pages(root, tmp_path)
    page = copy / "book/how-to-use.md"
    page.write_text(page.read_text() + "\n{ref}`nowhere`\n")
    with pytest.raises(subprocess.CalledProcessError):
        book.build(copy)
    warnings = re.findall("WARNING: .*", capfd.readouterr().err)
    assert len(warnings) == 1 and "nowhere" in warnings[0]


def test_an_unchanged_book_is_not_built_again_and_a_changed_one_is(root, site, tmp_path):
    assert (site / ".sources").read_text() == book.fingerprint(root)
    copy = copy_of_the_pages(root, tmp_path)
    page = book.build(copy)
    built = page.stat().st_mtime_ns
    (page.parent / "left_over.html").touch()
    assert book.build(copy) == page
    assert page.stat().st_mtime_ns == built
    config = copy / "book/how-to-use.md"
    config.write_text(config.read_text() + "\nOne sentence more.\n")
    book.build(copy)
    assert "One sentence more." in (page.parent / "book/how-to-use.html").read_text()
    assert not (page.parent / "left_over.html").exists()


def test_edit_and_report_links_appear_when_the_address_is_set(root, site, tmp_path):
    unset = (site / "book/notation.html").read_text()
    assert "/edit/" not in unset and "/issues/" not in unset
    copy = copy_of_the_pages(root, tmp_path)
    config = copy / "_config.yml"
    config.write_text(config.read_text().replace('url: ""', "url: https://github.com/a/b"))
    book.build(copy)
    text = (copy / "_build/html/book/notation.html").read_text()
    assert "https://github.com/a/b/edit/main/book/notation.md" in text
    assert "https://github.com/a/b/issues/new" in text


def test_building_outside_the_repository_says_what_is_missing(tmp_path):
    command = [sys.executable, "-m", "kvpipe.book"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert "no _config.yml with book/_toc.yml" in result.stderr


def test_a_missing_mathjax_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(book_pages, "MATHJAX_PACKAGE", "no-such-package")
    with pytest.raises(ValueError, match="is not installed: pip install"):
        book_pages.mathjax_folder()


# --- the ledger ----------------------------------------------------------------------------------

ENTRY = {
    "id": "a", "chapter": 1, "claim": "128 | KiB", "source": "llama3",
    "verdict": "reproduced", "ours": "128 KiB", "test": "code/tests/test_x.py::test_y",
}  # fmt: skip


def written(tmp_path: Path, *entries: dict) -> Path:
    path = tmp_path / "ledger.yml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


def test_ledger_draws_each_entry_and_counts_its_verdict(tmp_path):
    text = ledger.to_markdown(ledger.read(written(tmp_path, ENTRY)))
    assert "128 | KiB {cite}`llama3`\n\n**Here:** 128 KiB\n" in text
    assert "**reproduced** · computed by `test_y`\n" in text and ":name: claim-a\n" in text
    assert "| reproduced | 1 |" in text and "| contradicted | 0 |" in text


def test_ledger_says_where_a_claim_has_no_paper_and_groups_by_chapter(tmp_path):
    bare = {key: value for key, value in ENTRY.items() if key != "source"}
    entries = [bare | {"id": "c", "chapter": 2}, ENTRY, bare | {"id": "b"}]
    text = ledger.to_markdown(ledger.read(written(tmp_path, *entries)))
    assert text.count("128 | KiB [often repeated, no paper]\n") == 2
    marks = re.findall(r"Chapter \d|claim-\w", text)
    assert marks == ["Chapter 1", "claim-a", "claim-b", "Chapter 2", "claim-c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "true"}, "verdict 'true' is none of"),
        ({"test": ""}, "reproduced without the test"),
        ({"value": 3}, r"unknown fields \['value'\]"),
    ],
)
def test_ledger_refuses_an_entry_that_proves_nothing(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        ledger.read(written(tmp_path, ENTRY | change))


def test_ledger_refuses_missing_fields_and_repeated_ids(tmp_path):
    incomplete = {key: value for key, value in ENTRY.items() if key != "ours"}
    with pytest.raises(ValueError, match=r"missing \['ours'\]"):
        ledger.read(written(tmp_path, incomplete))
    with pytest.raises(ValueError, match="repeated id a"):
        ledger.read(written(tmp_path, ENTRY, ENTRY))


def test_every_test_named_in_the_ledger_exists(root):
    for entry in ledger.read(root / "book/ledger.yml"):
        if entry.test:
            path, name = entry.test.split("::", 1)
            assert f"def {name.split('[')[0]}(" in (root / path).read_text(), entry.id


# --- in a browser --------------------------------------------------------------------------------


@pytest.mark.browser
def test_every_page_loads_from_the_book_alone_without_an_error(inspected):
    assert {path: page["trouble"] for path, page in inspected.items() if page["trouble"]} == {}


@pytest.mark.browser
def test_every_formula_is_rendered(inspected):
    assert {path: page["wrong"] for path, page in inspected.items() if page["wrong"]} == {}
    assert [path for path, page in inspected.items() if page["drawn"] < page["written"]] == []
    assert sum(page["drawn"] for page in inspected.values()) > 20


@pytest.mark.browser
def test_no_page_scrolls_sideways_on_a_phone(inspected):
    width = PHONE["width"]
    assert {path: p["width"] for path, p in inspected.items() if p["width"] > width} == {}


@pytest.mark.browser
def test_shown_sources_fit_beside_both_sidebars_of_a_small_laptop(visit, site):
    for path in chapters(site):
        page = visit(path, viewport={"width": 1280, "height": 800})
        assert page.locator(".bd-sidebar-secondary").is_visible()
        cut = page.evaluate(
            """() => [...document.querySelectorAll("div.highlight-python pre")]
                .filter(listing => listing.scrollWidth > listing.clientWidth)
                .map(listing => listing.innerText.slice(0, 60))"""
        )
        assert cut == [], path


FAINT_TEXT = """() => {
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const over = layers => {
        context.clearRect(0, 0, 1, 1);
        for (const color of layers) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = rgb => rgb.map(x => x / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    const faint = new Set();
    for (const element of document.querySelectorAll("main *, .bd-sidebar *")) {
        const own = [...element.childNodes].some(n => n.nodeType == 3 && n.data.trim());
        if (!own || element.closest("svg, mjx-container, script, style") ||
            !element.getClientRects().length) continue;
        const layers = [];
        for (let e = element; e; e = e.parentElement)
            layers.unshift(getComputedStyle(e).backgroundColor);
        const color = getComputedStyle(element).color;
        const pair = [light(over(layers)), light(over([...layers, color]))].sort((a, b) => a - b);
        const ratio = (pair[1] + 0.05) / (pair[0] + 0.05);
        if (ratio < 4.5)
            faint.add(`${ratio.toFixed(1)} ${element.tagName}.${element.className} ${color}`);
    }
    return [...faint];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_links_and_anchors_stand_out_from_their_background(visit, site, theme):
    problem = next(path for path in page_paths(site) if path.startswith("practice/problems"))
    pages = ["book/index.html", "book/ledger.html", "book/bibliography.html", problem]
    faint = {}
    for path in [*pages, *chapters(site)]:
        page = visit(path, color_scheme=theme, viewport={"width": 1280, "height": 800})
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        page.wait_for_timeout(300)  # colours fade in
        faint[path] = page.evaluate(FAINT_TEXT)
    assert {path: texts for path, texts in faint.items() if texts} == {}


@pytest.mark.browser
def test_figures_move_by_keyboard_on_the_page_and_from_the_file_system(visit, site):
    for start in ("", f"{site.as_uri()}/"):
        page = visit(start + chapters(site)[0])
        figures = page.locator("figure.kv-explore")
        assert figures.count() >= 2
        for figure in figures.all():
            svg, control = figure.locator(".kv-stage svg"), figure.locator("input, select").first
            before, value = svg.inner_html(), control.input_value()
            # Left and right move a slider; up and down also move through a menu.
            for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
                if control.input_value() == value:
                    control.press(key)
            assert control.input_value() != value
            assert svg.inner_html() != before
        page.close()


@pytest.mark.browser
def test_formulas_are_rendered_from_the_file_system(visit, site):
    page = visit(f"{site.as_uri()}/book/notation.html")
    assert page.locator("mjx-container svg").count() > 10


@pytest.mark.browser
def test_figures_stand_still_without_javascript_and_controls_stay_out_of_print(visit, site):
    page = visit(chapters(site)[0], java_script_enabled=False)
    figure = page.locator("figure.kv-explore").first
    assert figure.locator("svg").is_visible()
    assert figure.locator("input").first.is_disabled()
    page.emulate_media(media="print")
    assert figure.locator("svg").is_visible()
    assert not figure.locator(".kv-controls").is_visible()


@pytest.mark.browser
def test_dark_mode_switches_the_page_and_the_ink_of_its_figures(visit, site):
    page = visit(chapters(site)[0], color_scheme="light")

    def lightness() -> list[int]:
        return page.evaluate(
            """() => {
                const sum = color =>
                    color.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
                const text = document.querySelector("figure.kv-figure svg text");
                let behind = text;
                while (getComputedStyle(behind).backgroundColor == "rgba(0, 0, 0, 0)")
                    behind = behind.parentElement;
                return [sum(getComputedStyle(behind).backgroundColor),
                    sum(getComputedStyle(text).fill)];
            }"""
        )

    background, ink = lightness()
    assert background > 600 > 300 > ink
    for _ in range(2):  # auto, light, dark: the order depends on what the system prefers
        if page.evaluate("document.documentElement.dataset.theme") == "light":
            page.locator("button.theme-switch-button:visible").first.click()
    background, ink = lightness()
    assert background < 150 < 500 < ink


@pytest.mark.browser
def test_search_finds_a_word_and_leads_to_its_page(visit):
    page = visit("search.html?q=padding")
    page.locator("#search-results li a").first.wait_for(timeout=10_000)
    links = [link.get_attribute("href") for link in page.locator("#search-results li a").all()]
    assert any("book/notation.html" in link for link in links)
    assert page.trouble == []


@pytest.mark.browser
def test_previous_and_next_lead_through_the_whole_book(visit, root, site):
    page = visit("index.html")
    page.wait_for_url("**/book/index.html")
    seen = [urllib.parse.urlsplit(page.url).path.lstrip("/")]
    while (following := page.locator("a.right-next")).count():
        following.click()
        page.wait_for_load_state()
        seen.append(urllib.parse.urlsplit(page.url).path.lstrip("/"))
        assert page.locator("a.left-prev").count() == 1
    problems = [Path(path).parent.name for path in seen if path.startswith("practice/problems")]
    assert problems == listed_problems(root)
    others = {"index.html", "search.html", "genindex.html"}
    assert sorted(seen) == sorted(set(page_paths(site)) - others)
