"""The working words of the code are in docs/glossary.md, and it has no word that the code lacks.

The words of a module's name are everyday words (`EVERYDAY`: what every service has), or they are in
the glossary. So a coined word cannot come without its meaning.
"""

import re

from tests.architecture.structure import ROOT, modules

PAGE = (ROOT / "docs/glossary.md").read_text("utf-8")
# Words of programs in general, of Python, SQL, HTTP, Spark and the logs that are served.
WORDS = """
    access address administration admission answers api app appender application asyncio at
    available backoff backups base batch binaries blocking bodies bound bounds broker buffer builtin
    bulk by callers calls certificate checks child cli client clock cluster columns conditions
    connect connection connections consumer coordinator core counterpoise creation credentials
    cursors data database delivery demo display doctor documents draining drawing driver durations
    embedded environment errors event events evidence exchanges exit exposure external flights
    handler hash head history indexes items kafka keeper key keys kind lag launch lazy leaving
    limits listener logins loop main memory message messages metrics migrations mock model
    monitoring names notifications now numbered offset offsets openapi opening options output
    picture plain planner planning play playing plugin polls pools port ports postgres problems
    process processes processor programs progress query rates reader readers reading rebalancer
    recovery redis rendering replica report reports requests resizing restoring roles routes routing
    rows running scaling scenario scenarios schema scripts security sending server service settings
    settling shared simulate sink source spark split stage staging state states status stopping
    store stored stream streams structures tables tasks telemetry testing throttling tracing updates
    verdict version view views warmup wire with without work writer
"""
EVERYDAY = frozenset(WORDS.split())


def defined() -> set[str]:
    """The words in bold at the beginning of a row, singular."""
    words: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", PAGE, re.M):
        for word in re.findall(r"\*\*([^*]+)\*\*", cell):
            words.update({*re.split(r"[ -]", word.lower()), word.replace(" ", "").lower()})
    return words


def stems(word: str) -> set[str]:
    """The word, and what it may be the plural of."""
    return {word, word.removesuffix("s")}


def used() -> dict[str, str]:
    """The words in the names of modules, each with one of these modules."""
    return {word: name for name in modules() for word in name.rpartition(".")[2].split("_") if word}


def test_a_word_of_a_modules_name_is_everyday_or_in_the_glossary() -> None:
    known = defined() | EVERYDAY
    assert not {word: name for word, name in used().items() if not stems(word) & known}


def test_everyday_words_are_used() -> None:
    assert not EVERYDAY - used().keys()


def test_every_word_of_the_code_is_in_the_code() -> None:
    section = PAGE.partition("## Words of the code")[2].partition("\n## ")[0]
    code = re.sub(r"[ _\n-]", "", " ".join(module.text.lower() for module in modules().values()))
    words = re.findall(r"\*\*([^*]+)\*\*", section)
    assert len(words) > 30
    assert not [word for word in words if re.sub(r"[ -]", "", word) not in code]
