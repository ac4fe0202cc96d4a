"""Writes docs/api, the reference of the Python packages, from their signatures and docstrings.

`make reference` runs it. The public names of a package are those in its `__all__`; without one
its classes.
"""

import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from counterpoise import documents
from counterpoise.wire import RequestBody

HERE = Path(__file__).with_name("api")
# By page: its title, what to read first, and its packages with the names on it (empty: all that are
# on no other page).
PAGES: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "consumer": (
        "Consumer",
        "[Python consumers](../consumer.md) says how to use it.",
        {"counterpoise.consumer": ""},
    ),
    "publisher": (
        "Publisher",
        "[Publishing](../publishing.md) says how to use it.",
        {"counterpoise.publisher": ""},
    ),
    "spark": (
        "Spark source and sinks",
        (
            "How to use them: [Spark](../spark.md), [the fenced sink](../sink.md), "
            "[aggregates](../aggregates.md), [processors](../processors.md), "
            "[warm-up](../warmup.md), [writing](../writing.md)."
        ),
        {
            "counterpoise.spark": "",
            "counterpoise.spark.processors": "",
            "counterpoise.spark.sink": "Report Scope",
        },
    ),
    "flow": (
        "Flow",
        (
            "For consumers that read the log themselves. Most programs take a "
            "[`Consumer`](consumer.md#consumer)."
        ),
        {
            "counterpoise.flow": "Flow AsyncFlow Owned Warming lease_time",
            "counterpoise.wire": (
                "Child ChildrenItem CommitItem ReleaseItem ReadyItem Condition LogAccess"
            ),
        },
    ),
    "client": (
        "Client",
        (
            "The calls of [the contract](../protocol.md) for programs, and what they return. "
            "`openapi.yaml` has all. A document lists its fields in the order of its arguments. "
            "Lists are tuples."
        ),
        {
            "counterpoise.client": "Client AsyncClient",
            "counterpoise.wire": "",
        },
    ),
    "errors": (
        "Errors",
        "What they mean for an operator is in [Troubleshooting](../troubleshooting.md).",
        {"counterpoise.errors": "", "counterpoise.spark.errors": ""},
    ),
    "logs": (
        "Log",
        (
            "For consumers that read a log of their own kind. [Logs](../logs.md) describes "
            "those that are there."
        ),
        {
            "counterpoise.logs": "",
            "counterpoise.keys": "partition_of",
            "counterpoise.logs.groups": "place",
        },
    ),
    "testing": (
        "Testing package",
        "[Test consumers](../testing.md) says how to use it.",
        {"counterpoise.testing": ""},
    ),
}
# Documents of HTTP that no call of a client returns.
OF_HTTP_ALONE = """
    Page Session Lineage Scaling ShownMessage ShownMessages PublishedMessage FieldProblem Problem
    Health Readiness
"""
# Members that only the package itself calls.
OF_THE_PACKAGE_ALONE = """
    Child.check ChildrenItem.check CommitItem.check Condition.check DeadLetter.check
    DeadLetter.store LaneStatus.of QueueListener.failed
    QueueListener.started Retry.check ReadyItem.check ReleaseItem.check Windows.have
    Windows.of
"""
MARK = "<!-- docs/api_pages.py writes this page from the docstrings. -->"
LINE_LENGTH = 88


def public(package: str, chosen: str = "") -> list[tuple[str, Any]]:
    """The public names of a package, each with what it is."""
    module = importlib.import_module(package)
    names = chosen.split() or getattr(module, "__all__", None)
    if names is None:
        elsewhere = {
            name for *_, packages in PAGES.values() for name in packages.get(package, "").split()
        }.union(OF_HTTP_ALONE.split())
        names = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == package and name[0] != "_"
            if name not in elsewhere and not issubclass(value, RequestBody)
        ]
    return [(name, getattr(module, name)) for name in names]


def page(title: str, introduction: str, packages: Mapping[str, str]) -> str:
    """The text of a page."""
    parts = [f"# {title}", MARK, introduction]
    described: dict[str, str] = {}
    for package, chosen in packages.items():
        # How it works, behind that, is for those who read the code.
        use, _, _ = prose(importlib.import_module(package)).partition("\n**How it works**")
        parts += [f"## {package}", "" if chosen else use.strip()]
        for name, value in public(package, chosen):
            parts += [f"### {name}", *entry(name, value, described)]
    return "\n\n".join(part for part in parts if part) + "\n"


def entry(name: str, value: Any, described: dict[str, str]) -> Iterator[str]:
    """The paragraphs on a name.

    `described`: the members and the arguments that the page has already, each with the name under
    which it has them.
    """
    if inspect.isfunction(value):
        yield from (fenced(name, value), prose(value))
        return
    if not inspect.isclass(value):
        yield f"```\n{name} = {readable(str(value))}\n```"
        return
    if issubclass(value, BaseException):
        code = f", code `{value.code}`" if "code" in vars(value) else ""
        yield f"Error (`{value.__base__.__name__}`){code}."
    elif issubclass(value, Struct):
        yield from document(value)
    elif not getattr(value, "_is_protocol", False):
        arguments = signature(name, value).removeprefix(name)
        first = described.setdefault(arguments, name) if "\n" in arguments else name
        yield fenced(name, value) if first == name else f"Arguments: those of `{first}`."
    if not issubclass(value, Struct):
        yield prose(value)
    if (made := vars(value).get("__init__")) and made.__doc__:
        yield prose(made)
    repeated = []
    properties = []
    for member, found in members(value):
        called = "" if isinstance(found, property) else signature(member, found)
        if (said := f"{member}\n{called}\n{prose(found)}") in described:
            repeated.append(member)
            continue
        described[said] = name
        if called:
            yield from (f"#### {name}.{member}", fenced(member, found), prose(found))
        else:
            properties.append(f"* `{member}`: {' '.join(prose(found).split())}")
    if properties:
        yield "Properties:"
        yield "\n".join(properties)
    if repeated:
        yield f"Also, {as_above(value, repeated, described)}."


def as_above(shape: type, repeated: list[str], described: Mapping[str, str]) -> str:
    """The members of a class that another one on the page has likewise."""
    name = shape.__name__
    if not name.startswith("Async"):
        return f"as above: {', '.join(f'`{one}`' for one in repeated)}"
    twin = name.removeprefix("Async")
    of_twin = {said.partition("\n")[0] for said, owner in described.items() if owner == twin}
    of_twin.discard("(")  # its arguments
    plain = [
        f"`{one}`"
        for one in repeated
        if inspect.isfunction(found := getattr(shape, one))
        if not inspect.iscoroutinefunction(found)
    ]
    lacks = [f"`{one}`" for one in sorted(of_twin - {member for member, _ in members(shape)})]
    return (
        f"as `{twin}` has them, the other properties, and methods as coroutines"
        + (f" ({', '.join(plain)}: as there)" if plain else "")
        + (f", without {', '.join(lacks)}" if lacks else "")
    )


def document(shape: type[Struct]) -> Iterator[str]:
    """The paragraphs on a document: what it is, and each of its fields with its type."""
    described, fields = documents.described(shape)
    yield described
    types = typing.get_type_hints(shape)
    listed: list[str] = []
    base = shape.__base__
    inherited = {"raw", *getattr(base, "__struct_fields__", ())}
    if len(inherited) > 1 and base is not None:
        listed.append(f"* the fields of `{base.__name__}`")
    for parameter in inspect.signature(shape).parameters.values():
        if parameter.name in inherited:
            continue
        shown = f"`{argument(parameter.replace(annotation=types[parameter.name]))}`"
        if said := fields.get(parameter.name):
            listed.append(f"* {shown}: {' '.join(said.split())}")
        elif listed and listed[-1].endswith("`") and ": " in listed[-1]:
            listed[-1] += f", {shown}"
        else:
            listed.append(f"* {shown}")
    yield "\n".join(listed)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that our own classes describe, in their order."""
    seen: set[str] = set()
    for one in owner.__mro__:
        if not one.__module__.startswith("counterpoise"):
            continue
        for member, found in vars(one).items():
            plain = getattr(found, "__func__", found)
            is_ours = member[0] != "_" and member not in seen
            is_ours &= f"{owner.__name__}.{member}" not in OF_THE_PACKAGE_ALONE.split()
            if is_ours and (isinstance(found, property) or inspect.isfunction(plain)):
                seen.add(member)
                if plain.__doc__:
                    yield member, plain


def fenced(name: str, value: Any) -> str:
    """How it is called, as code."""
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    return f"```py\n{prefix}{signature(name, value)}\n```"


def signature(name: str, value: Any) -> str:
    """How it is called, in one line or with a line for each argument."""
    try:
        called = inspect.signature(value)
    except ValueError:  # a class of Python's own
        return f"{name}(…)"
    arguments: list[str] = []
    kind: Any = None
    for parameter in called.parameters.values():
        if parameter.name in ("self", "cls", "core") or parameter.name[0] == "_":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            arguments.append("*")
        kind = parameter.kind
        arguments.append(argument(parameter))
    result = readable(annotation(called.return_annotation))
    # A method of a client is made of a function that returns the call that it sends, and one of a
    # flow of its program.
    result = re.sub(r"^(?:Call|Program)\[(.*)\]$", r"\1", re.sub(r"^Listing\[", "list[", result))
    end = f") -> {result}" if result and not inspect.isclass(value) else ")"
    line = f"{name}({', '.join(arguments)}{end}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), end])


def argument(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = readable(annotation(parameter.annotation))
    said = f"{stars}{parameter.name}{f': {kind}' if kind else ''}"
    if parameter.default is parameter.empty:
        return said
    default = repr(parameter.default)
    default = "…" if "<" in default else readable(default)
    return f"{said} = {default}" if kind else f"{said}={default}"


def annotation(found: Any) -> str:
    if found is inspect.Parameter.empty:
        return ""
    if isinstance(found, typing.ForwardRef):  # of a named tuple
        return found.__forward_arg__
    return found if isinstance(found, str) else inspect.formatannotation(found)


def readable(code: str) -> str:
    """Names without the modules that they are in, and without the quotes of types."""
    code = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])|~", "", code)
    code = re.sub(r"\bOptional\[(\w+)\]", r"\1 | None", code)
    return re.sub(r"'([A-Z]\w*)'", r"\1", code)


def prose(value: Any) -> str:
    """Its docstring as Markdown: underlined titles become bold."""
    said = inspect.getdoc(value) or ""
    if inspect.isclass(value) and said.startswith(f"{value.__name__}("):  # a dataclass without one
        return ""
    return re.sub(r"^(\w.*)\n-{4,}$", r"**\1**\n", said, flags=re.M)


def index() -> str:
    """The page that leads to the others, with every name."""
    parts = [
        "# Python API",
        MARK,
        "What programs import, by package. `counterpoise` itself has "
        + ", ".join(f"`{name}`" for name, _ in public("counterpoise"))
        + ".",
    ]
    for file, (_, _, packages) in PAGES.items():
        for package, chosen in packages.items():
            names = [f"[`{name}`]({file}.md#{name.lower()})" for name, _ in public(package, chosen)]
            parts += [f"## {package}", ", ".join(names) + "."]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """The texts of all pages, by the names of their files."""
    return {"README.md": index(), **{f"{file}.md": page(*of) for file, of in PAGES.items()}}


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for file, text in pages().items():
        (HERE / file).write_text(text, "utf-8")
