"""Options that stand before or after a command, keys in files, and what shells complete."""

import subprocess

import pytest

from counterpoise.client import Client
from counterpoise.errors import InvalidSettings
from counterpoise.flow import Flow
from tests.counterpoise.cli.conftest import run_at

NOWHERE = "http://127.0.0.1:1"
# What an option puts in place is taken back with the test.
UNSET = {"COUNTERPOISE_TOKEN": None, "COUNTERPOISE_TOKEN_FILE": None}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "{}", "queues", "show", "a"),
        ("queues", "show", "a", "--url", "{}"),
        ("--url", NOWHERE, "queues", "show", "a", "--url", "{}"),
        ("--url", "{}", "doctor"),
    ],
)
def test_the_address_stands_before_or_after_the_command(run, service, arguments):
    run("queues", "create", "a", "-p", "2")
    assert "a" in run_at(NOWHERE, *[one.format(service.url) for one in arguments]).output


@pytest.fixture
def sent(monkeypatch):
    """The key that the last command had."""
    keys = []

    def queues(self, max_items=None):
        keys.append(self._settings._token)
        return []

    monkeypatch.setattr(Client, "queues", queues)
    return keys


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("option", ["--token", "--token-file"])
def test_a_key_of_an_option_wins_over_variables(sent, tmp_path, option, before):
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text(" cp_1\n")
    other.write_text("cp_3")
    given = [option, "cp_1" if option == "--token" else str(file)]
    environment = {"COUNTERPOISE_TOKEN": "cp_2", "COUNTERPOISE_TOKEN_FILE": str(other)}
    command = ["queues", "list"]
    run_at(NOWHERE, *(given + command if before else command + given), environment=environment)
    assert sent == ["cp_1"]


def test_a_key_comes_from_the_file_that_the_variable_names(sent, tmp_path):
    file = tmp_path / "key"
    file.write_text("cp_1\r\n")
    named = {**UNSET, "COUNTERPOISE_TOKEN_FILE": str(file)}
    run_at(NOWHERE, "queues", "list", environment=named)
    run_at(NOWHERE, "queues", "list", environment={**named, "COUNTERPOISE_TOKEN": "cp_2"})
    assert sent == ["cp_1", "cp_2"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\xff\xfe", "it is not text"),
        (b"hunter 2", "a character that a header cannot carry"),
        (b"hunter" * 100_000, "is too long"),
    ],
)
def test_a_file_without_a_key_is_named_and_not_shown(tmp_path, monkeypatch, content, says):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    said = run_at(NOWHERE, "queues", "list", "--token-file", str(file), environment=UNSET, code=2)
    told = " ".join(said.stderr.split())
    assert says in told
    assert str(file) in told
    monkeypatch.delenv("COUNTERPOISE_TOKEN", raising=False)
    monkeypatch.setenv("COUNTERPOISE_TOKEN_FILE", str(file))
    with pytest.raises(InvalidSettings, match=r"^COUNTERPOISE_TOKEN_FILE: ") as found:
        Client(NOWHERE)
    assert says in str(found.value)
    assert "hunter" not in told + str(found.value)


def completed(url, words, shell):
    """The names that a shell offers for the last word."""
    before, incomplete = ["counterpoise", *words[:-1]], words[-1]
    environment = {
        "_COUNTERPOISE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join([*before, incomplete]),
        "COMP_CWORD": incomplete if shell == "fish" else str(len(before)),
    }
    result = run_at(url, environment={**UNSET, **environment})
    assert not result.stderr
    lines = result.stdout.strip().splitlines()
    if shell == "zsh":  # a name is three lines: its kind, itself, its help
        return lines[1::3]
    # Of others `plain,name`, of fish also a tab and the help.
    return [one.partition(",")[2].partition("\t")[0] for one in lines]


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_queues_and_consumers_are_completed(run, service, shell, monkeypatch):
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", lambda: None)
    for name in ("orders", "orders-dead", "clicks"):
        run("queues", "create", name, "-p", "1", "--rebalance-delay", "0")
    with Flow("orders", url=service.url, client_name="billing"):
        assert completed(service.url, ["sta"], shell) == ["status"]
        assert completed(service.url, ["status", "ord"], shell) == ["orders", "orders-dead"]
        assert completed(service.url, ["consumers", "drain", "orders", ""], shell) == ["billing"]
    assert completed(service.url, ["audit", "--queue", "c"], shell) == ["clicks"]
    assert completed(NOWHERE, ["--url", service.url, "lag", "c"], shell) == ["clicks"]
    assert completed(NOWHERE, ["lag", "--url", service.url, "c"], shell) == ["clicks"]
    assert completed(NOWHERE, ["status", ""], shell) == []
    assert completed(NOWHERE, ["consumers", "drain", "orders", ""], shell) == []


def test_bash_takes_the_line_of_the_page():
    done = subprocess.run(
        ["bash", "-c", "source /dev/stdin; complete -p counterpoise"],
        input=run_at(NOWHERE, environment={"_COUNTERPOISE_COMPLETE": "bash_source"}).stdout,
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "_counterpoise_completion" in done.stdout
