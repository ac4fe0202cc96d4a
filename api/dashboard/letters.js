/** The dead letters that wait in a queue: where each comes from, and why it could not be handled. A letter waits until
 *  a consumer of this queue has passed it.
 *
 *  Whether a queue is one of dead letters, its next message says: the headers of a letter name its origin. So a page
 *  asks for one message, and for more only if that is a letter. What a letter says is its publisher's word; before the
 *  service sends it back, the log of its origin has to confirm it.
 */

import { ask, labelled, NOTHING } from "./actions.js";
import { all, call, get, pathOf } from "./calls.js";
import { make, set } from "./dom.js";
import { number, plural } from "./words.js";

const MOST_SHOWN = 10;
const BYTES = 10000;
const HEADER = "counterpoise-dead-letter-";

const said = (message, name) => message.headers?.[HEADER + name] ?? "";
const isLetter = (message) => said(message, "queue") !== "" && said(message, "position") !== "";

export class Letters {
  #asked = null;
  #none = false;

  /** `mayRead`: whether who looks may read messages. `open(partition, position)` shows one. `redrive()` sends them
   *  back; null: who looks may not. */
  constructor(mayRead, open, redrive) {
    this.mayRead = mayRead;
    this.open = open;
    this.list = make("ol", { class: "letters" });
    this.more = make("p", { class: "soft" });
    this.element = make("section", { "aria-label": "Dead letters", hidden: "" },
      make("div", { class: "bar" }, make("h3", {}, "Dead letters that wait"), redrive && make("button", { class: "small", onclick: redrive }, "Send back")), this.list, this.more);
  }

  /** Shows those of a picture of the queue; asks the service if others wait than before. */
  async show({ queue, partitions }) {
    const waiting = partitions.filter((each) => each.lag > 0);
    const which = waiting.map((each) => `${each.partition} ${each.position} ${each.end}`).join();
    if (!this.mayRead || this.#none || which === this.#asked) return;
    this.#asked = which;
    const letters = [];
    try {
      for (const { partition, position } of waiting) {
        const from = position === null ? "" : `&position=${encodeURIComponent(position)}`;
        const limit = letters.length ? MOST_SHOWN - letters.length : 1;
        const look = async (most) => (await get(`${pathOf(queue.name)}/partitions/${partition}/messages?limit=${most}&max_bytes=${BYTES}${from}`)).messages;
        let found = await look(limit);
        if (!letters.length && found.length) {
          // Of a queue of something else, the page has asked once.
          if (!isLetter(found[0])) return this.#hide(true);
          found = await look(MOST_SHOWN);
        }
        letters.push(...found.filter(isLetter).map((message) => ({ partition, message })));
        if (letters.length >= MOST_SHOWN) break;
      }
    } catch {
      // The next picture asks again.
      this.#asked = null;
      return;
    }
    if (which !== this.#asked) return;
    if (!letters.length) return this.#hide(false);
    const count = waiting.reduce((sum, each) => sum + each.lag, 0);
    this.list.replaceChildren(...letters.map((one) => this.#item(one)));
    set(this.more, "text", count > letters.length ? `The first ${number(letters.length)} of ${plural(count, "message")} that wait.` : "");
    this.element.hidden = false;
  }

  #hide(forGood) {
    this.#none = forGood;
    this.element.hidden = true;
  }

  #item({ partition, message }) {
    const queue = said(message, "queue");
    return make("li", {},
      make("p", {}, make("span", {}, "from ", make("a", { href: `#${encodeURIComponent(queue)}` }, queue), ` partition ${said(message, "partition")} at ${said(message, "position")}`),
        make("span", {}, message.key === null ? "without a key" : make("span", {}, "key ", make("b", {}, message.key))),
        Number(said(message, "attempts")) > 0 && make("span", { class: "soft" }, plural(Number(said(message, "attempts")), "attempt")),
        make("span", { class: "tools" }, make("button", { class: "small", "aria-label": `Show the letter at ${message.position} of partition ${partition}`, onclick: () => this.open(partition, message.position) }, "Show"))),
      make("p", {}, said(message, "error")));
  }
}

/** Sends the letters that wait back. One call takes some of them, so there may be several. */
export function redrive({ queue, flows, partitions }, needsKey) {
  const path = `${pathOf(queue.name)}/redrive`;
  const to = labelled("To", { options: [["", "where they come from"]] });
  const content = () => ({ to: to.value || null });
  let filled = false;
  ask({
    title: `Send the letters of ${queue.name} back`, button: "Send back", needsKey, fields: { to },
    preview: async (_, mayAsk) => {
      if (!filled) {
        to.append(...(await all("/queues", 1000)).filter(({ log }) => log !== queue.log).map(({ name }) => make("option", { value: name }, name)));
        filled = true;
      }
      if (flows.length) return NOTHING(`!${flows[0].client_name} consumes the letters and would take some of them. Stop the consumers of ${queue.name} first.`);
      if (!mayAsk) return NOTHING("Give the key to see how many would go where.");
      const { letters, more } = await call("POST", path + "?dry_run=true", { content: content() });
      const lines = Object.entries(letters).map(([name, count]) => `${plural(count, "letter")} would go to ${name}.`);
      if (!lines.length) return NOTHING("No letter waits.");
      return [...lines, ...(more ? ["These are the first. The others follow, and are confirmed then."] : []),
        "Each comes back once, behind the newer messages of its key. Mend the consumer first: what fails again becomes a letter again."];
    },
    act: async () => {
      // Those that wait now: what fails again meanwhile waits for the next time.
      for (let left = partitions.reduce((sum, each) => sum + (each.lag ?? 0), 0); left > 0;) {
        const { letters, more } = await call("POST", path, { content: content() });
        left -= Object.values(letters).reduce((sum, count) => sum + count, 0);
        if (!more) return;
      }
    },
  });
}
