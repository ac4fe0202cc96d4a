"""The documents agree with the repository: links, anchors, commands, Python."""

import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from markdown_it import MarkdownIt

import counterpoise
from counterpoise.cli.app import COMMANDS, app, load
from tests.architecture.test_repository import ROOT, tracked_files
from tests.browser.diagrams import PICTURES, diagrams, name_of

DOCUMENTS = [name for name in tracked_files() if name.endswith(".md") and (ROOT / name).exists()]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)


@functools.cache
def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@functools.cache
def prose(name: str) -> str:
    """The document without code."""
    return re.sub(r"`[^`\n]+`", "``", FENCE.sub("", text(name)))


@functools.cache
def anchors(name: str) -> set[str]:
    """The anchors of its headings, by the rule of GitHub and of the site."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", text(name)), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def links(name: str) -> Iterator[str]:
    """The targets of its relative links and pictures."""
    said = prose(name)
    targets = re.findall(r"\]\(([^)\s]+)\)", said) + re.findall(r"^\[[^\]]+\]: (\S+)$", said, re.M)
    yield from (target for target in targets if not re.match(r"[a-z]+:", target))


def blocks(language: str) -> Iterator[Any]:
    for name in DOCUMENTS:
        for number, (indent, kind, code) in enumerate(FENCE.findall(text(name))):
            if kind == language:
                code = re.sub(rf"^{indent}", "", code, flags=re.M)
                yield pytest.param(code, id=f"{name}-{number}")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    tracked = set(tracked_files())
    broken = []
    for target in links(name):
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        there = page.resolve().relative_to(ROOT).as_posix()
        exists = there in tracked or any(one.startswith(f"{there}/") for one in tracked)
        if not exists or (anchor and (not there.endswith(".md") or anchor not in anchors(there))):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("name", DOCUMENTS)
def test_references_of_links_are_defined(name: str) -> None:
    said = prose(name)
    used = set(re.findall(r"\]\[([^\]]+)\]", said))
    assert used == set(re.findall(r"^\[([^\]]+)\]: \S+$", said, re.M))


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_in_documents_can_be_parsed(code: str) -> None:
    ast.parse(code)


@pytest.mark.parametrize("code", list(blocks("python")))
def test_pages_import_from_the_package_itself_what_it_has(code: str) -> None:
    """One way to import a name, on all pages."""
    elsewhere = [
        f"{one.module}: {name.name}"
        for one in ast.walk(ast.parse(code))
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("counterpoise.")
        for name in one.names
        if name.name in counterpoise.__all__
    ]
    assert elsewhere == []


def command_lines(name: str) -> Iterator[list[str]]:
    """The words behind `counterpoise` on each line of code that begins with it."""
    for _, kind, code in FENCE.findall(text(name)):
        if kind in ("", "sh", "bash", "console"):
            joined = code.replace("\\\n", " ")
            for line in re.findall(r"^(?:\$ )?(?:.*\| )?counterpoise ([a-z].*)$", joined, re.M):
                yield re.split(r"\s+(?:#|2?>|\||&)", line)[0].split()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_in_documents_exist_with_their_options(name: str) -> None:
    for words in command_lines(name):
        command: Any = app
        for word in words:
            found = getattr(command, "commands", {}).get(word)
            if command is app and word in COMMANDS:
                found = load(word)
            if found is None:
                break
            command = found
        assert not getattr(command, "commands", None), f"no such command: {words}"
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {option for parameter in command.params for option in parameter.secondary_opts}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help", "-h"}, words


def test_all_documents_are_read() -> None:
    """The list is not empty by mistake, and the README is in it."""
    assert {"README.md", "docs/protocol.md", "deploy/README.md"} <= set(DOCUMENTS)
    assert sum(1 for name in DOCUMENTS for _ in command_lines(name)) > 10
    assert Path(ROOT / "docs/pictures/dashboard.png").stat().st_size < 200_000


def test_the_guides_sink_is_the_one_of_the_tested_example() -> None:
    """`tests/counterpoise/spark` runs the example; the guide quotes its SQL and its function."""
    example = re.sub(r'["\s]', "", text("docs/examples/per_key_counts.py"))
    quoted = [
        code
        for _, kind, code in FENCE.findall(text("docs/guides/exactly-once.md"))
        if kind == "sql" or "def add" in code
    ]
    assert len(quoted) == 3
    for code in quoted:
        assert re.sub(r'["\s]', "", code) in example


@functools.cache
def messages_of_the_code() -> str:
    """The sources of the programs, with adjacent string literals joined and blanks as one."""
    names = [
        name
        for name in tracked_files()
        if name.startswith(("api/", "broker/", "counterpoise/")) and name.endswith((".py", ".js"))
    ]
    return re.sub(r"\s+", " ", re.sub(r"""["']\s*\n\s*[rf]?["']""", "", "".join(map(text, names))))


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    """The first column of its tables quotes them; `…` stands for what varies."""
    rows = re.findall(r"^\| (.+?) \| ", text("docs/troubleshooting.md"), re.M)
    quoted = {
        part.strip()
        for row in rows
        for code in re.findall("`(.+?)`", row)
        for part in code.split("…")
    }
    assert len(quoted) > 60
    assert {part for part in quoted if part not in messages_of_the_code()} == set()


def named_tests(section: str) -> list[str]:
    """The tests that a section names; all of them exist."""
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", section)
    for file, function in named:
        body = ast.walk(ast.parse(text(file)))
        defined = {
            one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in defined, f"{file} has no {function}"
    return [f"{file}::{function}" for file, function in named]


OUTAGES = text("docs/what-if.md").split("\n## ")[1:]


@pytest.mark.parametrize("section", OUTAGES, ids=[one.partition("\n")[0] for one in OUTAGES])
def test_each_outage_has_its_loss_its_time_its_remedy_and_tests(section: str) -> None:
    """docs/what-if.md."""
    points = re.findall(r"^\* \*\*(.+?):\*\*", section, re.M)
    assert points == ["Lost", "For how long", "What to do", "Shown by"]
    assert named_tests(section)


def test_each_wish_of_a_new_user_has_tests_that_fail_if_it_is_lost() -> None:
    """`make newcomer` plays what the table names."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", text("tests/newcomer.md"), re.M)[1:]
    assert len(rows) >= 11
    for wish, tests in rows:
        assert named_tests(tests), wish


def test_the_readme_says_at_once_what_it_costs_and_where_to_go_on() -> None:
    page = text("README.md")
    for target in ("demo", "test"):
        assert re.search(rf"^make {target} .*\d GB .*minutes", page, re.M)
    [speed] = re.findall(r"^\*\*Speed\.\*\* (?:.+\n)+", page, re.M)
    assert len(speed.splitlines()) == 3
    assert "docs/performance.md" in speed
    pages = page.partition("\n## Documentation\n")[2].partition("\n## ")[0]
    assert len(pages.strip().splitlines()) == 5


# What people search for, and the section that should have all words of it (`test_site`: finds it).
SEARCHES = {
    "authentication": "docs/operations.md",
    "RBAC": "docs/operations.md",
    "disaster recovery": "docs/what-if.md",
    "how many partitions": "docs/operations.md",
    "scale": "docs/autoscaling.md",
    "Postgres goes down": "docs/what-if.md",
    "exactly once": "docs/guides/exactly-once.md",
    "dead letter": "docs/consumer.md",
    "lag": "docs/monitoring.md",
    "rolling deploy": "docs/guides/stopping.md",
    "backpressure": "docs/consumer.md",
    "ordering": "docs/publishing.md",
    "TLS": "docs/operations.md",
    "Kubernetes": "deploy/README.md",
}


@pytest.mark.parametrize("asked", SEARCHES)
def test_a_section_has_the_words_in_which_people_ask(asked: str) -> None:
    sections = re.split(r"^#+ ", text(SEARCHES[asked]), flags=re.M)
    words = asked.lower().split()
    assert any(all(word in one.lower() for word in words) for one in sections)


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[str] = set()
    waiting = ["README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for target in links(page):
            there = (ROOT / page).parent / target.partition("#")[0]
            name = there.resolve().relative_to(ROOT).as_posix()
            if name in DOCUMENTS and name not in reached:
                waiting.append(name)
    assert {name for name in DOCUMENTS if name.startswith("docs/")} - reached == set()


def test_the_sites_menu_has_every_page() -> None:
    menu = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text("deploy/site/mkdocs.yml"), re.M)
    pages = {name for name in DOCUMENTS if name.startswith(("docs/", "benchmarks/"))}
    assert pages - set(menu) == set()


def test_each_diagram_has_its_picture_for_the_site() -> None:
    """Draw them anew: python -m tests.browser.diagrams."""
    names = {name_of(source) for source in diagrams()}
    assert names == {path.name for path in PICTURES.glob("diagram-*.svg")}


def sentences(name: str, of: str = "paragraph") -> Iterator[str]:
    """Those of paragraphs and lists, or of table cells (`td`): a piece of code is one word."""
    for before, token in pairwise(MarkdownIt().enable("table").parse(text(name))):
        if token.type == "inline" and before.type == f"{of}_open":
            kinds = {"code_inline": "code", "softbreak": " "}
            said = "".join(kinds.get(one.type, one.content) for one in token.children or ())
            yield from re.split(r"(?<=[.?!])\W*\s+(?=\S)", said)


def length(sentence: str) -> int:
    return len(re.findall(r"\S*\w\S*", sentence))


PLAIN = """
    aggregates aligned autoscaling cluster comparison consumer design faults kafka logs
    logs-background model monitoring operations performance performance-background placement
    previews processors promises protocol publishing security security-background settings
    simulation sink sinks spark spark-background spark-options troubleshooting warmup what-if
    writing
"""


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", *(f"docs/{one}.md" for one in PLAIN.split())])
def test_sentences_are_short(name: str) -> None:
    """Readers of a second language understand them at the first reading."""
    words = {said: length(said) for said in sentences(name)}
    assert len(words) >= 5
    assert not [said for said, count in words.items() if count > 35]
    assert mean(words.values()) <= 15


def test_the_rules_of_the_contract_are_short_sentences() -> None:
    """Most of them stand in tables."""
    cells = [said for said in sentences("docs/protocol.md", "td") if length(said)]
    assert len(cells) > 300
    assert not [said for said in cells if length(said) > 35]
