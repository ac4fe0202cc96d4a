"""Writes what each command does, and its options, into docs/commands.md; `make reference` runs it.

The section of a command, below `### counterpoise …`, says what it does, has examples that are
written by hand (from the first block of the console on), and then its options. What many
commands have is described once, between `<!-- shared -->` and `<!-- end of shared -->`. Everything
else is written by hand.
"""

import re
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from counterpoise.cli.app import app

PAGE = Path(__file__).with_name("commands.md")
SECTION = re.compile(
    r"^### (?P<name>counterpoise [a-z -]+)\n\n.*?"
    r"(?P<by_hand>^```console\n.*?)^```\n(?P=name)\b.*?(?=^#)",
    re.M | re.S,
)
SHARED = re.compile(r"(<!-- shared -->\n).*?(<!-- end of shared -->\n)", re.S)
MANY = 4  # so many commands share an option
# A command, and the one that has most of its options.
LIKE = {"counterpoise queues change": "queues create", "counterpoise restore": "migrate"}
# The page describes these once, by hand, for all commands that have them so.
COMMON = {
    "QUEUE": "The queue's name.",
    "--help": "Show this message and exit.",
    "--json": "Print JSON, for programs.",
    "--url": "The service's address.",
    "--token": "The key; ps shows it to everybody on this machine, so better give a file or the "
    "variable. [env: COUNTERPOISE_TOKEN]",
    "--token-file": "A file with the key. [env: COUNTERPOISE_TOKEN_FILE]",
}


def commands(
    group: click.Group = app, above: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each command that does something: its name, itself, and its context."""
    context = above or group.make_context(group.name, [], resilient_parsing=True)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        below = command.context_class(
            command, info_name=word, parent=context, **command.context_settings
        )
        if isinstance(command, click.Group) and not command.hidden:
            yield from commands(command, below)
        elif not command.hidden:
            yield below.command_path, command, below


def rows(command: click.Command, context: click.Context) -> dict[str, str]:
    """Each argument and option as the page writes it, and its meaning."""
    made = {}
    for parameter in command.get_params(context):
        written, said = parameter.get_help_record(context) or ("--help", "")
        is_argument = isinstance(parameter, click.Argument)
        first = parameter.human_readable_name if is_argument else parameter.opts[-1]
        if re.split(r"\s*\[(?!env: )", said)[0] != COMMON.get(first):
            made[code(first if is_argument else written)] = cell(said)
        elif first in ("--json", "--url"):
            made["`--json`" if first == "--json" else "`--url ADDRESS`"] = ""
    return made


def shared() -> dict[str, str]:
    """The options that many commands have in the same words."""
    counted = Counter(
        row for _, command, context in commands() for row in rows(command, context).items()
    )
    return {one: said for (one, said), count in counted.items() if said and count >= MANY}


def options(name: str, command: click.Command, context: click.Context) -> str:
    """How the command is called, and a table of its arguments and options."""
    known = dict.fromkeys(["`--json`", "`--url ADDRESS`"], "") | shared()
    own = rows(command, context)
    usage = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    usage += [f"[{one.strip('`')}]" for one in known if own.get(one) == known[one]]
    own = {one: said for one, said in own.items() if said != known.get(one)}
    if like := LIKE.get(name):
        [theirs] = [rows(*one[1:]) for one in commands() if one[0] == f"counterpoise {like}"]
        same = [one for one, said in own.items() if said == theirs.get(one)]
        own = {one: said for one, said in own.items() if one not in same}
        link = f"[`{like}`](#counterpoise-{like.replace(' ', '-')})"
        assert same, f"{name} has no option of {like}"
        own[", ".join(same)] = f"As in {link}."
    parts = [f"```\n{' '.join([name, *usage])}{' [OPTIONS]' if own else ''}\n```\n"]
    return "\n".join([*parts, table(own)] if own else parts)


def table(described: dict[str, str]) -> str:
    lines = [f"| {written} | {said} |" for written, said in described.items()]
    return "\n".join(["| option | meaning |", "|---|---|", *lines, ""])


def code(written: str) -> str:
    """`-p, --partition INTEGER RANGE` as code; the range is in the meaning."""
    return f"`{re.sub(r' RANGE$|[][]', '', written).replace('|', ' or ')}`"


def cell(said: str) -> str:
    """The meaning of an option, with its default and bounds in parentheses."""
    said = re.sub(r"\s*\[env: (\w+)\]", r" Variable: `\1`.", said)
    meaning, _, extra = said.strip().removesuffix("]").partition("[")
    notes = [note for note in extra.split("; ") if note and not note.startswith("env var")]
    if meaning.count("(") > meaning.count(")"):  # no extra, but brackets within the meaning
        meaning, notes = said, []
    joined = re.sub(r"default: \((.*?)\)(?=;|$)", r"default: \1", "; ".join(notes))
    joined = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", joined).replace("x>=", "at least ")
    joined = re.sub(r"(?<![\d.])(\d+)\.0(?![\d.])", r"\1", joined)
    return markdown(f"{meaning.strip()} ({joined})" if joined else meaning).strip()


def markdown(said: str) -> str:
    """The help with commands as code, and without marks that Markdown would take for its own."""
    said = re.sub(r"'((?:counterpoise|positions) [^']*)'", r"`\1`", said)
    said = re.sub(r"^(export .*)$", r"`\1`", said, flags=re.M)
    return re.sub(r"([*|<])", r"\\\1", said)


def page(text: str) -> str:
    """The page, with the sections of the commands written anew."""
    found = {name: (command, context) for name, command, context in commands()}

    def write(section: re.Match[str]) -> str:
        name, by_hand = section["name"], section["by_hand"]
        command, context = found[name]
        does = markdown(cleandoc(command.help or ""))
        return f"### {name}\n\n{does}\n\n{by_hand}{options(name, command, context)}\n"

    names = [section["name"] for section in SECTION.finditer(text)]
    assert sorted(names) == sorted(found), f"not once in {PAGE}: {set(names) ^ set(found)}"
    text, places = SHARED.subn(lambda place: f"{place[1]}\n{table(shared())}\n{place[2]}", text)
    assert places == 1, f"no place for the options of many commands in {PAGE}"
    return SECTION.sub(write, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
