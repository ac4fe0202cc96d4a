/** The administrative calls, newest first: when, who, which call, and the state before and after. */

import { get } from "./calls.js";
import { cells, keyed, make } from "./dom.js";

const COLUMNS = ["when", "who", "from", "call", "queue", "before and after"];
const MOST = 100;

const when = (text) => new Date(text).toLocaleString();
const shown = (state) => state === null ? "nothing" : JSON.stringify(state, null, 1);

export class Audit {
  constructor() {
    this.body = make("tbody");
    this.none = make("p", { class: "soft", role: "status" }, "Loading…");
    this.table = make("table", { class: "cards audit", hidden: "" }, make("caption", { class: "hidden" }, "Audit"),
      make("thead", {}, make("tr", {}, COLUMNS.map((name) => make("th", { scope: "col" }, name)))), this.body);
    this.element = make("div", { class: "queue" }, make("a", { class: "back", href: "#" }, "← All queues"),
      make("section", { "aria-label": "Audit" }, make("div", { class: "bar" }, make("h2", {}, "Audit"),
        make("span", { class: "soft" }, `the newest ${MOST} administrative calls; all: counterpoise audit`)), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of calls" }, this.table), this.none));
  }

  async refresh() {
    this.items = (await get(`/audit?limit=${MOST}`)).items;
    this.draw();
  }

  draw() {
    if (!this.items) return;
    this.table.hidden = this.items.length === 0;
    this.none.textContent = this.items.length ? "" : "There was none yet.";
    keyed(this.body, this.items, (item) => item.id, () => make("tr"), (row, item) => {
      row.states ??= make("details", {}, make("summary", {}, "show"),
        make("pre", {}, `before: ${shown(item.before)}\nafter: ${shown(item.after)}`));
      cells(row, COLUMNS, [when(item.at), item.key_name ?? item.key_id ?? "without a key", item.address ?? "–",
        item.call.replaceAll("_", " "), item.queue ?? "–", row.states]);
    });
  }
}
