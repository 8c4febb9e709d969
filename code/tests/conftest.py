"""Shared fixtures: the repository, the models, a headless Chromium, the built book on a server."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(family): our model and Hugging Face's with the same random weights, ours from files."""
    from tiny_models import build

    from kvpipe.checkpoints import load_stage

    @functools.cache
    def make(family: str):
        theirs, folder = build(family), tmp_path_factory.mktemp(family)
        theirs.save_pretrained(folder)
        return load_stage(folder), theirs

    return make


@pytest.fixture(scope="session")
def real():
    """The default model and its tokenizer, through our code."""
    from kvpipe.checkpoints import load

    return load()


@pytest.fixture(scope="session")
def real_hf():
    """The default model, through Hugging Face's code."""
    import torch
    from transformers import AutoModelForCausalLM

    from kvpipe.checkpoints import fetch

    return AutoModelForCausalLM.from_pretrained(fetch(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    path = path or shutil.which("google-chrome") or shutil.which("chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(root: Path) -> Path:
    """The folder of the built book; built anew if its sources changed."""
    from kvpipe import book

    return book.build(root).parent


@pytest.fixture(scope="session")
def address(site: Path):
    """The book's address on a server of this process."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Silent, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
