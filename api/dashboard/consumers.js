/** The consumers of a queue: what each owns, how far behind it is, and for how long it may be silent. */

import { secondsUntil } from "./calls.js";
import { plain } from "./colours.js";
import { cells, keyed, make, set } from "./dom.js";
import { clock, duration, number, ranges } from "./words.js";
import { lagOf } from "./measured.js";

const COLUMNS = ["consumer", "partitions", "which", "lag", "state", "last commit", "bound", "lease ends in", ""];
// The cells show all partitions of a consumer; its row names as many ranges as fit.
const MOST_RANGES = 8;

export class Consumers {
  /** `drain` is called with a flow when an administrator wants to drain it. */
  constructor(drain) {
    this.drain = drain;
    this.title = make("h3");
    this.body = make("tbody");
    this.none = make("p", { class: "soft" }, "None is bound. The messages wait.");
    const heads = COLUMNS.map((name) => make("th", { scope: "col" }, name || make("span", { class: "hidden" }, "action")));
    this.table = make("table", { class: "cards consumers" },
      make("caption", { class: "hidden" }, "Consumers"), make("thead", {}, make("tr", {}, heads)), this.body);
    this.element = make("section", { "aria-label": "Consumers" }, this.title,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of consumers" }, this.table), this.none);
  }

  /** Shows the flows of a picture that `matches`. */
  show(picture, matches, mayChange) {
    const { flows, held, letterOf, placeOf, measured } = picture;
    set(this.title, "text", `Consumers (${number(flows.length)})`);
    this.none.hidden = flows.length > 0;
    this.table.hidden = flows.length === 0;
    const create = () => make("tr");
    keyed(this.body, flows.filter(matches), (flow) => flow.flow_id, create, (row, flow) => {
      const mine = held.get(flow.flow_id);
      const commit = Math.max(0, ...mine.map((each) => measured.lastCommit(each.partition) ?? 0));
      const { ground, ink } = plain(placeOf(flow.flow_id));
      row.name ??= make("span", {}, make("b", { class: "badge" }), make("span"));
      set(row.name.firstChild, "text", letterOf(flow.flow_id));
      set(row.name.firstChild, "--ground", ground);
      set(row.name.firstChild, "--ink", ink);
      set(row.name.lastChild, "text", flow.client_name);
      set(row.name, "title", flow.client_name);
      row.lease ??= make("span", { class: "lease" }, make("i"), make("span"));
      const left = secondsUntil(flow.lease_expires_at);
      row.longest = Math.max(row.longest ?? 1, left);
      set(row.lease.firstChild, "--part", String(Math.max(0, Math.min(1, left / row.longest))));
      set(row.lease.lastChild, "text", duration(left));
      row.act ??= make("button", { class: "small" }, "Drain");
      row.act.onclick = () => this.drain(flow);
      row.act.hidden = !mayChange || flow.draining;
      set(row.act, "aria-label", `Drain ${flow.client_name}`);
      cells(row, COLUMNS, [row.name, number(flow.partitions), ranges(mine.map((each) => each.partition), MOST_RANGES) || "–",
        number(lagOf(mine)), flow.draining ? "draining" : flow.active ? "active" : flow.held_until ? "held back" : "standby",
        commit ? `${duration((Date.now() - commit) / 1000)} ago` : "–", clock(flow.bound_at), row.lease, row.act]);
    });
  }
}
