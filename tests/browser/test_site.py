"""The site of the documentation has every document, without a warning, and needs no other host."""

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest

from tests.architecture.test_documents import SEARCHES
from tests.architecture.test_repository import ROOT
from tests.browser.chromium import MARKS, PROGRAM, Page, chromium
from tests.service import eventually, free_port

pytestmark = [pytest.mark.long, *MARKS]
ICON = re.compile(r'<link rel="icon" href="([^"]+)">')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A broken link or anchor fails the build."""
    directory = tmp_path_factory.mktemp("site")
    build(directory)
    return directory


def build(target: Path, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/site/build.py", target, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    """The pages by their paths."""
    return {page.relative_to(site): page.read_text("utf-8") for page in site.rglob("*.html")}


def test_every_document_is_a_page(pages: dict[Path, str]) -> None:
    documents = sorted(ROOT.glob("docs/**/*.md"))
    assert len(documents) > 20
    for document in documents:
        is_index = document.name == "README.md"
        path = document.with_name("index.html") if is_index else document.with_suffix(".html")
        heading = re.search(r"^# ([^`:\n]+)", document.read_text("utf-8"), re.M)
        assert heading is not None, document
        assert escape(heading[1].strip(), quote=False) in pages[path.relative_to(ROOT)], document


def test_the_site_asks_no_other_host_for_anything(pages: dict[Path, str]) -> None:
    loaded = re.compile(r"<(?:script|link|img)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s>]*")
    assert "index.html" in map(str, pages)
    for path, page in pages.items():
        assert loaded.search(page) is None, path


@contextlib.contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a web server that has the directory."""
    port = free_port()
    command = ["-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(directory)]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: answers(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def found_by(page: Page, asked: str) -> list[str]:
    """The first five pages that the search of this page finds."""
    page.run(
        "{ const toggle = document.querySelector('#__search'); if (!toggle.checked) toggle.click();"
        "document.querySelector('.md-search-result__list').replaceChildren();"
        "const search = document.querySelector('[data-md-component=search-query]');"
        f"search.focus(); search.value = {json.dumps(asked)};"
        "search.dispatchEvent(new Event('keyup', {bubbles: true})); }"
    )
    eventually(lambda: page.text(".md-search-result__list") != "")
    paths: list[str] = page.run(
        "[...document.querySelectorAll('.md-search-result__item')].slice(0, 5)"
        ".map(one => one.querySelector('a').pathname)"
    )
    return paths


@pytest.mark.matrix(of="the site in a browser")
def test_the_search_finds_pages_by_the_words_in_which_people_ask(
    site: Path, tmp_path: Path
) -> None:
    assert PROGRAM is not None
    searches = {"holddown": "docs/protocol.md", **SEARCHES}
    with served(site) as address, chromium(PROGRAM, tmp_path) as browser:
        # Each page would make its own index of all documents.
        page = browser.open(f"{address}/index.html")
        eventually(lambda: "Counterpoise" in page.text("h1"))
        for asked, document in searches.items():
            path = document.replace("README", "index").removesuffix(".md")
            assert f"/{path}.html" in found_by(page, asked), asked
        assert page.faults() == []


@pytest.mark.matrix(of="the site in a browser")
def test_a_menu_leads_to_the_other_versions(tmp_path: Path) -> None:
    assert PROGRAM is not None
    for version in ("0.9", "dev", "0.10"):
        build(tmp_path / "site", "--version", version)
    listed = json.loads((tmp_path / "site/versions.json").read_text("utf-8"))
    assert [one["version"] for one in listed] == ["0.10", "0.9", "dev"]
    # A browser that is quick asks the page for its icon before it leads on.
    icons = ICON.findall((tmp_path / "site/index.html").read_text("utf-8"))
    assert [(tmp_path / "site" / icon).is_file() for icon in icons] == [True]
    with served(tmp_path / "site") as address, chromium(PROGRAM, tmp_path) as browser:
        page = browser.open(f"{address}/index.html")  # which leads to the newest
        eventually(lambda: "0.10" in page.text(".md-version__current"))
        assert page.text(".md-version__list").split() == ["0.10", "0.9", "dev"]
        assert page.faults() == []
