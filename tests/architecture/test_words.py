"""The working words of the code are in docs/glossary.md, and it has no word that the code lacks.

The words of a module's name are everyday words (`EVERYDAY`: what every service has), or they are in
the glossary. So a coined word cannot come without its meaning.
"""

import re

from tests.architecture.structure import ROOT, modules

PAGE = (ROOT / "docs/glossary.md").read_text("utf-8")
# Words of programs in general, of Python, SQL, HTTP, Spark and the logs that are served.
EVERYDAY = frozenset(["@EVERYDAY@"])


def defined() -> set[str]:
    """The words in bold at the beginning of a row, singular."""
    words: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", PAGE, re.M):
        for word in re.findall(r"\*\*([^*]+)\*\*", cell):
            words.update(re.split(r"[ -]", word.lower()))
    return words


def stems(word: str) -> set[str]:
    """The word, and what it may be a form of."""
    return {word, word.removesuffix("s"), word.removesuffix("ies") + "y", word.removesuffix("es")}


def used() -> dict[str, str]:
    """The words in the names of modules, each with one of these modules."""
    return {word: name for name in modules() for word in name.rpartition(".")[2].split("_") if word}


def test_a_word_of_a_modules_name_is_everyday_or_in_the_glossary() -> None:
    known = defined() | EVERYDAY
    assert not {word: name for word, name in used().items() if not stems(word) & known}


def test_everyday_words_are_used() -> None:
    words = {form for word in used() for form in stems(word)}
    assert not EVERYDAY - words


def test_every_word_of_the_code_is_in_the_code() -> None:
    section = PAGE.partition("## Words of the code")[2].partition("\n## ")[0]
    code = " ".join(module.text.lower() for module in modules().values())
    words = re.findall(r"\*\*([^*]+)\*\*", section)
    assert len(words) > 30
    assert not [word for word in words if re.sub("[ -]", "", word) not in re.sub("[ _-]", "", code)]
