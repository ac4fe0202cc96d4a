/** Messages of the chosen partition: those in its log, from a position on. Nothing is bound or
 *  committed, so consumers do not notice. Messages that all queues have processed may be gone.
 *
 *  A value is shown as its publisher meant it, as far as that shows: JSON with its structure, other
 *  text as it is, all else in base64. It is set as text and never run.
 */

import { get } from "./calls.js";
import { make, set } from "./dom.js";
import { number, plural } from "./words.js";

const PAGE = 20;
const MOST_BYTES = 2000;
const DECIMAL = /^\d{1,15}$/;

export class Messages {
  #path = null;
  #partition = null;
  #asked = 0;

  /** `mayRead`: whether who looks may read messages; consumers and administrators may. */
  constructor(mayRead) {
    const button = (title, at) => make("button", { type: "button", class: "small", onclick: () => this.#look(at) }, title);
    this.position = make("input", { id: "look-at", inputmode: "numeric", autocomplete: "off", size: 12 });
    // The end that the page knows is some seconds old.
    this.newest = button("Newest", async () => String(Math.max(0, Number((await this.#ask(this.#partition.end, 1)).end) - PAGE)));
    this.later = button("Later", () => this.following);
    this.said = make("p", { class: "soft", role: "status" });
    this.list = make("ol", { class: "messages" });
    this.element = make("section", { "aria-label": "Messages" }, make("h4", {}, "Messages"), mayRead
      ? make("form", { class: "actions", onsubmit: (event) => { event.preventDefault(); this.#look(() => this.position.value.trim()); } },
        button("Next to be read", () => this.#partition.position), button("Oldest", () => null), this.newest,
        make("span", { class: "field" }, make("label", { for: "look-at" }, "From position"), this.position, make("button", { class: "small" }, "Show")))
      : make("p", { class: "soft" }, "A key of a consumer or an administrator shows them."),
    this.said, this.list, make("div", { class: "actions" }, this.later));
    this.#clear("");
  }

  /** The partition as it is now; with another one the messages go. */
  of(path, partition) {
    if (this.#path !== path || this.#partition?.partition !== partition.partition) this.#clear("");
    this.#path = path;
    this.#partition = partition;
    this.newest.hidden = !DECIMAL.test(partition.end ?? "");
  }

  #clear(words) {
    this.#asked += 1;
    this.later.hidden = true;
    this.list.replaceChildren();
    set(this.said, "text", words);
  }

  /** The service's answer: messages from a position on; null or "": from the first in the log. */
  #ask(position, limit = PAGE) {
    const from = position ? `&position=${encodeURIComponent(position)}` : "";
    return get(`${this.#path}/partitions/${this.#partition.partition}/messages?limit=${limit}&max_bytes=${MOST_BYTES}${from}`);
  }

  /** Shows messages from the position on that `at` answers. */
  async #look(at) {
    this.#clear("Loading…");
    const mine = this.#asked;
    try {
      const answer = await this.#ask(await at());
      if (mine === this.#asked) this.#show(answer);
    } catch (error) {
      if (mine === this.#asked) set(this.said, "text", error.code ? error.message : "The service does not answer.");
    }
  }

  #show({ start, end, messages, following }) {
    this.following = following;
    this.later.hidden = following === end || !messages.length;
    const held = start === end ? "The log holds none of this partition." : `The log holds positions ${start} up to ${end}.`;
    set(this.said, "text", messages.length ? `${plural(messages.length, "message")} from position ${messages[0].position} on. ${held}`
      : `No message from there on. ${held}`);
    this.list.replaceChildren(...messages.map(item));
  }
}

function item(message) {
  const { value, kind, cut } = readable(message);
  const headers = Object.entries(message.headers ?? {}).map(([name, text]) => make("span", {}, make("b", {}, name), ` ${text}`));
  return make("li", {},
    make("p", {}, make("b", {}, message.position), make("time", { datetime: message.published_at }, when(message.published_at)),
      make("span", {}, message.key === null ? "without a key" : make("span", {}, "key ", make("b", {}, message.key))),
      make("span", { class: "soft" }, [kind, plural(message.size_bytes, "byte")].filter(Boolean).join(", "))),
    headers.length ? make("p", { class: "headers" }, headers) : null,
    message.headers === null ? make("p", { class: "soft" }, "Its headers are too long to be shown.") : null,
    message.size_bytes ? make("pre", { tabindex: "0", role: "group", "aria-label": `value at ${message.position}` }, value) : null,
    cut ? make("p", { class: "soft" }, `cut after ${number(MOST_BYTES)} bytes`) : null);
}

const when = (text) => text === null ? "no time" : new Date(text).toLocaleString();

/** The value as text, what it is, and whether it is cut. */
function readable({ value, value_base64: binary, size_bytes: size }) {
  const cut = size > MOST_BYTES;
  if (binary !== undefined) return { value: binary, kind: "binary, in base64", cut };
  if (/^\s*[[{]/.test(value) && !cut) {
    try {
      const read = JSON.parse(value);
      // Numbers beyond those of JavaScript and names that come twice would be changed: then as it is.
      const same = JSON.stringify(read) === value.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1");
      return { value: same ? JSON.stringify(read, null, 2) : value, kind: "JSON", cut };
    } catch {
      // It only begins like JSON.
    }
  }
  return { value, kind: "", cut };
}
