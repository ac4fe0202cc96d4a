/** Charts of the last hour: lines over time, and the same without words for a row of a table.
 *
 *  A point is `{at, lag, published, processed}`: milliseconds, messages, messages a second; null where
 *  it is not known. There a line is interrupted.
 */

import { draw, make, set } from "./dom.js";
import { short } from "./words.js";

const HEIGHT = 120, LEFT = 46, RIGHT = 6, BOTTOM = 18, TOP = 8;
const MINUTE = 60000, HOUR = 60 * MINUTE;
/** Distances of the marks on the axis of time, in minutes: the first of which there are few enough. */
const STEPS = [1, 2, 5, 15];
const MOST_MARKS = 5;
const LEAST_LAG = 10, LEAST_RATE = 1;
const SPARK = { width: 110, height: 24 };
/** Less than this is a speck in a row. */
const LEAST_SPARK = 2 * MINUTE;

/** The largest of some values of points, and at least this: a single message is no mountain. */
const largest = (points, names, least) =>
  points.reduce((most, point) => Math.max(most, ...names.map((name) => point[name] ?? 0)), least);

/** The path of one value of the points, and the area below it. */
function paths(points, name, x, y) {
  const runs = [];
  let run = null;
  for (const point of points) {
    if (point[name] === null) { run = null; continue; }
    if (!run) runs.push(run = []);
    run.push(`${x(point.at).toFixed(1)} ${y(point[name]).toFixed(1)}`);
  }
  const line = runs.map((each) => `M${each.join("L")}${each.length === 1 ? "h.1" : ""}`).join("");
  const area = runs.map((each) => `M${each[0].split(" ")[0]} ${y(0)}L${each.join("L")}V${y(0)}Z`).join("");
  return { line, area };
}

/** A chart of lags, or of rates: `lines` has the names of the points' values, and the words of each. */
export class Chart {
  #points = null;

  constructor(title, lines, { rates = false } = {}) {
    this.title = title;
    this.lines = lines;
    this.unit = rates ? "/s" : "";
    this.least = rates ? LEAST_RATE : LEAST_LAG;
    this.svg = draw("svg", { role: "img", class: "chart", "aria-label": `${title}: loading` });
    this.legend = make("span", { class: "lines soft" });
    this.element = make("div", {}, make("div", { class: "bar" }, make("h3", {}, title), this.legend), this.svg);
    // Its text must not shrink with the window (a phone that is turned).
    new ResizeObserver(() => this.show(this.#points)).observe(this.element);
  }

  show(points) {
    this.#points = points;
    const names = Object.keys(this.lines);
    const known = (points ?? []).filter((point) => names.some((name) => point[name] !== null));
    const width = Math.max(240, this.svg.clientWidth);
    set(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const words = names.map((name) => {
      const value = known.at(-1)?.[name] ?? null;
      return `${this.lines[name]} ${short(value)}${value === null ? "" : this.unit}`;
    });
    this.legend.replaceChildren(...names.length > 1 ? names.map((name, place) => make("span", { class: name }, words[place])) : []);
    if (known.length < 2) {
      set(this.svg, "aria-label", `${this.title}: ${points ? "measuring" : "loading"}`);
      return this.svg.replaceChildren(draw("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, points ? "measuring since now" : "Loading…"));
    }
    const first = known[0].at, last = known.at(-1).at, most = largest(known, names, this.least);
    const x = (at) => LEFT + (width - LEFT - RIGHT) * (at - first) / Math.max(1, last - first);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const text = (at, from, anchor, content) => draw("text", { x: at, y: from, "text-anchor": anchor }, content);
    set(this.svg, "aria-label", `${this.title}: ${words.join(", ")} now, at most ${short(most)}${this.unit}`);
    this.svg.replaceChildren(
      draw("path", { d: `M${LEFT} ${y(0)}H${width - RIGHT}M${LEFT} ${y(most)}H${width - RIGHT}`, class: "grid" }),
      ...marks(first, last).flatMap((at) => [draw("path", { d: `M${x(at)} ${y(0)}v4`, class: "grid" }),
        ...(x(at) < width - 70 ? [text(x(at), HEIGHT - 2, "middle", hour(at))] : [])]),
      ...names.flatMap((name) => {
        const { line, area } = paths(points, name, x, y);
        return [...(names.length === 1 ? [draw("path", { d: area, class: "area" })] : []), draw("path", { d: line, class: `line ${name}` })];
      }),
      text(LEFT - 6, y(most) + 4, "end", short(most)), text(LEFT - 6, y(0) + 4, "end", "0"),
      text(width - RIGHT, HEIGHT - 2, "end", "now"));
  }
}

const hour = (at) => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** Round times between two others. */
function marks(first, last) {
  const step = MINUTE * (STEPS.find((minutes) => (last - first) / MINUTE / minutes <= MOST_MARKS) ?? STEPS.at(-1));
  const found = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) found.push(at);
  return found;
}

/** The lag of the last hour, as a line in a row. */
export class Sparkline {
  constructor() {
    this.element = draw("svg", { role: "img", class: "chart spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}` });
  }

  show(points) {
    const known = points.filter((point) => point.lag !== null);
    const most = largest(known, ["lag"], LEAST_LAG);
    const end = known.at(-1)?.at ?? 0;
    const x = (at) => SPARK.width * (1 - (end - at) / HOUR);
    const y = (lag) => 1 + (SPARK.height - 2) * (1 - lag / most);
    const { line, area } = paths(points, "lag", x, y);
    set(this.element, "aria-label", known.length ? `lag of the last hour: at most ${short(most)}, now ${short(known.at(-1).lag)}` : "lag of the last hour: not known");
    this.element.replaceChildren(...known.length && end - known[0].at >= LEAST_SPARK ? [draw("path", { d: area, class: "area" }), draw("path", { d: line, class: "line lag" })] : []);
  }
}
