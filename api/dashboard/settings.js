/** The settings of a queue: the dialogs that create a queue and change one.
 *
 *  SETTINGS has those that both know, each with its field and how its value reads. People give hours and GiB, the
 *  API takes seconds and bytes. What a queue does not have (null in the API) has no field: a retention without a
 *  log of its own. The number of partitions and a mirror have dialogs of their own.
 */

import { ask, labelled, NOTHING } from "./actions.js";
import { call, pathOf } from "./calls.js";
import { wouldDo } from "./foreseeing.js";
import { duration, number, plural } from "./words.js";

const NAME = /^[A-Za-z0-9._-]{1,200}$/;
const HOUR = 3600, GIB = 2 ** 30;
/** How long an owner may take to finish: a Spark application releases a partition between two micro-batches. */
const HANDOFF_SECONDS = { python: 3, spark: 30 };

const seconds = (label, most) => ({ label, attributes: { type: "number", min: 0, max: most, step: "any", required: "" }, said: duration });
const kept = (label, unit, most, said) => ({ label, unit, attributes: { type: "number", min: 0, max: most / unit, step: "any", required: "" }, said });

/** By the names of the API. `unit`: what one of the field is there. `empty`: an empty field means null. `whole`: it has
 *  no fraction. */
const SETTINGS = {
  access_type: { label: "Partitions belong to", attributes: { options: [["non_exclusive", "all consumers, shared"], ["exclusive", "one consumer"]] },
    said: (value) => value === "exclusive" ? "one consumer owns all" : "shared" },
  rebalance_delay: seconds("Holddown before a rebalance (s)", 3600),
  max_handoff_time: seconds("An owner may take to finish (s)", 3600),
  max_warmup_time: seconds("A successor may warm up (s)", 86400),
  max_concurrent_handoffs: { label: "Handoffs at the same time (empty: all)", empty: true, whole: true, attributes: { type: "number", min: 1, max: 4096 },
    said: (value) => value === null ? "all" : number(value) },
  max_weight: { label: "Largest weight of a consumer (1: all are equal)", whole: true, attributes: { type: "number", min: 1, max: 1000, required: "" }, said: number },
  start: { label: "Partitions without a position begin", attributes: { options: [["earliest", "at the first message"], ["latest", "at the end"]] }, said: String },
  ordered_resize: { label: "Keep the order of each key across resizes", attributes: { type: "checkbox" }, said: (value) => value ? "kept" : "not kept" },
  retention_seconds: kept("Keep processed messages (hours)", HOUR, 315360000, duration),
  retention_bytes: kept("and at most (GiB)", GIB, 2 ** 50, (value) => `${number(Math.round(value / GIB * 1000) / 1000)} GiB`),
};
const WARNINGS = {
  access_type: (value) => value === "exclusive" ? ["!One consumer gets every partition; the others wait as standbys."] : [],
  ordered_resize: (value) => value ? [] : ["!A later resize may process newer messages of a key before its older ones."],
};

/** A field with a setting's value as the API has it. */
function field(name, value) {
  const { label, attributes, unit = 1 } = SETTINGS[name];
  const input = labelled(label, attributes);
  if (attributes.type === "checkbox") input.checked = value;
  else input.value = value === null ? "" : typeof value === "number" ? value / unit : value;
  return input;
}

/** A field's value (`ask`) as the API takes it; undefined for one that is no such setting. */
export function given(name, value) {
  const { attributes, unit, empty, whole } = SETTINGS[name];
  if (attributes.type !== "number") return value;
  if (Number.isNaN(value)) return empty ? null : undefined;
  const { min, max } = attributes;
  if (value < min || value > max || (whole && !Number.isInteger(value))) return undefined;
  return unit === GIB ? Math.round(value * unit) : value * (unit ?? 1);
}

/** What these values would change in a queue: the `content` of the call, and `lines` of the preview; `wrong`, the
 *  label of a field without sense. */
export function changesOf(queue, values) {
  const content = {}, lines = [], warnings = [];
  for (const [name, value] of Object.entries(values)) {
    const wanted = given(name, value);
    if (wanted === undefined) return { content: {}, lines: [], wrong: SETTINGS[name].label };
    // A value that was only shown in another unit is as it was.
    if (wanted === queue[name] || wanted === given(name, queue[name] / (SETTINGS[name].unit ?? 1))) continue;
    content[name] = wanted;
    lines.push(`${SETTINGS[name].label}: ${SETTINGS[name].said(queue[name])} → ${SETTINGS[name].said(wanted)}.`);
    warnings.push(...WARNINGS[name]?.(wanted) ?? []);
  }
  return { content, lines: [...lines, ...warnings] };
}

/** Changes the settings of a queue. */
export function change({ queue }, needsKey) {
  // A dynamic queue keeps the order in another way, and only a creation gives that.
  const names = Object.keys(SETTINGS).filter((name) => name === "max_concurrent_handoffs" || queue[name] !== null)
    .filter((name) => name !== "ordered_resize" || queue.partitioning === "fixed");
  ask({
    title: `Settings of ${queue.name}`, button: "Change", needsKey,
    fields: Object.fromEntries(names.map((name) => [name, field(name, queue[name])])),
    preview: (values, mayAsk) => {
      const { content, lines, wrong } = changesOf(queue, values);
      if (wrong) return NOTHING(`!This is out of range: ${wrong}.`);
      if (!lines.length) return NOTHING("Nothing changes.");
      const said = [...lines, "It applies to what begins after it."];
      return wouldDo("PATCH", pathOf(queue.name), { content, mayAsk, said });
    },
    act: (values) => call("PATCH", pathOf(queue.name), { content: changesOf(queue, values).content }),
  });
}

/** What the values of the dialog mean as a new queue: the `content` of the call, and the `lines` of the preview;
 *  `nothing`, if there is nothing to create yet. */
export function creationOf({ name, count, consumers, log, ordered, hours, gib }) {
  const nothing = (line) => ({ nothing: true, lines: [line] });
  if (!NAME.test(name)) return nothing("A name has 1 to 200 letters, digits, dots, hyphens and underscores.");
  const where = log.trim(), own = where === "" || where === `builtin:${name}`;
  const none = Number.isNaN(count);
  if (none ? own : !Number.isInteger(count) || count < 1) return nothing("!Give a whole number of partitions from 1 on.");
  const content = { name, ...(none ? {} : { partition_count: count }), max_handoff_time: HANDOFF_SECONDS[consumers] };
  if (where) content.log = where;
  // Of another log the service knows whether it can; a queue that shares one takes that queue's.
  if (own || !ordered) content.ordered_resize = ordered;
  const lines = [`${none ? "The partitions that the log has" : plural(count, "partition")} on ${own ? "the built-in log" : where}, without an owner until a consumer binds.`,
    `An owner may take ${duration(content.max_handoff_time)} to finish before a partition moves.`];
  if (own) {
    for (const [setting, value] of [["retention_seconds", hours], ["retention_bytes", gib]]) {
      const wanted = given(setting, value);
      if (wanted === undefined) return nothing(`!This is out of range: ${SETTINGS[setting].label}.`);
      content[setting] = wanted;
    }
    lines.push(`Messages that all have processed stay for ${duration(content.retention_seconds)}, and at most ${SETTINGS.retention_bytes.said(content.retention_bytes)}.`);
  } else lines.push(...(none ? [] : ["Without a number of partitions, it has those that the log has."]), "Credentials do not belong into an address: the service and the consumers have their own.");
  if (!ordered) lines.push(...WARNINGS.ordered_resize(false));
  return { content, lines: [...lines, "Dynamic partitions, aligned logs and offsets of Kafka's groups: counterpoise queues create --help"] };
}

/** Creates a queue. */
export function create(needsKey) {
  const hours = field("retention_seconds", 24 * HOUR), gib = field("retention_bytes", GIB);
  const count = labelled("Partitions", { type: "number", min: 1, max: 4096, value: 8 });
  ask({
    title: "Create a queue", button: "Create", needsKey,
    fields: {
      name: labelled("Name", { required: "", autocomplete: "off", spellcheck: "false" }),
      count,
      consumers: labelled("For", { options: [["python", "Python consumers"], ["spark", "Spark applications"]] }),
      log: labelled("Log (empty: built in)", { autocomplete: "off", spellcheck: "false", placeholder: "kafka://host:9092/TOPIC" }),
      ordered: labelled(SETTINGS.ordered_resize.label, { type: "checkbox", checked: "" }),
      hours, gib,
    },
    preview: (values) => {
      const where = values.log.trim();
      for (const one of [hours, gib]) one.parentElement.hidden = where !== "" && where !== `builtin:${values.name}`;
      const { lines, nothing } = creationOf(values);
      return nothing ? NOTHING(...lines) : lines;
    },
    act: (values) => call("POST", "/queues", { content: creationOf(values).content }),
  });
}
