/** One queue: its status, its partitions, what moves, who consumes it, and what happened. */

import * as actions from "./actions.js";
import { all, get, pathOf, secondsUntil } from "./calls.js";
import { Cells } from "./cells.js";
import { Chart } from "./chart.js";
import { badge, Conditions, conditionsOf, headline, troubles } from "./conditions.js";
import { Consumers } from "./consumers.js";
import { fact, make, narrow, set } from "./dom.js";
import { Letters, redrive } from "./letters.js";
import { ageOf, History, lagOf } from "./measured.js";
import { Messages } from "./messages.js";
import { Moving } from "./moving.js";
import { waits } from "./partition.js";
import * as pausing from "./pausing.js";
import * as pinning from "./pinning.js";
import { handoffs, held as heldBy } from "./plan.js";
import { publish } from "./publishing.js";
import { poisonOf, skip, toDeadLetters, tryAgain } from "./quarantine.js";
import { change } from "./settings.js";
import * as shaping from "./shaping.js";
import { Timeline, withMoves } from "./timeline.js";
import { clock, doing, duration, letters, number, plural, rate, short, trigger } from "./words.js";

const MOST_PARTITIONS = 5000;
const HISTORY_ENTRIES = 20;
/** The roles of those who may see messages. */
const MAY_READ = ["consumer", "admin"];
const MAY_PUBLISH = ["publisher", "admin"];

export class QueuePage {
  /** Whether the service has stopped answering: set by `main.js`. */
  away = false;
  #measured = new History();
  #names = new Map();
  #told = "";

  /** `session` is who looks: its role decides whether there are buttons. */
  constructor(name, session) {
    this.name = name;
    this.mayChange = session.role === "admin";
    this.needsKey = session.key_id !== null;
    this.status = make("div", { class: "headline" }, make("span", { class: "soft" }, "Loading…"));
    this.figures = make("dl", { class: "figures" });
    this.facts = make("dl");
    this.cells = new Cells(this.#tools(), new Messages(MAY_READ.includes(session.role)));
    this.conditions = new Conditions(this.#remedies(MAY_READ.includes(session.role)));
    this.letters = new Letters(MAY_READ.includes(session.role), (partition, position) => this.cells.open(partition, position),
      this.mayChange ? () => redrive(this.picture, this.needsKey) : null);
    this.moving = new Moving();
    this.lag = new Chart("Lag", { lag: "lag" });
    this.rates = new Chart("Rates", { published: "published", processed: "processed" }, { rates: true });
    this.timeline = new Timeline();
    this.consumers = new Consumers((flow) => actions.drain(this.picture, flow, this.needsKey), () => this.draw());
    this.filter = make("input", { type: "search", id: "filter", placeholder: "name, number, state, lag>100", oninput: () => this.draw() });
    this.said = make("p", { class: "hidden", role: "status" });
    this.partial = make("p", { class: "soft" });
    const act = (title, does) => make("button", { disabled: "", onclick: () => does(this.picture, this.needsKey) }, title);
    this.resize = act("Resize", actions.resize);
    this.mirror = act("Mirror", shaping.mirror);
    this.mirror.hidden = true;
    this.pause = act("Pause", pausing.pauseQueue);
    this.resume = act("Resume", pausing.resumeQueue);
    this.resume.hidden = true;
    const mayPublish = MAY_PUBLISH.includes(session.role);
    this.publish = act("Publish", (picture, needsKey) => publish(picture, needsKey, (partition) => this.#published(partition)));
    this.actions = make("div", { class: "actions", hidden: !mayPublish && "" }, mayPublish && this.publish, ...(this.mayChange
      ? [this.resize, this.pause, this.resume, act("Rebalance now", actions.rebalance), act("Set positions", actions.positions), act("Settings", change), this.mirror, act("Delete", shaping.remove)] : []));
    this.waiting = make("p", { class: "soft" }, "Loading…");
    this.element = make("div", { class: "queue", "aria-busy": "true" },
      make("a", { class: "back", href: "#" }, "← All queues"),
      make("section", { "aria-label": "Status" },
        make("div", { class: "bar top" }, make("h2", {}, name), this.status, this.actions),
        this.figures, make("details", { class: "more" }, make("summary", {}, "Settings and details"), this.facts), this.said),
      this.conditions.element, this.letters.element,
      make("section", { "aria-label": "Partitions" },
        make("div", { class: "bar" }, make("h3", {}, "Partitions"),
          make("span", { class: "field" }, make("label", { for: "filter" }, "Filter"), this.filter)),
        this.waiting, this.cells.element, this.partial),
      this.moving.element, this.consumers.element,
      make("section", { class: "charts", "aria-label": "The last hour" }, this.lag.element, this.rates.element),
      this.timeline.element);
    this.#arrange();
  }

  /** What may be done to a partition (`cells.js`). */
  #tools() {
    if (!this.mayChange) return [];
    const tool = (title, does, fits) => ({ title, fits, act: (each) => does(this.picture, each, this.needsKey) });
    // Only the built-in log splits and merges.
    const ranged = (each) => each.key !== null && this.picture.queue.log.startsWith("builtin:") && !each.children?.length;
    return [tool("Set its position", shaping.position, () => true),
      tool("Pause it", pausing.pausePartition, (each) => each.state !== "finished"),
      tool("Resume it", pausing.resumePartition, (each) => each.paused !== null),
      tool("Pin it", pinning.pinPartition, (each) => each.state !== "finished"),
      tool("Unpin it", pinning.unpinPartition, (each) => each.pinned !== null), tool("Split", shaping.split, ranged), tool("Merge", shaping.merge, ranged)];
  }

  /** A message was published to this partition. */
  #published(partition) {
    set(this.said, "text", `Published to partition ${partition}.`);
    this.cells.newest(partition);
  }

  /** What may be done about a message in quarantine (`conditions.js`). */
  #remedies(mayRead) {
    const remedy = (title, does) => ({ title, act: (condition) => does(this.picture, condition, this.needsKey) });
    return [...(mayRead ? [{ title: "Show", act: (condition) => this.cells.open(condition.partition, poisonOf(condition)) }] : []),
      ...(this.mayChange ? [remedy("Try again", tryAgain), remedy("Skip", skip), remedy("To dead letters", toDeadLetters)] : [])];
  }

  /** The first picture is there: what waited for it can be used. */
  #begin() {
    this.element.removeAttribute("aria-busy");
    this.waiting.hidden = true;
    this.cells.element.hidden = false;
    for (const button of this.actions.children) button.disabled = false;
  }

  /** A narrow window shows the consumers before what needs room. */
  #arrange() {
    const before = narrow.matches ? this.conditions : this.moving;
    if (before.element.nextSibling !== this.consumers.element) before.element.after(this.consumers.element);
  }

  /** Asks the service, and draws. Throws what the calls throw. */
  async refresh() {
    const path = pathOf(this.name);
    const past = `${path}/rebalances?limit=${HISTORY_ENTRIES}`;
    const [queue, status, flows, partitions, history, moves, conditions] = await Promise.all([get(path), get(path + "/rebalance"),
      all(path + "/flows", 1000), all(path + "/partitions", MOST_PARTITIONS),
      get(past), get(past + "&moves=true"), conditionsOf(path), this.#measured.read(path)]);
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
      progress: progress(history.items[0], status, flows, partitions),
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
    if (this.element.hasAttribute("aria-busy")) this.#begin();
    this.#arrange();
    this.#drawStatus();
    this.#drawFigures();
    this.#drawFacts();
    const filter = matcher(this.filter.value, picture);
    const { open } = this.consumers;
    const chosen = (each) => !open.size || open.has(each.owner) || open.has(each.successor);
    this.cells.show(picture, (each) => chosen(each) && filter.partition(each));
    this.consumers.show(picture, filter.flow, this.mayChange);
    this.conditions.show(picture);
    this.letters.show(picture);
    this.moving.show(picture);
    const points = this.#measured.points();
    this.lag.show(points);
    this.rates.show(points);
    this.timeline.show(picture.history);
    const { operational_partition_count: count } = picture.queue;
    set(this.partial, "text", count > picture.partitions.length ? `The first ${number(picture.partitions.length)} of ${number(count)}.` : "");
  }

  #drawStatus() {
    const { queue, status, progress } = this.picture;
    const left = status.holddown_until ? secondsUntil(status.holddown_until) : null;
    const why = status.trigger ? `because ${trigger(status.trigger)}` : "";
    const until = left === null ? "" : `; ${status.status === "Holddown" ? "the rebalance begins" : "all others follow"} in ${duration(left)}`;
    if (this.status.children.length < 2) this.status.replaceChildren(make("span"), make("span", { class: "soft" }));
    const [shown, text] = this.status.children;
    const first = headline(queue, this.#measured, this.away);
    badge(shown, status.status, first);
    const held = queue.paused ? `paused ${pausing.paused(queue.paused)}` : "";
    set(text, "text", [why + until, progress, held].filter(Boolean).join("; "));
    const told = `${status.status} ${why}. ${plural(status.handoffs.length, "handoff")} under way. ${first.told}`;
    // A screen reader is told of changes, not of each second.
    if (told !== this.#told) set(this.said, "text", this.#told = told);
  }

  #drawFigures() {
    const { queue, status, partitions } = this.picture;
    const rates = this.#measured.rates();
    const lag = lagOf(partitions), age = ageOf(partitions);
    const stopped = partitions.filter(waits).length;
    const idle = queue.flow_count - queue.active_flow_count;
    const alone = fact("without an owner", number(status.unassigned.length));
    set(alone, "class", status.unassigned.length ? "alarming" : "");
    this.figures.replaceChildren(
      figure("lag", lag, number(lag), "not known"), figure("oldest message", lag === 0 ? 0 : age, lag === 0 ? "none" : duration(age), "not known"),
      figure("published", rates.in, rate(rates.in), rates.why), figure("processed", rates.out, rate(rates.out), rates.why),
      ...committedAfter(this.#measured.committedAfter),
      alone, ...(queue.paused_partition_count ? [fact("paused", number(queue.paused_partition_count))] : []),
      ...(queue.pinned_partition_count ? [fact("pinned", number(queue.pinned_partition_count))] : []), ...(stopped ? [fact("waiting", number(stopped))] : []),
      fact("consumers", make("span", {}, number(queue.active_flow_count), idle ? make("small", {}, ` + ${number(idle)} standby`) : null)));
  }

  #drawFacts() {
    const { queue, status } = this.picture;
    // The partitions of a dynamic queue come and go with its log.
    this.resize.hidden = queue.partitioning === "dynamic";
    // The service appends to one log of a kind that it knows.
    this.publish.hidden = !/^(builtin:[^+]*$|redis|kafka)/.test(queue.log);
    // Only Kafka has consumer groups.
    this.pause.hidden = queue.paused !== null;
    this.resume.hidden = queue.paused === null;
    this.mirror.hidden = !queue.log.startsWith("kafka://");
    this.facts.replaceChildren(
      fact("partitions", number(queue.operational_partition_count)),
      fact("spread", status.spread), fact("since", clock(status.since)),
      ...(queue.paused ? [fact("paused", pausing.paused(queue.paused))] : []),
      ...(queue.scale_status === "Ready" ? [] : [fact("scale", queue.scale_status)]),
      ...(queue.access_type === "exclusive" ? [fact("access", "exclusive")] : []),
      fact("holddown", duration(queue.rebalance_delay)), fact("handoff time", duration(queue.max_handoff_time)),
      ...(queue.retention_seconds === null ? [] : [fact("keeps of processed", kept(queue))]),
      fact("revision", number(queue.revision)), fact("log", queue.log),
      ...(queue.mirror_group === null ? [] : [fact("mirrored into group", queue.mirror_group)]));
  }
}

/** What the queue's own log keeps of the messages that all have processed. */
function kept(queue) {
  if (!queue.retention_seconds || !queue.retention_bytes) return "nothing";
  return `${duration(queue.retention_seconds)}, ${short(queue.retention_bytes)}B`;
}

/** A value as a figure, in words; without one, the reason in small letters. */
function figure(name, value, words, why) {
  const element = fact(name, value === null ? why : words);
  set(element.lastChild, "class", value === null ? "reason" : "");
  return element;
}

/** How long messages took from `publish` to their commit: half of them, and 99 %. Nothing while it is not known. */
function committedAfter(known) {
  if (known === null) return [];
  const told = `In the last hour, of ${plural(known.sampled, "message")} that the service looked at`;
  return [fact("committed after", make("span", { title: told }, duration(known.median), make("small", {}, ` 99 %: ${duration(known.p99)}`)))];
}

/** How many handoffs of the running rebalance are done, in words; empty if none is running. Those that
 *  have not begun yet are what would still balance the queue. */
function progress(newest, status, flows, partitions) {
  if (!newest || newest.finished_at || !status.handoffs.length) return "";
  const { counts, draining } = heldBy(flows, partitions);
  const total = newest.handoffs + status.handoffs.length + handoffs(counts, draining);
  return `${number(newest.handoffs)} of ${plural(total, "handoff")} done`;
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
    partition: (each) => every([String(each.partition), each.state, each.paused ? "paused" : "", each.pinned ? "pinned" : "", each.key ?? "",
      each.owner ? letterOf(each.owner) : "nobody", nameOf(each.owner), picture.troubleOf(each)], each.lag),
    flow: (flow) => words.length === 0 || words.some((word) => /^(lag|\d)/.test(word)) ||
      every([letterOf(flow.flow_id), flow.client_name, doing(flow)], null),
  };
}
