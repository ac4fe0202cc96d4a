"""`--dry-run` of the commands that administrate: what the call would do, in sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import click

from counterpoise.cli.output import (
    counted,
    duration,
    of_partitions,
    print_json,
    seconds_until,
    setting_text,
    tell,
)
from counterpoise.wire import Preview

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing; show what would move, pause or be lost."
)


def show_previews(previews: Sequence[Preview], as_json: bool) -> None:
    """Prints the previews; as JSON one document, or a list of several."""
    if as_json:
        documents = [one.raw for one in previews]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    for preview in previews:
        for line in preview_lines(preview):
            tell(f"{preview.queue}: {line}")


def preview_lines(preview: Preview) -> Iterator[str]:
    """What the call would do, what weighs most first."""
    if preview.lost_messages is None:
        yield "an unknown number of messages that are not processed would be lost"
    elif preview.lost_messages:
        count = counted(preview.lost_messages, "message")
        yield f"at most {count} not processed would be lost"
    if preview.deletes_log:
        yield "its log would be deleted"
    for numbers, told in (
        (preview.removed, "would be removed at once"),
        (
            preview.interrupted,
            "would be taken unreleased; what is in progress comes again",
        ),
        (preview.retiring, "would be read to the end, then removed"),
        (preview.added, "would begin"),
        (preview.unassigned, "would have no owner"),
        (preview.staying, "would stay with a consumer that drains; nobody may take over"),
        (preview.paused, "would be paused"),
        (preview.resumed, "would be resumed"),
        (preview.pinned, "would be pinned"),
        (preview.unpinned, "would be unpinned"),
    ):
        if numbers:
            yield f"{of_partitions(numbers)} {told}"
    yield from _moves(preview)
    for one in preview.settings:
        change = f"{setting_text(one.before)} → {setting_text(one.after)}"
        yield f"{one.name.replace('_', ' ')}: {change}"
    for kind, number in sorted(preview.conditions.items()):
        yield f"condition {kind.replace('_', ' ')}: {number:,}"
    if preview.followers:
        yield f"resized as well: {', '.join(preview.followers)}"
    if not preview.changes:
        yield "nothing would change"


def _moves(preview: Preview) -> Iterator[str]:
    """The partitions that move, by where they come from and go to, and when that begins."""
    names, moving = _names(preview), defaultdict[tuple[str, str, bool], list[int]](list)
    for one in preview.moves:
        if one.to_flow is None:
            continue
        before, after = (names.get(flow or "", "nobody") for flow in (one.from_flow, one.to_flow))
        moving[before, after, one.anyway].append(one.partition)
    for (before, after, anyway), numbers in moving.items():
        verb = "would go" if not anyway else "goes anyway" if len(numbers) == 1 else "go anyway"
        yield f"{of_partitions(numbers)} {verb} from {before} to {after}"
    wait = seconds_until(preview.holddown_until)
    if preview.moves and wait is not None:
        yield f"the rebalance would begin in {duration(max(0.0, wait))}"
    for flow in preview.flows:
        if flow.after is None:
            yield f"{names[flow.flow_id]} would end"


def _names(preview: Preview) -> dict[str, str]:
    """What the flows are called: with the begin of their ids where a name is that of several."""
    times = Counter(flow.client_name for flow in preview.flows)
    return {
        flow.flow_id: flow.client_name
        if times[flow.client_name] == 1
        else f"{flow.client_name} ({flow.flow_id[:8]})"
        for flow in preview.flows
    }
