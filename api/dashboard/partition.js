/** The chosen partition in full: its owner, its position, and how it came there. */

import { secondsUntil } from "./calls.js";
import { fact, make } from "./dom.js";
import { paused } from "./pausing.js";
import { pinned } from "./pinning.js";
import { outcome } from "./timeline.js";
import { clock, duration, number, state } from "./words.js";

const MOST_MOVES = 10;

/** What a partition waits for, in words; empty if for nothing. */
export function waits(each) {
  if (each.waits_for?.length) return `at ${each.cut} for partition ${each.waits_for.join(", ")}`;
  return each.state === "waiting" ? `for ${each.parents.join(", ")}` : "";
}

/** The elements that show one partition of a picture of its queue (`queue.js`). */
export function inFull(each, { nameOf, measured, troubleOf, history }) {
  const commit = measured.lastCommit(each.partition);
  const committed = each.position === null ? "none yet" : commit === null ? "before this page was opened" : `${duration((Date.now() - commit) / 1000)} ago`;
  const marks = waits(each), trouble = troubleOf(each);
  return [make("h3", {}, `Partition ${each.partition}`), make("dl", {},
    ...(each.key ? [fact("key", each.key)] : []),
    fact("state", state(each.state)), fact("owner", nameOf(each.owner)),
    ...(each.successor ? [fact("next owner", nameOf(each.successor))] : []),
    ...(each.deadline ? [fact("deadline in", duration(secondsUntil(each.deadline)))] : []),
    fact("epoch", number(each.epoch)), fact("position", each.position ?? "none yet"),
    fact("end", each.end ?? "not known"), fact("lag", number(each.lag)),
    ...(Number.isFinite(each.lag_seconds) ? [fact("next message", `${duration(each.lag_seconds)} old`)] : []),
    fact("last commit", committed),
    ...(each.paused ? [fact("paused", paused(each.paused))] : []),
    ...(each.pinned ? [fact("pinned", pinned(each.pinned))] : []),
    ...(marks ? [fact("waits", marks)] : []), ...(trouble ? [fact("reported", trouble)] : [])),
  ...past(each.partition, history)];
}

/** The moves of a partition among the rebalances of the timeline, newest first. */
function past(partition, history) {
  const moves = history.flatMap((entry) => entry.moves.filter((move) => move.partition === partition)
    .map((move) => ({ entry, move })));
  if (!moves.length) return [make("p", { class: "soft" }, "It did not move in the rebalances of the timeline.")];
  return [make("ol", { class: "moves" }, moves.slice(0, MOST_MOVES).map(({ entry, move }) => make("li", {},
    make("time", { datetime: entry.started_at }, clock(entry.started_at)),
    ` ${outcome(entry, move)}, paused ${duration(move.seconds)}`)))];
}
