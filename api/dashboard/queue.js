/** One queue: its status, its partitions, what moves, who consumes it, and what happened. */

import * as actions from "./actions.js";
import { all, get, pathOf, secondsUntil } from "./calls.js";
import { Cells, waits } from "./cells.js";
import { Chart } from "./chart.js";
import { badge as showBadge, Conditions, conditionsOf, counted, troubles } from "./conditions.js";
import { Consumers } from "./consumers.js";
import { fact, make, set } from "./dom.js";
import { History, lagOf } from "./measured.js";
import { Moving } from "./moving.js";
import { Timeline, withMoves } from "./timeline.js";
import { clock, duration, letters, number, plural, rate, trigger } from "./words.js";

const MOST_PARTITIONS = 5000;
const HISTORY_ENTRIES = 20;

export class QueuePage {
  #measured = new History();
  #names = new Map();
  #told = "";

  /** `session` is who looks: its role decides whether there are buttons. */
  constructor(name, session) {
    this.name = name;
    this.mayChange = session.role === "admin";
    this.needsKey = session.key_id !== null;
    this.status = make("div", { class: "headline" });
    this.facts = make("dl");
    this.cells = new Cells();
    this.conditions = new Conditions();
    this.moving = new Moving();
    this.chart = new Chart();
    this.timeline = new Timeline();
    this.consumers = new Consumers((flow) => actions.drain(this.picture, flow, this.needsKey));
    this.filter = make("input", { type: "search", id: "filter", placeholder: "name, number, state, lag>100", oninput: () => this.draw() });
    this.said = make("p", { class: "hidden", role: "status" });
    this.partial = make("p", { class: "soft" });
    const act = (title, does) => make("button", { onclick: () => this.picture && does(this.picture, this.needsKey) }, title);
    this.resize = act("Resize", actions.resize);
    this.element = make("div", { class: "queue" },
      make("section", { "aria-label": "Status" },
        make("div", { class: "bar" }, make("h2", {}, name), this.status, this.mayChange ? make("div", { class: "actions" },
          this.resize, act("Rebalance now", actions.rebalance), act("Set positions", actions.positions)) : null),
        this.facts, this.said),
      this.conditions.element,
      make("section", { "aria-label": "Partitions" },
        make("div", { class: "bar" }, make("h3", {}, "Partitions"), make("span", { class: "legend soft" },
          "letter, colour: owner · stronger: more lag · ›B: moving to B · striped: no owner · ‖ waits · ! reported"),
          make("span", { class: "field" }, make("label", { for: "filter" }, "Filter"), this.filter)),
        this.cells.element, this.partial),
      this.moving.element, this.consumers.element,
      make("section", { "aria-label": "Lag" }, make("h3", {}, "Lag since this page was opened"), this.chart.element),
      this.timeline.element);
  }

  /** Asks the service, and draws. Throws what the calls throw. */
  async refresh() {
    const path = pathOf(this.name);
    const past = `${path}/rebalances?limit=${HISTORY_ENTRIES}`;
    const [queue, status, flows, partitions, history, moves, conditions] = await Promise.all([get(path), get(path + "/rebalance"),
      all(path + "/flows", 1000), all(path + "/partitions", MOST_PARTITIONS),
      get(past), get(past + "&moves=true"), conditionsOf(path)]);
    if (this.picture && this.picture.queue.id !== queue.id) {
      // The queue was deleted and made again: its positions are others.
      this.#measured = new History();
    }
    this.#measured.add(partitions);
    const places = new Map(flows.map((flow, place) => [flow.flow_id, place]));
    flows.forEach((flow) => this.#names.set(flow.flow_id, flow.client_name));
    const held = new Map(flows.map((flow) => [flow.flow_id, []]));
    for (const each of partitions) held.get(each.owner)?.push(each);
    this.picture = {
      queue, status, flows, partitions, conditions, troubleOf: troubles(conditions), history: withMoves(history.items, moves.items), held, measured: this.#measured,
      placeOf: (flow) => places.get(flow) ?? null,
      letterOf: (flow) => places.has(flow) ? letters(places.get(flow)) : "?",
      nameOf: (flow) => flow === null ? "nobody" : this.#names.get(flow) ?? `a consumer that is gone (${flow.slice(0, 8)})`,
    };
    this.draw();
  }

  /** Draws what changes with time alone. */
  tick() {
    if (this.picture) this.#drawStatus();
  }

  /** Draws what is known. */
  draw() {
    const { picture } = this;
    if (!picture) return;
    this.#drawStatus();
    this.#drawFacts();
    const filter = matcher(this.filter.value, picture);
    this.cells.show(picture, filter.partition);
    this.consumers.show(picture, filter.flow, this.mayChange);
    this.conditions.show(picture);
    this.moving.show(picture);
    this.chart.show(this.#measured.looks);
    this.timeline.show(picture.history);
    const { operational_partition_count: count } = picture.queue;
    set(this.partial, "text", count > picture.partitions.length ? `The first ${number(picture.partitions.length)} of ${number(count)}.` : "");
  }

  #drawStatus() {
    const { queue, status } = this.picture;
    const left = status.holddown_until ? secondsUntil(status.holddown_until) : null;
    const why = status.trigger ? `because ${trigger(status.trigger)}` : "";
    const until = left === null ? "" : `; the rebalance begins in ${duration(left)}`;
    const badge = this.status.firstChild ?? this.status.appendChild(make("span"));
    const text = this.status.children[1] ?? this.status.appendChild(make("span", { class: "soft" }));
    showBadge(badge, queue, status.status);
    set(text, "text", why + until);
    const told = `${status.status} ${why}. ${plural(status.handoffs.length, "handoff")} under way. ${counted(queue.conditions)}`;
    // A screen reader is told of changes, not of each second.
    if (told !== this.#told) set(this.said, "text", this.#told = told);
  }

  #drawFacts() {
    const { queue, status, partitions } = this.picture;
    const rates = this.#measured.rates();
    // The partitions of a dynamic queue come and go with its log.
    this.resize.hidden = queue.partitioning === "dynamic";
    const stopped = partitions.filter(waits).length;
    this.facts.replaceChildren(
      fact("lag", number(lagOf(partitions))), fact("published", rate(rates.in)), fact("processed", rate(rates.out)),
      fact("partitions", number(queue.operational_partition_count)), fact("without an owner", number(status.unassigned.length)),
      ...(stopped ? [fact("waiting", number(stopped))] : []),
      fact("spread", status.spread), fact("since", clock(status.since)),
      ...(queue.scale_status === "Ready" ? [] : [fact("scale", queue.scale_status)]),
      ...(queue.access_type === "exclusive" ? [fact("access", "exclusive")] : []),
      fact("holddown", duration(queue.rebalance_delay)), fact("handoff time", duration(queue.max_handoff_time)),
      fact("revision", number(queue.revision)), fact("log", queue.log));
  }
}

/** What a filter picks: words that partitions and consumers must match, all of them. */
function matcher(text, picture) {
  const { letterOf, nameOf } = picture;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const every = (haystack, lag) => words.every((word) => {
    const than = /^lag([<>])(\d+)$/.exec(word);
    if (than) return lag !== null && (than[1] === ">" ? lag > Number(than[2]) : lag < Number(than[2]));
    return haystack.some((each) => each.toLowerCase() === word || (word.length > 2 && each.toLowerCase().includes(word)));
  });
  return {
    partition: (each) => every([String(each.partition), each.state, each.key ?? "",
      each.owner ? letterOf(each.owner) : "nobody", nameOf(each.owner), picture.troubleOf(each)], each.lag),
    flow: (flow) => words.length === 0 || words.some((word) => /^(lag|\d)/.test(word)) ||
      every([letterOf(flow.flow_id), flow.client_name, flow.draining ? "draining" : flow.active ? "active" : flow.held_until ? "held back" : "standby"], null),
  };
}
