"""The documentation shows the actual states."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_drawn_from_the_tables() -> None:
    script = runpy.run_path(str(DOCS / "state_diagram.py"))
    assert (DOCS / "state-diagram.md").read_text() == script["page"](), (
        "the tables have changed: run .venv/bin/python docs/state_diagram.py"
    )


def test_the_picture_of_the_architecture_is_the_scripts() -> None:
    script = runpy.run_path(str(DOCS / "pictures/architecture.py"))
    assert (DOCS / "pictures/architecture.svg").read_text() == script["picture"]()


def test_the_badges_are_the_packages() -> None:
    script = runpy.run_path(str(DOCS / "pictures/badges.py"))
    for name, picture in script["badges"]().items():
        assert (DOCS / "pictures" / name).read_text() == picture
