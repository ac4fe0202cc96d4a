"""How a command of the service ends without having done its work: one line, and an exit code."""

import sys
from enum import IntEnum
from typing import NoReturn

from broker.settings import Settings, SettingsError, load


class Exit(IntEnum):
    """The reasons why a command did not do its work."""

    SETTINGS = 2
    ADDRESS = 3
    DATA_DIRECTORY = 4
    DATABASE = 5
    MIGRATION = 6
    SERVED = 7
    NOT_FENCED = 8
    EXPOSED = 9
    KEY = 10
    ANOTHER_DATABASE = 11
    BACKUP = 12


def loaded(**given: object) -> Settings:
    """The settings (`broker.settings.load`); wrong ones end the command."""
    try:
        return load(**given)
    except SettingsError as error:
        fail(Exit.SETTINGS, str(error))


def fail(code: Exit, message: str) -> NoReturn:
    line = " ".join(message.split())
    sys.stderr.write(f"counterpoise: {line}\n")
    raise SystemExit(int(code))
