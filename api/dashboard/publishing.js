/** The dialog that publishes one message. The service appends it with its own access to the log; where that fails,
 *  the dialog says what the service says.
 */

import { ask, labelled, NOTHING } from "./actions.js";
import { call, pathOf } from "./calls.js";
import { make } from "./dom.js";
import { number } from "./words.js";

/** The service takes a body of 64 KiB; escapes may double a text. */
const MOST_BYTES = 60000;

/** The headers that are typed, one a line, "name: text"; null: one is not. */
export function headersOf(text) {
  const pairs = text.split("\n").filter((line) => line.trim()).map((line) => /^\s*([^:]*[^:\s])\s*:(.*)$/.exec(line));
  return pairs.includes(null) ? null : Object.fromEntries(pairs.map(([, name, value]) => [name, value.trim()]));
}

/** An id under which a message is published once, however often the call is repeated. */
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

const area = (label, rows) => Object.assign(make("textarea", { rows, spellcheck: "false" }), { label });

/** Publishes one message; `published(partition)` is told where it is. */
export function publish({ queue }, needsKey, published) {
  const dynamic = queue.partitioning === "dynamic";
  // If an answer is lost, the same message again is published once, and a changed one is another.
  const ids = {};
  const idOf = (message) => ids[JSON.stringify(message)] ??= `page-${newId()}`;
  const partition = labelled("Partition", { type: "number", min: 0, max: queue.partition_count - 1, placeholder: "any" });
  const contentOf = ({ value, key, headers, partition: to }) => ({
    value, key: key || null, headers: headersOf(headers), partition: key || dynamic || !Number.isInteger(to) ? null : to });
  ask({
    title: `Publish to ${queue.name}`, button: "Publish", needsKey,
    fields: { key: labelled("Key", { autocomplete: "off", placeholder: "none" }), ...(dynamic ? {} : { partition }),
      headers: area("Headers (name: text), one a line", 2), value: area("Value", 6) },
    preview: (values) => {
      partition.disabled = values.key !== "";
      const content = contentOf(values), bytes = new TextEncoder().encode(values.value).length;
      if (content.headers === null) return NOTHING("!A header is a name, a colon and a text.");
      if (new TextEncoder().encode(JSON.stringify(content)).length > MOST_BYTES) return NOTHING(`!From here a message has at most ${number(MOST_BYTES)} bytes. Use a publisher.`);
      if (!partition.validity.valid) return NOTHING(`!Give a partition from 0 to ${queue.partition_count - 1}, or none.`);
      const place = values.key ? "Its key decides the partition." : content.partition === null ? "The service chooses the partition." : `It goes to partition ${content.partition}.`;
      return [`${number(bytes)} bytes. ${place}`, "Consumers process it as every other message. This cannot be undone."];
    },
    act: async (values) => {
      const message = contentOf(values);
      published((await call("POST", `${pathOf(queue.name)}/messages`, { content: { id: idOf(message), ...message } })).partition);
    },
  });
}
