/** The partitions of a queue as cells: who owns each, how far behind it is, and where it goes.
 *
 *  A cell has its owner's letter and colour, stronger with more lag. While it moves it has the letter
 *  of its next owner too, and a bar that runs out at the deadline. The cells are a listbox: arrow
 *  keys move between them, and the chosen one is shown in full below (`partition.js`).
 */

import { pathOf, secondsUntil } from "./calls.js";
import { lagScale, plain, shaded, shadeOf } from "./colours.js";
import { keyed, make, set } from "./dom.js";
import { inFull, waits } from "./partition.js";
import { paused } from "./pausing.js";
import { pinned } from "./pinning.js";
import { number, short, state } from "./words.js";

/** Up to so many partitions, cells have room for names and lags; */
const WIDE = 32;
/** and up to so many, for their number. */
const ROOMY = 130;
/** What the marks on a cell mean; small cells have other ones. */
const MARKS = "letter, colour: owner · ›B: moving to B · striped: no owner · dotted: paused · ‖ waits · ! reported";
const SMALL_MARKS = "letter, colour: owner · edge: next owner · striped: no owner · dotted: paused · ◥ waits · ◣ reported";

export class Cells {
  chosen = null;

  /** `tools`: what administrators do to a partition, by the title of its button. Each is called with
   *  the partition; `fits` says for which partitions there is a button. `messages` shows those of the
   *  chosen one (`messages.js`). */
  constructor(tools, messages) {
    this.tools = tools;
    this.messages = messages;
    this.list = make("div", {
      class: "cells", role: "listbox", tabindex: "0", "aria-label": "Partitions",
      onkeydown: (event) => this.#key(event), onclick: (event) => this.#click(event),
    });
    this.shown = make("div");
    this.buttons = tools.map(({ title, act }) => make("button", { class: "small", onclick: () => act(this.#partition()) }, title));
    this.detail = make("section", { class: "detail", "aria-label": "The chosen partition", hidden: "" },
      this.shown, make("div", { class: "actions" }, this.buttons, make("button", { class: "small", onclick: () => this.#choose(null) }, "Close")),
      messages.element);
    this.scale = make("span", { class: "scale" });
    this.marks = make("span");
    this.legend = make("p", { class: "legend soft" }, make("span", {}, "lag"), this.scale, this.marks);
    this.element = make("div", { hidden: "" }, this.legend, this.list, this.detail);
  }

  /** Shows a picture of the queue (`queue.js`), of which only what `matches` stands out. */
  show(picture, matches) {
    this.picture = picture;
    const { partitions } = picture;
    const scale = lagScale(partitions.reduce((high, each) => Math.max(high, each.lag ?? 0), 0));
    this.#legend(scale);
    const small = partitions.length > ROOMY;
    set(this.marks, "text", small ? SMALL_MARKS : MARKS);
    set(this.list, "class", small ? "cells dense" : partitions.length > WIDE ? "cells" : "cells wide");
    const create = (each) => make("div", {
      role: "option", id: `partition-${each.partition}`, "data-partition": each.partition,
      "aria-selected": "false",
    }, make("b", {}, make("span"), make("span", { class: "to" })), make("small"),
    make("i"), make("span", { class: "name" }), make("span", { class: "lag" }), make("span", { class: "place" }));
    keyed(this.list, partitions, (each) => each.partition, create, (cell, each) => {
      this.#cell(cell, each, scale, matches(each));
    });
    if (this.chosen !== null && !partitions.some((each) => each.partition === this.chosen)) this.chosen = null;
    this.#choose(this.chosen);
  }

  #legend(scale) {
    this.scale.replaceChildren(...scale.map((step, place) => {
      const { ground, ink } = shaded(null, shadeOf(step, scale));
      return make("b", { "--ground": ground, "--ink": ink }, `${short(step)}${place ? "+" : ""}`);
    }));
  }

  #cell(cell, each, scale, stands) {
    const { placeOf, nameOf } = this.picture;
    const [letter, small, bar, name, lag, place] = cell.children;
    const owner = placeOf(each.owner);
    const { ground, ink } = shaded(owner, each.owner ? shadeOf(each.lag, scale) : 0);
    const marks = waits(each);
    const trouble = this.picture.troubleOf(each);
    set(cell, "class", ["cell", each.state, each.owner ? "" : "nobody", each.paused ? "paused" : "", marks ? "marked" : "", trouble ? "troubled" : "",
      stands ? "" : "dim"].filter(Boolean).join(" "));
    set(cell, "--ground", ground);
    set(cell, "--ink", ink);
    set(cell, "--to", each.successor ? plain(placeOf(each.successor)).ground : "transparent");
    set(letter.firstChild, "text", each.owner ? this.picture.letterOf(each.owner) : "·");
    set(letter.lastChild, "text", each.successor ? "›" + this.picture.letterOf(each.successor) : "");
    set(small, "text", each.partition);
    set(name, "text", each.owner ? nameOf(each.owner) : "no owner");
    set(lag, "text", each.lag === null ? "lag not known" : `lag ${number(each.lag)}`);
    set(place, "text", `${each.position ?? "–"} of ${each.end ?? "–"}`);
    set(cell, "aria-label", this.#said(each, marks));
    set(cell, "title", this.#said(each, marks));
    const moving = each.state === "warming" || each.state === "revoking";
    if (bar.dataset.until !== (moving ? each.deadline ?? "" : "")) {
      // The animation starts once for each deadline, not at each look.
      bar.dataset.until = moving ? each.deadline ?? "" : "";
      bar.style.animation = "none";
      if (moving && each.deadline) {
        void bar.offsetWidth;
        bar.style.animation = `run-out ${Math.max(0, secondsUntil(each.deadline))}s linear forwards`;
      }
    }
  }

  #said(each, marks) {
    const { nameOf } = this.picture;
    const trouble = this.picture.troubleOf(each);
    return [`partition ${each.partition}`, each.owner ? `owner ${nameOf(each.owner)}` : "no owner",
      ...(each.state === "owned" || each.state === "unassigned" ? [] : [state(each.state)]),
      ...(each.successor ? [`next owner ${nameOf(each.successor)}`] : []),
      ...(each.lag === null ? [] : [`lag ${number(each.lag)}`]),
      ...(each.paused ? [`paused ${paused(each.paused)}`] : []), ...(each.pinned ? [`pinned ${pinned(each.pinned)}`] : []), ...(marks ? [`waits ${marks}`] : []), ...(trouble ? [trouble] : [])].join(", ");
  }

  /** Chooses a partition and shows the message at this position. */
  open(partition, position) {
    this.#choose(partition);
    if (this.chosen === null || this.detail.hidden) return;
    this.messages.element.scrollIntoView({ block: "nearest" });
    this.messages.at(position);
  }

  /** Chooses a partition and shows its newest messages, if who looks may read them. */
  newest(partition) {
    this.#choose(partition);
    if (this.chosen !== null && !this.detail.hidden) this.messages.showNewest();
  }

  #choose(partition) {
    this.chosen = partition;
    const each = this.#partition();
    for (const cell of this.list.querySelectorAll("[aria-selected=true]")) set(cell, "aria-selected", "false");
    this.detail.hidden = !each;
    if (!each) return this.list.removeAttribute("aria-activedescendant");
    const cell = this.list.known.get(partition);
    set(cell, "aria-selected", "true");
    set(this.list, "aria-activedescendant", cell.id);
    this.messages.of(pathOf(this.picture.queue.name), each);
    this.shown.replaceChildren(...inFull(each, this.picture));
    this.tools.forEach(({ fits }, place) => { this.buttons[place].hidden = !fits(each); });
  }

  /** The chosen partition as it is now. */
  #partition() {
    return this.picture.partitions.find((one) => one.partition === this.chosen);
  }

  #click(event) {
    const cell = event.target.closest("[data-partition]");
    const partition = Number(cell?.dataset.partition);
    // A second click closes it.
    if (cell) this.#choose(partition === this.chosen ? null : partition);
  }

  #key(event) {
    const { partitions } = this.picture;
    const place = partitions.findIndex((each) => each.partition === this.chosen);
    const row = this.#rowLength();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row,
      Home: -partitions.length, End: partitions.length };
    if (event.key === "Escape") this.#choose(null);
    else if (event.key in steps && partitions.length) {
      const next = place < 0 ? 0 : Math.min(partitions.length - 1, Math.max(0, place + steps[event.key]));
      this.#choose(partitions[next].partition);
      this.list.known.get(this.chosen).scrollIntoView({ block: "nearest" });
    } else return;
    event.preventDefault();
  }

  #rowLength() {
    const [first, ...others] = this.list.children;
    const next = others.findIndex((cell) => cell.offsetTop > first.offsetTop);
    return next < 0 ? this.list.children.length : next + 1;
  }
}
