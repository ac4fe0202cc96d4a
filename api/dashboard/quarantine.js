/** A message that its consumer could not handle, and that holds up its partition (the condition `quarantined`): the
 *  dialogs that let it be tried again, or pass it by. Both set the position of the partition. That begins a new
 *  epoch, and with a new epoch a consumer begins anew at the position.
 *
 *  Where the message is, its consumer says in the text of the condition. So both dialogs show what is there. The
 *  service appends to no log: a dead letter is stored by a consumer (`DeadLetter`), not from here.
 */

import { ask, NOTHING } from "./actions.js";
import { call, get, pathOf } from "./calls.js";
import { foreseen } from "./shaping.js";
import { plural } from "./words.js";

/** The position of the message that a condition is about; null: it is not about one. */
export const poisonOf = ({ kind, partition, text }) =>
  kind === "quarantined" && partition !== null ? /^at (\d{1,19})\b/.exec(text)?.[1] ?? null : null;

/** Sets the partition to the position that `to` picks from the log's answer. */
function pass({ queue }, condition, needsKey, { title, button, says, to }) {
  const { partition } = condition, at = poisonOf(condition), path = pathOf(queue.name);
  let wanted = null;
  ask({
    title: `${title} the message at ${at} of partition ${partition}`, button, needsKey,
    preview: async (_, mayAsk) => {
      const { messages: [message], following } = await get(`${path}/partitions/${partition}/messages?limit=1&max_bytes=200&position=${at}`);
      if (message?.position !== at) return NOTHING("!The log has no message there any more. Set the position of the partition instead.");
      wanted = to(message, following);
      const lines = [`It has ${message.key === null ? "no key" : `the key ${message.key}`} and ${plural(message.size_bytes, "byte")}.`, ...says];
      if (!mayAsk) return NOTHING(...lines, "Give the key to see what would be read again or skipped.");
      return [...lines, ...await foreseen(queue, partition, wanted)];
    },
    act: () => call("POST", `${path}/positions`, { content: { positions: { [partition]: wanted } } }),
  });
}

/** Lets the owner of the partition try the message again. */
export const tryAgain = (picture, condition, needsKey) => pass(picture, condition, needsKey, {
  title: "Try again", button: "Try again", to: ({ position }) => position, says: ["The partition begins with it. Mend its consumer first, if the fault is there."] });

/** Passes the message by. */
export const skip = (picture, condition, needsKey) => pass(picture, condition, needsKey, {
  title: "Skip", button: "Skip", to: (_, following) => following,
  says: ["The partition begins behind it. Save the message first, if it is to be kept: consumers with a queue of dead letters keep it by themselves."] });
