"""A headless Chromium, controlled over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.service import eventually

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
# The marks of tests with a browser, beside `long`.
MARKS = [
    pytest.mark.skipif(PROGRAM is None, reason="not installed: chromium"),
    pytest.mark.xdist_group("browser"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",  # root has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1200,900",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


@contextmanager
def chromium(program: str, directory: Path) -> Iterator[Browser]:
    """Runs Chromium; its profile is in `directory`."""
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={directory / 'profile'}", "about:blank"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with connect(
            _address(process), max_size=None, ping_interval=None, close_timeout=1
        ) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.communicate(timeout=240)


def _address(process: subprocess.Popen[str]) -> str:
    """The address of its command socket."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"DevTools listening on (ws://\S+)", line):
            return found[1]
    raise RuntimeError(f"Chromium did not start:\n{''.join(said)}")


class Navigated(RuntimeError):
    """The page went to another address while it was asked."""


class Browser:
    """The commands to a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._told: list[dict[str, Any]] = []

    def open(self, url: str) -> Page:
        """A new page with this address, once its document is there."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        for domain in ("Runtime", "Log", "Page"):
            page.ask(f"{domain}.enable")
        page.ask("Page.navigate", {"url": url})
        eventually(lambda: url == "about:blank" or page.is_there())
        return page

    def ask(
        self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Sends one command; returns its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            command["sessionId"] = session
        self._socket.send(json.dumps(command))
        while True:
            message = json.loads(self._socket.recv(timeout=240))
            if message.get("id") != self._number:
                self._told.append(message)
                continue
            if "error" in message:
                error = message["error"]
                kind = Navigated if "navigated" in error["message"] else RuntimeError
                raise kind(f"{method}: {error}")
            result: dict[str, Any] = message["result"]
            return result

    def told(self, session: str) -> list[dict[str, Any]]:
        """The events that a page has raised so far."""
        return [one for one in self._told if one.get("sessionId") == session]


class Page:
    """An open page.

    It follows the service and its user in its own time. So a test waits for what it reads and for
    what it clicks: a button may not be there yet, and a dialog that was closed still be there.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._preferences: dict[str, str] = {}

    def ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.ask(method, parameters, self._session)

    def run(self, expression: str) -> Any:
        """The value of the expression in the page, awaited."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", given)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def is_there(self) -> bool:
        """Whether its first document has come, and is parsed."""
        with suppress(Navigated):
            come = "location.href !== 'about:blank' && document.readyState !== 'loading'"
            return bool(self.run(come))
        return False

    def act(self, element: str, action: str) -> None:
        """Do something to an element as soon as it is there.

        `element`: an expression; `action`: statements in which it is called `it`.
        """
        attempt = f"(() => {{ const it = {element}; if (it) {{ {action} }} return !!it; }})()"
        eventually(lambda: self.run(attempt))

    def text(self, selector: str = "body") -> str:
        """The text of this element; empty while there is no such element, or no such page yet."""
        try:
            return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))
        except Navigated:
            return ""

    def faults(self) -> list[str]:
        """Exceptions and errors in the page's console.

        Not the answer 503: the database of a machine that stalls is away for a moment, and the
        page asks again.
        """
        faults = []
        for one in self._browser.told(self._session):
            if one["method"] == "Runtime.exceptionThrown":
                faults.append(str(one["params"]["exceptionDetails"]))
            elif one["method"] == "Log.entryAdded" and one["params"]["entry"]["level"] == "error":
                entry = one["params"]["entry"]
                if "status of 503" not in entry["text"]:
                    faults.append(str(entry))
        return faults

    def dark(self, dark: bool = True) -> None:
        """Shows the page to a user who prefers dark colours, or light ones."""
        self._prefer("color-scheme", "dark" if dark else "light")

    def still(self) -> None:
        """Shows the page to a user who prefers no motion: nothing is amid a transition."""
        self._prefer("reduced-motion", "reduce")

    def _prefer(self, name: str, value: str) -> None:
        self._preferences[f"prefers-{name}"] = value
        features = [{"name": name, "value": value} for name, value in self._preferences.items()]
        self.ask("Emulation.setEmulatedMedia", {"features": features})

    def width(self, pixels: int, height: int = 900) -> None:
        """Shows the page in a window of this size."""
        size = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.ask("Emulation.setScrollbarsHidden", {"hidden": True})
        self.ask("Emulation.setDeviceMetricsOverride", size)

    def close(self) -> None:
        self.ask("Page.close")

    def photograph(self, path: Path) -> None:
        """Write a screenshot."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))


def click(page: Page, words: str) -> None:
    """Click the button with these words (of an open dialog, if there is one)."""
    buttons = "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('button')]"
    named = f"(one) => (one.ariaLabel ?? one.innerText) === {words!r}"
    page.act(f"{buttons}.find({named})", "it.click()")


def fill(page: Page, selector: str, value: str) -> None:
    page.act(
        f"document.querySelector({selector!r})",
        f"it.value = {value!r}; it.dispatchEvent(new Event('input'))",
    )


def submit(page: Page) -> None:
    """Send the form of the open dialog."""
    page.act("document.querySelector('dialog[open] form')", "it.requestSubmit()")
