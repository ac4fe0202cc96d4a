/** Lag over time as a line, since the page was opened. */

import { draw, make, set } from "./dom.js";
import { clock, short } from "./words.js";

const HEIGHT = 120, LEFT = 46, BOTTOM = 18, TOP = 8;

export class Chart {
  #looks = [];

  constructor() {
    this.svg = draw("svg", { role: "img", class: "chart" });
    this.element = make("div", {}, this.svg);
    // Its text must not shrink with the window (a phone that is turned).
    new ResizeObserver(() => this.show(this.#looks)).observe(this.element);
  }

  /** Draws the looks of a `History`. */
  show(looks) {
    this.#looks = looks;
    const width = Math.max(240, this.svg.clientWidth);
    set(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const known = looks.filter((look) => look.lag !== null);
    if (known.length < 2) {
      set(this.svg, "aria-label", "Lag over time: the first minutes are being measured");
      return this.svg.replaceChildren(draw("text", { x: LEFT, y: HEIGHT / 2 }, "measuring since now"));
    }
    const first = known[0].at, last = known.at(-1).at;
    const most = Math.max(10, ...known.map((look) => look.lag));
    const x = (at) => LEFT + (width - LEFT - 6) * (at - first) / Math.max(1, last - first);
    const y = (lag) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - lag / most);
    const line = known.map((look, place) => `${place ? "L" : "M"}${x(look.at).toFixed(1)} ${y(look.lag).toFixed(1)}`).join("");
    const text = (at, from, anchor, content) => draw("text", { x: at, y: from, "text-anchor": anchor }, content);
    set(this.svg, "aria-label", `Lag over time: ${short(known[0].lag)} at ${clock(first)}, ` +
      `${short(known.at(-1).lag)} now, at most ${short(most)}`);
    this.svg.replaceChildren(
      draw("path", { d: `M${LEFT} ${y(0)}H${width - 6}M${LEFT} ${y(most)}H${width - 6}`, class: "grid" }),
      draw("path", { d: `${line}L${x(last)} ${y(0)}L${x(first)} ${y(0)}Z`, class: "area" }),
      draw("path", { d: line, class: "line" }),
      text(LEFT - 6, y(most) + 4, "end", short(most)), text(LEFT - 6, y(0) + 4, "end", "0"),
      text(LEFT, HEIGHT - 4, "start", clock(first)), text(width - 6, HEIGHT - 4, "end", "now"));
  }
}
