"""No process of tests may need more than 2 GB: a machine of 8 GB runs four, with their servers."""

from __future__ import annotations

import resource

import pytest

MOST_GB = 2.0
_peaks = pytest.StashKey[dict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_peaks] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the peak of this process: a worker's to its controller."""
    config = session.config
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    if hasattr(config, "workeroutput"):
        config.workeroutput["peak_gb"] = peak
        return
    config.stash[_peaks]["this process"] = peak
    if max(config.stash[_peaks].values()) > MOST_GB:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    worker = getattr(node, "workeroutput", {})
    if "peak_gb" in worker:
        gateway, config = node.gateway, node.config  # type: ignore[attr-defined]
        config.stash[_peaks][gateway.id] = worker["peak_gb"]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name, peak in config.stash[_peaks].items():
        terminalreporter.write_line(
            f"memory of {name}: {peak:.2f} GB{' IS TOO MUCH' if peak > MOST_GB else ''}"
        )
