/** All queues: status, lag, consumers, rates. */

import { all, get, pathOf } from "./calls.js";
import { Sparkline } from "./chart.js";
import { badge, headline } from "./conditions.js";
import { cells, keyed, make } from "./dom.js";
import { History, MEASURING } from "./measured.js";
import { create } from "./settings.js";
import { Sorting } from "./sorting.js";
import { duration, number, rate } from "./words.js";

/** The columns, and by what each sorts. */
const COLUMNS = [
  ["queue", ({ queue }) => queue.name], ["status", ({ queue }) => queue.rebalance_status], ["lag", ({ look }) => look?.lag ?? null],
  ["oldest", ({ look }) => look?.age ?? null], ["last hour", null], ["consumers", ({ queue }) => queue.active_flow_count],
  ["partitions", ({ queue }) => queue.operational_partition_count],
  ["published", ({ rates }) => rates.in], ["processed", ({ rates }) => rates.out],
];
const NAMES = COLUMNS.map(([name]) => name);
const LOOK_SECONDS = 5;
/** So many queues are measured; the others wait until a search brings them up. */
const MOST_MEASURED = 40;
const PAGE = 1000;

/** A queue's lag; of a large queue only the first page is looked at here, so there is more. */
const lagIn = (queue, lag) =>
  lag !== null && queue.operational_partition_count > PAGE ? `at least ${number(lag)}` : number(lag);

export class Overview {
  /** Whether the service has stopped answering: set by `main.js`. */
  away = false;
  #measured = new Map();

  /** `session` is who looks. */
  constructor(session) {
    const mayChange = session.role === "admin";
    this.search = make("input", { type: "search", id: "find", oninput: () => this.draw() });
    this.find = make("span", { class: "field" }, make("label", { for: "find" }, "Find"), this.search);
    this.order = new Sorting(COLUMNS, "order", () => this.draw());
    this.body = make("tbody");
    this.none = make("p", { class: "soft", hidden: "" });
    this.loading = make("p", { class: "soft", role: "status" }, "Loading…");
    this.table = make("table", { class: "cards queues", hidden: "" }, make("caption", { class: "hidden" }, "Queues"),
      make("thead", {}, make("tr", {}, this.order.heads)), this.body);
    this.element = make("section", { "aria-label": "Queues", "aria-busy": "true" },
      make("div", { class: "bar" }, make("h2", {}, "Queues"),
        this.find, this.order.field,
        mayChange ? make("button", { onclick: () => create(session.key_id !== null) }, "Create a queue") : null),
      this.loading, this.table, this.none);
  }

  /** Asks the service, and draws. */
  async refresh() {
    this.queues = await all("/queues", 10000);
    this.draw();
    await this.#measure();
  }

  /** Looks at the queues that are shown: one after the other, so that it costs the service little. */
  async #measure() {
    for (const queue of this.#shown().slice(0, MOST_MEASURED)) {
      let measured = this.#measured.get(queue.name);
      if (!measured || measured.id !== queue.id) {
        this.#measured.set(queue.name, measured = { id: queue.id, history: new History(), at: 0 });
      }
      if (Date.now() - measured.at < LOOK_SECONDS * 1000) continue;
      measured.at = Date.now();
      try {
        await measured.history.read(pathOf(queue.name));
        measured.history.add((await get(pathOf(queue.name) + `/partitions?limit=${PAGE}`)).items);
      } catch (error) {
        if (error.code !== "queue_not_found") throw error;
      }
      if (!this.element.isConnected) return;
      this.draw();
    }
  }

  #headline(queue) {
    return headline(queue, this.#measured.get(queue.name)?.history, this.away);
  }

  #shown() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.queues.filter((queue) => words.every((word) =>
      `${queue.name} ${queue.rebalance_status} ${this.#headline(queue).told}`.toLowerCase().includes(word)));
  }

  draw() {
    if (!this.queues) return;
    const shown = this.#shown();
    this.none.hidden = shown.length > 0;
    this.none.textContent = this.queues.length ? "No queue has this in its name or status."
      : "There is none yet: counterpoise queues create NAME --partitions 8";
    this.element.removeAttribute("aria-busy");
    this.loading.hidden = true;
    for (const field of [this.find, this.order.field]) field.hidden = this.queues.length === 0;
    this.table.hidden = shown.length === 0;
    const items = shown.map((queue, place) => {
      const history = this.#measured.get(queue.name)?.history;
      return { queue, history, look: history?.looks.at(-1),
        rates: history?.rates() ?? { in: null, out: null, why: place < MOST_MEASURED ? MEASURING : "find it to measure" } };
    });
    keyed(this.body, this.order.sorted(items), ({ queue }) => queue.id, () => make("tr"), (row, { queue, history, look, rates }) => {
      row.link ??= make("a", { href: "#" + encodeURIComponent(queue.name) }, queue.name);
      row.status ??= make("span");
      row.spark ??= new Sparkline();
      row.spark.show(history?.points() ?? []);
      badge(row.status, queue.rebalance_status, this.#headline(queue));
      const idle = queue.flow_count - queue.active_flow_count;
      cells(row, NAMES, [row.link, row.status, look?.lag === null ? "not known" : lagIn(queue, look?.lag ?? null), look?.lag === 0 ? "none" : duration(look?.age), row.spark.element,
        number(queue.active_flow_count) + (idle ? ` + ${number(idle)} standby` : ""),
        number(queue.operational_partition_count), rate(rates.in, rates.why), rate(rates.out, rates.why)]);
    });
  }
}
