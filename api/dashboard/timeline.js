/** What happened to a queue: one line for each rebalance, newest first.
 *  Moves come in pages of bounded size, so of a large queue only the newest entries have theirs. */

import { keyed, make, set } from "./dom.js";
import { clock, duration, isolated, plural, ranges, trigger } from "./words.js";

export class Timeline {
  constructor() {
    this.list = make("ol", { class: "timeline" });
    this.none = make("p", { class: "soft" }, "Loading…");
    this.element = make("section", { "aria-label": "Timeline" }, make("h3", {}, "Timeline"), this.list, this.none);
  }

  /** Shows entries of the history. */
  show(entries) {
    set(this.none, "text", entries.length ? "" : "Nothing yet.");
    const create = () => make("li", {}, make("time"), make("span"), make("details", {}, make("summary"), make("ul")));
    keyed(this.list, entries, (entry) => entry.id, create, (item, entry) => {
      const [time, said, details] = item.children;
      set(time, "text", clock(entry.started_at));
      set(time, "datetime", entry.started_at);
      set(said, "text", sentence(entry));
      set(item, "class", entry.forced ? "forced" : entry.finished_at ? "" : "running");
      details.hidden = entry.moves.length === 0;
      set(details.firstChild, "text", moved(entry));
      const groups = Object.entries(grouped(entry.moves));
      keyed(details.lastChild, groups, ([name]) => name, () => make("li"), (line, [, moves]) => {
        set(line, "text", `${ranges(moves.map((move) => move.partition).sort((a, b) => a - b))}: ${outcome(entry, moves[0])}`);
      });
    });
  }
}

/** The entries, those that came with moves in their place. */
export function withMoves(entries, moved) {
  const byId = new Map(moved.map((entry) => [entry.id, entry]));
  return entries.map((entry) => byId.get(entry.id) ?? entry);
}

const REASONS = { not_released: ": not released by its deadline", positions_set: ": an administrator set the position" };

/** From whom to whom a move of an entry went, and how. */
export function outcome({ clients }, { from, to, outcome, reason }) {
  const nameOf = (flow) => flow === null ? "nobody" : isolated(clients[flow] ?? `flow ${flow.slice(0, 8)}`);
  return `${nameOf(from)} → ${nameOf(to)} (${outcome}${REASONS[reason] ?? ""})`;
}

const key = (move) => `${move.from} ${move.to} ${move.outcome} ${move.reason}`;

function grouped(moves) {
  const groups = {};
  for (const move of moves) (groups[key(move)] ??= []).push(move);
  return groups;
}

function sentence(entry) {
  const parts = [];
  if (entry.handoffs) parts.push(plural(entry.handoffs, "handoff"));
  if (entry.granted) parts.push(`${plural(entry.granted, "partition")} granted`);
  if (entry.forced) parts.push(`${entry.forced} forced at the deadline`);
  if (!parts.length && entry.finished_at) parts.push("nothing had to move");
  parts.push(entry.finished_at
    ? `in ${duration((Date.parse(entry.finished_at) - Date.parse(entry.started_at)) / 1000)}` : "still running");
  return `${entry.why || trigger(entry.trigger)}: ${parts.join(", ")}`;
}

function moved({ moves, more_moves }) {
  const seconds = moves.map((move) => move.seconds).sort((a, b) => a - b);
  const longest = seconds.length ? `; paused ${duration(seconds[Math.floor(seconds.length / 2)])} (median), ${duration(seconds.at(-1))} at most` : "";
  return plural(moves.length, "partition") + longest + (more_moves ? `; ${more_moves} more` : "");
}
