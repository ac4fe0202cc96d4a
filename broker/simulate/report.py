"""What came out of a play, in numbers and in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from broker.simulate.play import ConsumerModel, Phase, Played


def document(played: Played, consumers: ConsumerModel) -> dict[str, Any]:
    """For programs; times in seconds."""
    return {
        "partitions": played.settings.partition_count,
        "rebalance_delay": played.settings.rebalance_delay,
        "max_handoff_time": played.settings.max_handoff_time,
        "max_concurrent_handoffs": played.settings.max_concurrent_handoffs,
        "finish_seconds": consumers.finish_seconds,
        "seed": consumers.seed,
        "seconds": round(played.seconds, 3),
        "steps": [_phase(phase) for phase in played.phases],
        "advice": list(advice(played, consumers)),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    pauses = sorted(phase.pauses)
    return {
        "at": phase.step.at,
        "do": phase.step.do,
        "count": phase.step.count,
        "over": phase.step.over,
        "balanced_after": _rounded(phase.balanced_after),
        "handoffs": phase.handoffs,
        "forced": phase.forced,
        "granted": phase.granted,
        "pause_median": _rounded(share_of(pauses, 0.5)),
        "pause_p99": _rounded(share_of(pauses, 0.99)),
        "pause_longest": _rounded(pauses[-1] if pauses else None),
    }


def share_of(ordered: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values is; None of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def table(played: Played) -> str:
    """The steps as lines of a table."""
    rows = [
        ("AT", "STEP", "BALANCED AFTER", "HANDOFFS", "FORCED", "GRANTED", "PAUSE 50 %", "LONGEST")
    ]
    for phase in played.phases:
        pauses = sorted(phase.pauses)
        rows.append(
            (
                f"{phase.step.at:.0f} s",
                phase.step.label,
                _seconds(phase.balanced_after, "not yet"),
                f"{phase.handoffs:,}",
                f"{phase.forced:,}",
                f"{phase.granted:,}",
                _seconds(share_of(pauses, 0.5)),
                _seconds(pauses[-1] if pauses else None),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place == 1 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _seconds(value: float | None, otherwise: str = "-") -> str:
    return otherwise if value is None else f"{value:.1f} s"


def advice(played: Played, consumers: ConsumerModel) -> Iterator[str]:
    """What to change, if anything: sentences."""
    settings = played.settings
    handoffs = sum(phase.handoffs for phase in played.phases)
    forced = sum(phase.forced for phase in played.phases)
    slowest = consumers.finish_seconds * 1.5
    if forced and slowest <= settings.max_handoff_time:
        yield f"{forced:,} of {handoffs:,} handoffs are forced: their owners had crashed."
    elif forced:
        yield (
            f"{forced:,} of {handoffs:,} handoffs are forced: consumers take up to {slowest:g} s, "
            f"and max_handoff_time is {settings.max_handoff_time:g} s. With {slowest:g} s or more "
            "none is."
        )
    away = _longest_absence(played)
    if away is not None and away >= settings.rebalance_delay:
        yield (
            f"Consumers that leave come back after {away:g} s, and the rebalance_delay is "
            f"{settings.rebalance_delay:g} s: their partitions go to others, and back again. With "
            f"more than {away:g} s only what they left is granted again."
        )
    if not handoffs and not forced:
        yield "No partition is taken from a consumer that works."


def _longest_absence(played: Played) -> float | None:
    """How long consumers that stop are away until as many are bound again."""
    longest = None
    steps = [phase.step for phase in played.phases]
    for stop, start in itertools.pairwise(steps):
        if stop.do == "unbind" and start.do == "bind" and start.count >= stop.count:
            away = start.at + start.over - stop.at
            longest = away if longest is None else max(longest, away)
    return longest
