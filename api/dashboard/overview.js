/** All queues: status, lag, consumers, rates. */

import { all, get, pathOf } from "./calls.js";
import { badge, counted } from "./conditions.js";
import { cells, keyed, make } from "./dom.js";
import { History } from "./measured.js";
import { number, rate } from "./words.js";

const COLUMNS = ["queue", "status", "lag", "consumers", "partitions", "published", "processed"];
const LOOK_SECONDS = 5;
/** So many queues are measured; the others wait until a search brings them up. */
const MOST_MEASURED = 40;
const PAGE = 1000;

/** A queue's lag; of a large queue only the first page is looked at here, so there is more. */
const lagIn = (queue, lag) =>
  lag !== null && queue.operational_partition_count > PAGE ? `at least ${number(lag)}` : number(lag);

export class Overview {
  #measured = new Map();

  constructor() {
    this.search = make("input", { type: "search", id: "find", oninput: () => this.draw() });
    this.body = make("tbody");
    this.none = make("p", { class: "soft", hidden: "" });
    this.element = make("section", { "aria-label": "Queues" },
      make("div", { class: "bar" }, make("h2", {}, "Queues"),
        make("span", { class: "field" }, make("label", { for: "find" }, "Find"), this.search)),
      make("table", { class: "cards" }, make("caption", { class: "hidden" }, "Queues"),
        make("thead", {}, make("tr", {}, COLUMNS.map((name) => make("th", { scope: "col" }, name)))), this.body),
      this.none);
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
        measured.history.add((await get(pathOf(queue.name) + `/partitions?limit=${PAGE}`)).items);
      } catch (error) {
        if (error.code !== "queue_not_found") throw error;
      }
      if (!this.element.isConnected) return;
      this.draw();
    }
  }

  #shown() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return (this.queues ?? []).filter((queue) => words.every((word) =>
      `${queue.name} ${queue.rebalance_status} ${counted(queue.conditions)}`.toLowerCase().includes(word)));
  }

  draw() {
    const shown = this.#shown();
    this.none.hidden = shown.length > 0 || !this.queues;
    this.none.textContent = this.queues?.length ? "No queue has this in its name or status."
      : "There is none yet: counterpoise queues create NAME --partitions 8";
    keyed(this.body, shown, (queue) => queue.id, () => make("tr"), (row, queue) => {
      const history = this.#measured.get(queue.name)?.history;
      const rates = history?.rates() ?? { in: null, out: null };
      row.link ??= make("a", { href: "#" + encodeURIComponent(queue.name) }, queue.name);
      row.status ??= make("span");
      badge(row.status, queue, queue.rebalance_status);
      const idle = queue.flow_count - queue.active_flow_count;
      cells(row, COLUMNS, [row.link, row.status, lagIn(queue, history?.looks.at(-1)?.lag ?? null),
        number(queue.active_flow_count) + (idle ? ` + ${number(idle)} standby` : ""),
        number(queue.operational_partition_count), rate(rates.in), rate(rates.out)]);
    });
  }
}
