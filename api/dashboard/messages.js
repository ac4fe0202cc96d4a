/** Messages of the chosen partition: those in its log, from a position or a time on, perhaps only those that match
 *  (`finding.js`). Nothing is bound or committed, so consumers do not notice. Messages that all queues have processed
 *  may be gone.
 *
 *  A list has PAGE messages. With a filter it has what matches among SCAN messages; then "Later" goes on. One that
 *  follows asks for new messages every FOLLOW_SECONDS while it is seen, and leaves out what it has no room for. Of each value the list has LISTED_BYTES, and
 *  the filter sees no more of it; what needs the whole value asks for this message alone.
 */

import { get } from "./calls.js";
import { make, set } from "./dom.js";
import { filterOf, firstSince } from "./finding.js";
import { bytesOf, fileName, hex, isLong, lacking, readable } from "./values.js";
import { number, plural } from "./words.js";

const PAGE = 20;
const BATCH = 100;
const SCAN = 5000;
const FOLLOW_SECONDS = 2;
const MOST_FOLLOWED = 100;
const LISTED_BYTES = 10000;
/** The most that the service gives of one value. */
const WHOLE_BYTES = 1000000;
const DECIMAL = /^\d{1,15}$/;
const WHAT = "words, key:NAME, header:NAME=TEXT";

export class Messages {
  #path = null;
  #partition = null;
  #asked = 0;

  /** `mayRead`: whether who looks may read messages; consumers and administrators may. */
  constructor(mayRead) {
    const button = (title, at) => make("button", { type: "button", class: "small", onclick: () => this.#look(at) }, title);
    const field = (id, label, input) => make("span", { class: "field" }, make("label", { for: id }, label), input);
    this.position = make("input", { id: "look-at", inputmode: "numeric", autocomplete: "off", size: 12, oninput: () => { this.time.value = ""; } });
    this.time = make("input", { id: "look-since", type: "datetime-local", step: 1, oninput: () => { this.position.value = ""; } });
    this.words = make("input", { id: "look-for", type: "search", autocomplete: "off", spellcheck: "false", placeholder: WHAT });
    this.newest = make("button", { type: "button", class: "small", onclick: () => this.showNewest() }, "Newest");
    this.follow = make("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.#follow() }, "Follow");
    this.later = button("Later", () => this.following);
    this.said = make("p", { class: "soft", role: "status" });
    this.list = make("ol", { class: "messages" });
    this.element = make("section", { "aria-label": "Messages" }, make("h4", {}, "Messages"), mayRead
      ? make("form", { class: "actions", onsubmit: (event) => { event.preventDefault(); this.#look(() => this.#from()); } },
        button("Next to be read", () => this.#partition.position), button("Oldest", () => null), this.newest, this.follow,
        field("look-at", "From position", this.position), this.since = field("look-since", "or time", this.time),
        field("look-for", "Only", this.words), make("button", { class: "small" }, "Show"))
      : make("p", { class: "soft" }, "A key of a consumer or an administrator shows them."),
    this.said, this.list, make("div", { class: "actions" }, this.later));
    this.#clear("");
  }

  /** The partition as it is now; with another one the messages go. */
  of(path, partition) {
    if (this.#path !== path || this.#partition?.partition !== partition.partition) this.#clear("");
    this.#path = path;
    this.#partition = partition;
    // Of other logs positions are no numbers.
    if (this.since) this.newest.hidden = this.follow.hidden = this.since.hidden = !DECIMAL.test(partition.end ?? "");
  }

  /** Shows the last messages, if who looks may read them. */
  showNewest() {
    // The end that the page knows is some seconds old.
    if (this.since) return this.#look(async () => this.#back((await this.#ask(this.#partition.end, 1)).end), true);
  }

  /** Shows the message at this position, as if it had been typed. */
  at(position) {
    this.words.value = this.time.value = "";
    this.position.value = position;
    return this.#look(() => position);
  }

  #clear(words) {
    this.#asked += 1;
    this.later.hidden = true;
    set(this.follow, "aria-pressed", "false");
    this.list.replaceChildren();
    set(this.said, "text", words);
  }

  /** The service's answer: messages from a position on; null or "": from the first in the log. */
  #ask(position, limit = PAGE, bytes = LISTED_BYTES) {
    const from = position ? `&position=${encodeURIComponent(position)}` : "";
    return get(`${this.#path}/partitions/${this.#partition.partition}/messages?limit=${limit}&max_bytes=${bytes}${from}`);
  }

  /** Where the newest messages begin before this end; with a filter, where a look for them does. */
  #back(end) {
    return String(Math.max(0, Number(end) - (filterOf(this.words.value) ? SCAN : PAGE)));
  }

  /** The position that is typed, or that of the time. */
  #from() {
    if (!this.time.value) return this.position.value.trim();
    return firstSince(new Date(this.time.value).getTime(), async (position) => {
      const { start, end, messages } = await this.#ask(position, 1, 0);
      return { start, end, message: messages[0] ?? null };
    });
  }

  /** What matches from a position on: the answer of the service, with `looked`, the number of messages that were
   *  looked at. `goOn` says before each call whether it is still wanted. */
  async #find(position, goOn, most = PAGE) {
    const matches = filterOf(this.words.value);
    if (!matches) {
      const answer = await this.#ask(position);
      return { ...answer, looked: answer.messages.length };
    }
    const found = [];
    for (let looked = 0, at = position; ;) {
      const answer = await this.#ask(at, BATCH);
      found.push(...answer.messages.filter(matches));
      looked += answer.messages.length;
      at = answer.following;
      const all = !answer.messages.length || at === answer.end;
      if (all || found.length >= most || looked >= SCAN || !goOn()) return { ...answer, messages: found, looked };
      set(this.said, "text", `Looked at ${plural(looked, "message")}…`);
    }
  }

  /** Shows messages from the position on that `at` answers; with `newest`, the last of them. */
  async #look(at, newest = false) {
    this.#clear("Loading…");
    const mine = this.#asked, goOn = () => mine === this.#asked;
    try {
      const found = await this.#find(await at(), goOn, newest ? Infinity : PAGE);
      if (goOn()) this.#show(newest ? { ...found, messages: found.messages.slice(-PAGE) } : found);
    } catch (error) {
      if (goOn()) this.#fail(error);
    }
  }

  #fail(error) {
    set(this.said, "text", error.code ? error.message : "The service does not answer.");
  }

  #show({ start, end, messages, following, looked }) {
    this.following = following;
    this.later.hidden = following === end || !looked;
    const held = start === end ? "The log holds none of this partition." : `The log holds positions ${start} up to ${end}.`;
    const first = !messages.length ? "No message from there on." : `${plural(messages.length, "message")} from position ${messages[0].position} on.`;
    const some = `${number(messages.length)} of ${plural(looked, "message")} ${messages.length === 1 ? "matches" : "match"}.`;
    set(this.said, "text", `${looked && filterOf(this.words.value) ? some : first} ${held}`);
    this.list.replaceChildren(...messages.map((one) => this.#item(one)));
  }

  /** Shows what comes from now on, the newest first, until it is clicked again or something else is shown. */
  async #follow() {
    const ends = this.follow.getAttribute("aria-pressed") === "true";
    if (ends) {
      this.#asked += 1;
      set(this.follow, "aria-pressed", "false");
      set(this.said, "text", "Follows no longer.");
      return;
    }
    this.#clear("Follows: new messages come first.");
    set(this.follow, "aria-pressed", "true");
    const mine = this.#asked;
    const goOn = () => mine === this.#asked && this.element.isConnected && !this.element.closest("[hidden]");
    let at = null, count = 0, more = "";
    while (goOn()) {
      try {
        if (at === null) at = (await this.#ask(this.#partition.end, 1)).end;
        const { messages, following, end } = document.hidden ? { messages: [], following: at, end: at } : await this.#find(at, goOn);
        if (!goOn()) break;
        at = following;
        if (Number(this.#back(end)) > Number(at)) {
          at = this.#back(end);
          more = "; more come than are shown";
        }
        count += messages.length;
        this.list.prepend(...messages.reverse().map((one) => this.#item(one)));
        while (this.list.children.length > MOST_FOLLOWED) this.list.lastChild.remove();
        if (count) set(this.said, "text", `Follows: ${plural(count, "message")} so far, the newest first${more}.`);
      } catch (error) {
        if (!goOn()) break;
        this.#fail(error);
        if (error.code && error.code !== "unavailable") break;
      }
      await new Promise((done) => setTimeout(done, FOLLOW_SECONDS * 1000));
    }
    if (mine === this.#asked) set(this.follow, "aria-pressed", "false");
  }

  /** The element of a message, with what may be done to its value. */
  #item(shown) {
    let message = shown, inHex = false, folded = true;
    const { partition } = this.#partition, queue = decodeURIComponent(this.#path.slice(this.#path.lastIndexOf("/") + 1));
    const value = make("pre", { tabindex: "0", role: "group", "aria-label": `value at ${message.position}` });
    const note = make("p", { class: "soft", role: "status" });
    const says = (words) => set(note, "text", words);
    const kind = make("span", { class: "soft" });
    const tool = (title, act) => make("button", { class: "small", onclick: async () => {
      try {
        await act();
      } catch (error) {
        says(error.code ? error.message : "The service does not answer.");
      }
    } }, title);
    // As it is now in the log, all of it.
    const whole = async () => {
      if (!lacking(message)) return message;
      const found = (await this.#ask(message.position, 1, WHOLE_BYTES)).messages[0];
      if (found?.position !== message.position) throw Object.assign(new Error("The log holds it no longer."), { code: "gone" });
      message = found;
      draw();
      return message;
    };
    const all = tool("Whole", async () => { folded = false; await whole(); });
    const fold = tool("Unfold", () => { folded = !folded; draw(); });
    const asHex = tool("Hex", () => { inHex = !inHex; draw(); });
    const copy = tool("Copy", async () => {
      await whole();
      const text = inHex || message.value === undefined ? value.textContent : message.value;
      try {
        await navigator.clipboard.writeText(text);
        says("Copied.");
      } catch {
        // Without TLS browsers give pages no clipboard.
        getSelection().selectAllChildren(value);
        says("Selected: copy it with the keyboard.");
      }
    });
    const save = tool("Save", async () => {
      const bytes = bytesOf(await whole());
      const address = URL.createObjectURL(new Blob([bytes]));
      make("a", { href: address, download: fileName(queue, partition, message) }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60000);
      says(lacking(message) ? `Saved the first ${plural(bytes.length, "byte")}.` : "Saved.");
    });
    const draw = () => {
      const { text, kind: is } = readable(message), shown = inHex ? hex(bytesOf(message)) : text;
      set(value, "text", shown);
      set(kind, "text", `${is === "text" ? "" : `${is}, `}${plural(message.size_bytes, "byte")}`);
      set(value, "class", [folded ? "" : "unfolded", inHex || is === "binary" ? "hex" : ""].join(" ").trim());
      fold.hidden = !isLong(shown);
      set(fold, "text", folded ? "Unfold" : "Fold");
      asHex.hidden = is === "binary";
      set(asHex, "text", inHex ? "Text" : "Hex");
      all.hidden = !lacking(message) || bytesOf(message).length >= WHOLE_BYTES - 3;
      says(lacking(message) ? `The first ${number(bytesOf(message).length)} of ${plural(message.size_bytes, "byte")}.` : "");
    };
    const headers = Object.entries(message.headers ?? {}).map(([name, text]) => make("span", {}, make("b", {}, name), ` ${text}`));
    draw();
    return make("li", {},
      make("p", {}, make("b", {}, message.position), make("time", { datetime: message.published_at }, when(message.published_at)),
        make("span", {}, message.key === null ? "without a key" : make("span", {}, "key ", make("b", {}, message.key))), kind,
        message.size_bytes ? make("span", { class: "tools" }, all, fold, asHex, copy, save) : null),
      headers.length ? make("p", { class: "headers" }, headers) : null,
      message.headers === null ? make("p", { class: "soft" }, "Its headers are too long to be shown.") : null,
      message.size_bytes ? value : null, note);
  }
}

const when = (text) => text === null ? "no time" : new Date(text).toLocaleString();
