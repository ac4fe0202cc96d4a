/** A message that its consumer could not handle, and that holds up its partition (the condition `quarantined`): the
 *  dialogs that let it be tried again, pass it by, or put it aside as a dead letter. All begin a new epoch of the
 *  partition, and with a new epoch a consumer begins anew at the position.
 *
 *  Where the message is, its consumer says in the text of the condition. So the dialogs show what is there. To try
 *  again and to skip set the position of the partition. A dead letter is stored by the service, as a consumer with
 *  `DeadLetter` stores it, and then it passes this message alone.
 */

import { ask, labelled, NOTHING } from "./actions.js";
import { all, call, get, pathOf } from "./calls.js";
import { make } from "./dom.js";
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
  says: ["!It is not kept. To keep it, save it, or send it to the dead letters."] });

/** The names of the queues that can take dead letters of this one, those that are named for it first. */
async function targets({ name, log }) {
  const isOwn = (one) => one.startsWith(name) && /dead|letter|dlq/i.test(one);
  const names = (await all("/queues", 1000)).filter((one) => one.log !== log && !/^builtin:.*\+/.test(one.log)).map((one) => one.name);
  return { own: names.filter(isOwn), others: names.filter((one) => !isOwn(one)) };
}

/** Puts the message aside as a dead letter, and passes it. */
export function toDeadLetters({ queue }, condition, needsKey) {
  const { partition } = condition, at = poisonOf(condition);
  const path = `${pathOf(queue.name)}/partitions/${partition}/dead-letter`;
  const to = labelled("Queue of dead letters", { options: [["", "choose a queue"]] });
  let names = null;
  ask({
    title: `Send the message at ${at} of partition ${partition} to the dead letters`, button: "To dead letters", needsKey, fields: { to },
    preview: async (_, mayAsk) => {
      if (names === null) {
        const { own, others } = await targets(queue);
        names = [...own, ...others];
        to.append(...names.map((name) => make("option", { value: name }, name)));
        if (own.length === 1) to.value = own[0];
      }
      if (!names.length) return NOTHING("!No other queue is there. Create one for the dead letters first.");
      if (!to.value) return NOTHING("Choose the queue that takes it.");
      if (!mayAsk) return NOTHING("Give the key to see what would be stored.");
      const would = await call("POST", path + "?dry_run=true", { content: { position: at, to: to.value } });
      const said = (name) => would.headers[`counterpoise-dead-letter-${name}`];
      const alone = would.next_position === null || Number(would.next_position) <= Number(at);
      return [`It has ${would.key === null ? "no key" : `the key ${would.key}`} and ${plural(would.size_bytes, "byte")}. ${to.value} gets it whole and once, with its origin.`,
        said("attempts") === "0" ? "No consumer has reported how it failed." : `It failed after ${plural(Number(said("attempts")), "attempt")}: ${said("error")}`,
        alone ? "It is passed alone, and its owner continues under a new epoch. Messages before it are not processed yet."
          : `Its owner continues at ${would.next_position} under a new epoch.`];
    },
    act: () => call("POST", path, { content: { position: at, to: to.value } }),
  });
}
