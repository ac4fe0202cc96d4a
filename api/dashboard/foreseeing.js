/** What a call would do, in the lines of a preview (`ask`): the service plays the call and changes nothing. */

import { call } from "./calls.js";
import { isolated, number, plural, ranges } from "./words.js";

/** Consumers that are named one by one. */
const MOST_NAMED = 8;

const which = (numbers) => `${numbers.length === 1 ? "Partition" : "Partitions"} ${ranges(numbers)}`;

/** What is lost or cut short, as warnings. */
function losses(would) {
  const lines = [];
  if (would.lost_messages === null) lines.push("!The log does not say how many messages are not processed, and would be lost.");
  else if (would.lost_messages) lines.push(`!At most ${plural(would.lost_messages, "message")} are not processed, and would be lost.`);
  else if (would.deletes_log) lines.push("All messages are processed.");
  if (would.interrupted.length) lines.push(`!${which(would.interrupted)}: taken without being released, so what is in progress is processed again.`);
  if (would.staying.length) lines.push(`!${which(would.staying)}: nobody else may take over. The consumer keeps them until it leaves.`);
  if (would.unassigned.length) lines.push(`!${which(would.unassigned)}: without an owner.`);
  for (const [kind, count] of Object.entries(would.conditions)) lines.push(`!The condition ${kind.replaceAll("_", " ")} (${number(count)}) would hold.`);
  return lines;
}

/** Which partitions begin, end and move. */
function changes(would) {
  const lines = [];
  if (would.added.length) lines.push(`${plural(would.added.length, "new partition")}: ${ranges(would.added)}.`);
  if (would.retiring.length) lines.push(`${which(would.retiring)} retire: read to the end, then removed. No message is lost.`);
  if (would.removed.length) lines.push(`${which(would.removed)}: removed at once.`);
  const moved = would.moves.filter((each) => each.from !== null && each.to !== null);
  const anyway = moved.filter((each) => each.anyway).length;
  lines.push(moved.length ? `${plural(moved.length, "partition")} would go to another consumer${anyway ? `, ${number(anyway)} of them in any case` : ""}.`
    : "Of those that are owned, no partition moves.");
  const others = would.flows.filter((flow) => flow.before !== flow.after);
  lines.push(...others.slice(0, MOST_NAMED).map((flow) => `${isolated(flow.client_name)}: ${number(flow.before)} → ${flow.after === null ? "ends" : number(flow.after)}`));
  if (others.length > MOST_NAMED) lines.push(`And ${plural(others.length - MOST_NAMED, "more consumer")}.`);
  if (would.paused.length) lines.push(`${which(would.paused)}: paused.`);
  if (would.resumed.length) lines.push(`${which(would.resumed)}: resumed.`);
  if (would.pinned.length) lines.push(`${which(would.pinned)}: pinned.`);
  if (would.unpinned.length) lines.push(`${which(would.unpinned)}: unpinned.`);
  if (would.followers.length) lines.push(`Resized as well: ${would.followers.join(", ")}.`);
  return lines;
}

/** The lines of a preview that the service makes of this call, after those of `said`. `mayAsk`: who looks may make it by
 *  now. `always`: there is something to do whatever comes of it. */
export async function wouldDo(method, path, { content, mayAsk, said = [], always = false }) {
  if (!mayAsk) return Object.assign([...said, "Give the key to see what would move or be lost."], { nothing: true });
  const would = await call(method, `${path}${path.includes("?") ? "&" : "?"}dry_run=true`, { content });
  const nothing = !always && !would.settings.length && !would.deletes_log && would.moves.every((each) => each.anyway)
    && ["added", "retiring", "removed", "paused", "resumed", "pinned", "unpinned"].every((name) => !would[name].length);
  return Object.assign([...said, ...changes(would), ...losses(would)], { nothing });
}
