/** Pauses: what is held still, in words, and the dialogs that pause and resume a queue or a partition. */

import { ask, labelled, NOTHING } from "./actions.js";
import { call, pathOf } from "./calls.js";
import { clock } from "./words.js";

const MOST_REASON = 200;
const SPANS = [["", "until it is resumed"], ["600", "10 minutes"], ["3600", "1 hour"], ["14400", "4 hours"], ["86400", "1 day"]];

/** Until when and why, in words; empty without a pause. */
export function paused(pause) {
  if (!pause) return "";
  const until = pause.until === null ? "until it is resumed" : `until ${clock(pause.until)}`;
  return pause.reason === null ? until : `${until}: ${pause.reason}`;
}

/** Asks for how long and why, and pauses what this path names. */
function pause(path, title, what, now, needsKey) {
  ask({
    title, button: "Pause", needsKey,
    fields: {
      seconds: labelled("For", { options: SPANS }),
      reason: labelled("Reason", { maxlength: MOST_REASON, autocomplete: "off" }),
    },
    preview: () => [
      ...(now ? [`It is paused already, ${paused(now)}. The new end and reason replace these.`] : []),
      `${what} finish what they have begun, commit it, and read nothing more. They keep their partitions.`,
      "The lag grows meanwhile. Autoscalers and alerts do not count it."],
    act: ({ seconds, reason }) => call("POST", `${path}/pause`, {
      content: { ...(seconds ? { seconds: Number(seconds) } : {}), ...(reason.trim() ? { reason: reason.trim() } : {}) },
    }),
  });
}

/** Pauses a queue. */
export const pauseQueue = ({ queue }, needsKey) =>
  pause(pathOf(queue.name), `Pause ${queue.name}`, "The owners of all partitions", queue.paused, needsKey);

/** Pauses one partition. */
export const pausePartition = ({ queue }, each, needsKey) =>
  pause(`${pathOf(queue.name)}/partitions/${each.partition}`, `Pause partition ${each.partition}`,
    "Its owner, and those that follow,", queue.paused ? null : each.paused, needsKey);

/** Ends the pause of a queue. */
export function resumeQueue({ queue, partitions }, needsKey) {
  ask({
    title: `Resume ${queue.name}`, button: "Resume", needsKey,
    preview: () => queue.paused === null ? NOTHING("The queue is not paused.")
      : [`It is paused ${paused(queue.paused)}.`, `The owners of ${partitions.length === 1 ? "its partition" : "its partitions"} go on at the committed positions.`,
        "Partitions that were paused by themselves stay paused."],
    act: () => call("POST", `${pathOf(queue.name)}/resume`),
  });
}

/** Ends the pause of one partition. */
export function resumePartition({ queue }, each, needsKey) {
  ask({
    title: `Resume partition ${each.partition}`, button: "Resume", needsKey,
    preview: () => queue.paused ? ["!The whole queue is paused: the partition stays paused with it."]
      : [`It is paused ${paused(each.paused)}.`, "Its owner goes on at the committed position."],
    act: () => call("POST", `${pathOf(queue.name)}/partitions/${each.partition}/resume`),
  });
}
