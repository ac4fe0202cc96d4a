/** Colours of consumers, and their shades by lag.
 *
 *  A consumer's hue comes from the order of binding. Cells carry its letter too, so colour is never
 *  the only sign. The text on a cell is black or white, whichever has the higher contrast: that is
 *  at least 4.5 to 1 on every shade.
 */

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Calls `draw` when the user changes between light and dark colours. */
export const onScheme = (draw) => dark.addEventListener("change", draw);

/** Hues that stay apart: steps of the golden angle. */
const hue = (place) => (255 + place * 137.508) % 360;

/** The ground and the ink of a consumer's colour; `shade` from 0 (no lag) to 1 (the most). */
export function shaded(place, shade) {
  const lightness = dark.matches ? 0.36 + 0.4 * shade : 0.9 - 0.4 * shade;
  const chroma = place === null ? 0 : 0.07 + 0.07 * shade;
  const rgb = fromOklch(lightness, chroma, place === null ? 0 : hue(place));
  return { ground: `rgb(${rgb.join(" ")})`, ink: inkOn(rgb) };
}

/** The plain colour of a consumer, for swatches and lines. */
export const plain = (place) => shaded(place, 0.7);

/** The scale of lags up to `most`: 0, and a step for each power of ten, at least up to 100. Each step
 *  is the least lag of its shade. */
export function lagScale(most) {
  const steps = [0, 1, 10, 100];
  while (steps.at(-1) * 10 <= most) steps.push(steps.at(-1) * 10);
  return steps;
}

/** The shade of a lag on a scale, from 0 to 1. */
export function shadeOf(lag, scale) {
  return Math.max(0, scale.findLastIndex((step) => (lag ?? 0) >= step)) / (scale.length - 1);
}

/** sRGB of a colour in OKLCH, where colours of one lightness look equally light; clipped. */
function fromOklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos(degrees * Math.PI / 180), b = chroma * Math.sin(degrees * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((value) => {
    const part = Math.min(1, Math.max(0, value));
    return Math.round(255 * (part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055));
  });
}

/** WCAG's relative luminance. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function inkOn(rgb) {
  const light = luminance(rgb);
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#fff" : "#000";
}
