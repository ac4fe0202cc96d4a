/** Pins: to which consumer a partition belongs, in words, and the dialogs that pin and unpin one. */

import { ask, labelled, NOTHING } from "./actions.js";
import { call, pathOf } from "./calls.js";
import { wouldDo } from "./foreseeing.js";

const MOST_REASON = 200;
const MOST_NAME = 200;

/** To whom and why, in words; empty without a pin. */
export function pinned(pin) {
  if (!pin) return "";
  const name = pin.flow_id === null ? `to ${pin.client_name}, without effect` : `to ${pin.client_name}`;
  return pin.reason === null ? name : `${name}: ${pin.reason}`;
}

/** Asks for the consumer and why, and pins the partition. */
export function pinPartition({ queue }, each, needsKey) {
  const path = `${pathOf(queue.name)}/partitions/${each.partition}/pin`;
  const content = ({ name, reason }) => ({ client_name: name.trim(), ...(reason.trim() ? { reason: reason.trim() } : {}) });
  ask({
    title: `Pin partition ${each.partition}`, button: "Pin", needsKey,
    fields: {
      name: labelled("Consumer", { maxlength: MOST_NAME, required: "", autocomplete: "off" }),
      reason: labelled("Reason", { maxlength: MOST_REASON, autocomplete: "off" }),
    },
    preview: (given, mayAsk) => {
      if (!given.name.trim()) return NOTHING("Give the name with which the consumer binds.");
      const said = [...(each.pinned ? [`It is pinned already, ${pinned(each.pinned)}. The new name and reason replace these.`] : []),
        "It moves to the consumer of this name after the holddown, and whenever that binds. Until then it is balanced as usual."];
      return wouldDo("POST", path, { content: content(given), mayAsk, said, always: true });
    },
    act: (given) => call("POST", path, { content: content(given) }),
  });
}

/** Ends the pin of one partition. */
export function unpinPartition({ queue }, each, needsKey) {
  const path = `${pathOf(queue.name)}/partitions/${each.partition}/unpin`;
  const said = [`It is pinned ${pinned(each.pinned)}.`, "It is balanced like others then."];
  ask({
    title: `Unpin partition ${each.partition}`, button: "Unpin", needsKey,
    preview: (_, mayAsk) => wouldDo("POST", path, { mayAsk, said }),
    act: () => call("POST", path),
  });
}
