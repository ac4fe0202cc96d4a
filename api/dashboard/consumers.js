/** The consumers of a queue: what each owns, how far behind it is, and for how long it may be silent.
 *
 *  The table is sorted by the column that was clicked. A consumer that was clicked is open: its row has
 *  all of its partitions, and the cells of the others step back.
 */

import { secondsUntil } from "./calls.js";
import { plain } from "./colours.js";
import { cells, fact, keyed, make, narrow, set } from "./dom.js";
import { lagOf } from "./measured.js";
import { Sorting } from "./sorting.js";
import { clock, doing, duration, number, plural, ranges } from "./words.js";

/** The columns, and by what each sorts; `commit` in milliseconds. */
const COLUMNS = [
  ["consumer", ({ flow }) => flow.client_name], ["partitions", ({ flow }) => flow.partitions],
  ["which", ({ mine }) => mine[0]?.partition ?? null], ["lag", ({ mine }) => lagOf(mine)], ["state", ({ flow }) => doing(flow)],
  ["last commit", ({ commit }) => commit], ["bound", ({ flow }) => flow.bound_at],
  ["lease ends in", ({ flow }) => flow.lease_expires_at], ["", null],
];
const NAMES = COLUMNS.map(([name]) => name);
// The cells show all partitions of a consumer; its row names as many ranges as fit.
const MOST_RANGES = 8;
/** So many consumers a narrow window shows before the rest of the page. */
const MOST_NARROW = 12;

export class Consumers {
  /** The flows whose rows are open. */
  open = new Set();
  #all = false;

  /** `drain` is called with a flow when an administrator wants to drain it, `changed` when another
   *  order or other open rows are wanted. */
  constructor(drain, changed) {
    this.drain = drain;
    this.changed = changed;
    this.title = make("h3", {}, "Consumers");
    this.none = make("p", { class: "soft" }, "Loading…");
    this.more = make("button", { hidden: "", onclick: () => { this.#all = true; changed(); } });
    this.order = new Sorting(COLUMNS, "order", changed);
    this.body = make("tbody");
    this.table = make("table", { class: "cards consumers", hidden: "" },
      make("caption", { class: "hidden" }, "Consumers"), make("thead", {}, make("tr", {}, this.order.heads)), this.body);
    this.element = make("section", { "aria-label": "Consumers" }, make("div", { class: "bar" }, this.title, this.order.field),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of consumers" }, this.table), this.none, this.more);
  }

  /** Shows the flows of a picture that `matches`. */
  show(picture, matches, mayChange) {
    const { flows, held, measured } = picture;
    const bound = new Set(flows.map((flow) => flow.flow_id));
    for (const id of this.open) if (!bound.has(id)) this.open.delete(id);
    set(this.title, "text", `Consumers (${number(flows.length)})`);
    set(this.none, "text", flows.length ? "" : "None is bound. The messages wait.");
    this.table.hidden = this.order.field.hidden = flows.length === 0;
    const sorted = this.order.sorted(flows.filter(matches).map((flow) => {
      const mine = held.get(flow.flow_id);
      return { flow, mine, commit: Math.max(0, ...mine.map((each) => measured.lastCommit(each.partition) ?? 0)) || null };
    }));
    const shown = narrow.matches && !this.#all ? sorted.slice(0, MOST_NARROW) : sorted;
    this.more.hidden = shown.length === sorted.length;
    set(this.more, "text", `Show all ${number(sorted.length)}`);
    keyed(this.body, shown, ({ flow }) => flow.flow_id, () => this.#row(),
      (row, item) => this.#update(row, item, picture, mayChange));
  }

  #row() {
    const row = make("tr");
    row.name = make("button", { class: "opens" }, make("b", { class: "badge" }), make("span"));
    row.which = make("div", {}, make("span"), make("dl"));
    row.lease = make("span", { class: "lease" }, make("i"), make("span"));
    row.act = make("button", { class: "small" }, "Drain");
    return row;
  }

  #update(row, { flow, mine, commit }, { letterOf, placeOf }, mayChange) {
    const open = this.open.has(flow.flow_id);
    const { ground, ink } = plain(placeOf(flow.flow_id));
    const [badge, name] = row.name.children;
    set(badge, "text", letterOf(flow.flow_id));
    set(badge, "--ground", ground);
    set(badge, "--ink", ink);
    set(name, "text", flow.client_name);
    set(row.name, "title", flow.client_name);
    set(row.name, "aria-expanded", String(open));
    row.name.onclick = () => this.#toggle(flow.flow_id);
    set(row, "class", open ? "open" : "");
    const [which, more] = row.which.children;
    set(which, "text", ranges(mine.map((each) => each.partition), open ? Infinity : MOST_RANGES) || "–");
    more.replaceChildren(...open ? [fact("flow", flow.flow_id), ...(flow.instance_id ? [fact("instance", flow.instance_id)] : []),
      ...(flow.key_id ? [fact("key", flow.key_id)] : []), ...(flow.weight > 1 ? [fact("weight", number(flow.weight))] : []),
      ...(flow.max_partitions ? [fact("at most", plural(flow.max_partitions, "partition"))] : [])] : []);
    const left = secondsUntil(flow.lease_expires_at);
    row.longest = Math.max(row.longest ?? 1, left);
    set(row.lease.firstChild, "--part", String(Math.max(0, Math.min(1, left / row.longest))));
    set(row.lease.lastChild, "text", duration(left));
    row.act.onclick = () => this.drain(flow);
    row.act.hidden = !mayChange || flow.draining;
    set(row.act, "aria-label", `Drain ${flow.client_name}`);
    cells(row, NAMES, [row.name, number(flow.partitions), row.which, number(lagOf(mine)), doing(flow),
      commit ? `${duration((Date.now() - commit) / 1000)} ago` : "–", clock(flow.bound_at), row.lease, row.act]);
  }

  #toggle(flow) {
    if (!this.open.delete(flow)) this.open.add(flow);
    this.changed();
  }
}
