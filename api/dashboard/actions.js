/** What administrators do: each with a preview of what will happen, and a confirmation.
 *
 *  A session only reads until it is unlocked (`unlocking.js`). So a dialog of a session that is not
 *  asks for its key.
 */

import { call, pathOf } from "./calls.js";
import { make } from "./dom.js";
import { wouldDo } from "./foreseeing.js";
import { learn, unlock, unlockedFor } from "./unlocking.js";
import { number, plural } from "./words.js";

/** A dialog that asks for values, shows a preview of them, and makes the call.
 *
 *  `fields`: inputs, by name. `preview(values, mayAsk)` answers lines of text, at once or later; a line
 *  that begins with "!" is a warning; `mayAsk`: whether the session may make the call by now. What has
 *  nothing to do answers `NOTHING(…)`. `act(values)` makes the call; the button is on after a preview of
 *  something to do, and, with `name`, once this name is typed. `needsKey`: whether who looks has a
 *  session, which has to be unlocked. */
export function ask({ title, button, fields = {}, name = null, preview, act, needsKey }) {
  const foreseen = make("ul", { class: "preview" });
  const problem = make("p", { class: "problem", role: "alert" });
  const key = make("input", { type: "password", autocomplete: "current-password", id: "unlock-key" });
  const unlocking = make("p", { class: "field" }, make("label", { for: "unlock-key" }, "Your key"), key,
    make("span", { class: "soft" }, "It unlocks this session for 10 minutes."));
  const typed = make("input", { id: "act-name", autocomplete: "off", oninput: () => permit() });
  const go = make("button", { class: "danger", disabled: "" }, button);
  let foreseeable = false;
  const mayAsk = () => !needsKey || unlockedFor() > 0;
  const permit = () => { unlocking.hidden = mayAsk(); key.required = !mayAsk(); go.disabled = !foreseeable || (name !== null && typed.value !== name); };
  const values = () => Object.fromEntries(Object.entries(fields).map(([name, input]) => [name,
    input.type === "number" ? input.valueAsNumber : input.type === "checkbox" ? input.checked : input.value]));
  let asked = 0;
  const foresee = async () => {
    const mine = asked += 1;
    foreseeable = false;
    permit();
    try {
      const lines = await preview(values(), mayAsk());
      if (mine !== asked) return;
      foreseeable = !lines.nothing;
      permit();
      foreseen.replaceChildren(...lines.map((line) => line.startsWith("!")
        ? make("li", { class: "warning" }, line.slice(1)) : make("li", {}, line)));
    } catch (error) {
      if (mine !== asked) return;
      foreseen.replaceChildren(make("li", { class: "warning" }, error.message));
      await relearn(error);
    }
  };
  // Another page of this browser may have locked the session.
  const relearn = async (error) => {
    if (error.code === "forbidden" && needsKey) await learn().catch(() => {});
    permit();
  };
  const fail = (error) => {
    problem.textContent = error.code ? error.message : "The service does not answer; nothing is known of what it did.";
    return relearn(error);
  };
  // Sent once, however often it is asked for meanwhile.
  let opening = null;
  const open = () => {
    if (mayAsk() || !key.value) return null;
    return opening ??= unlock(key.value).then(() => { key.value = problem.textContent = ""; }).finally(() => { opening = null; });
  };
  const form = make("form", { method: "dialog", onsubmit: async (submitted) => {
    submitted.preventDefault();
    if (go.disabled) return;
    problem.textContent = "";
    go.disabled = true;
    try {
      await open();
      await act(values());
      dialog.close();
    } catch (error) {
      await fail(error);
    }
    permit();
  } },
  make("h2", { id: "act-title" }, title),
  ...Object.entries(fields).map(([name, input]) => {
    input.id = `act-${name}`;
    input.oninput = foresee;
    return make("p", { class: "field" }, make("label", { for: input.id }, input.label), input);
  }),
  make("div", { role: "status" }, foreseen),
  name === null ? null : make("p", { class: "field" }, make("label", { for: "act-name" }, `Type the name ${name} to confirm`), typed),
  unlocking, problem,
  make("p", { class: "buttons" }, make("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  key.onchange = async () => {
    try {
      await open();
      foresee();
    } catch (error) {
      await fail(error);
    }
  };
  const dialog = make("dialog", { "aria-labelledby": "act-title", onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();
  foresee();
}

/** The lines of a preview after which there is nothing to do. */
export const NOTHING = (...lines) => Object.assign(lines, { nothing: true });

/** An input, or a select with `options`, and its label: a field of `ask`. */
export function labelled(label, attributes) {
  return Object.assign(make(attributes.options ? "select" : "input",
    Object.fromEntries(Object.entries(attributes).filter(([name]) => name !== "options")),
    ...(attributes.options ?? []).map(([value, text]) => make("option", { value }, text))), { label });
}

/** Changes the number of partitions. */
export function resize({ queue }, needsKey) {
  const path = pathOf(queue.name);
  ask({
    title: `Resize ${queue.name}`, button: "Resize", needsKey,
    fields: { count: labelled("Partitions", { type: "number", min: 1, max: 4096, value: queue.partition_count, required: "" }) },
    preview: ({ count }, mayAsk) => {
      if (!Number.isInteger(count) || count < 1) return NOTHING("!Give a whole number from 1 on.");
      if (count === queue.partition_count) return NOTHING("Nothing changes.");
      const said = [queue.ordered_resize
        ? "The order of each key is kept: a partition waits until the older messages of its keys are processed."
        : "!Keys move to other partitions: newer messages of a key may be processed before its older ones. Stop publishing first where that matters."];
      return wouldDo("PATCH", path, { content: { partition_count: count }, mayAsk, said });
    },
    act: ({ count }) => call("PATCH", path, { content: { partition_count: count } }),
  });
}

/** Rebalances without waiting for the end of the holddown, or for pairs. */
export function rebalance({ queue, status }, needsKey) {
  const path = pathOf(queue.name) + "/rebalance";
  ask({
    title: `Rebalance ${queue.name} now`, button: "Rebalance", needsKey,
    preview: (_, mayAsk) => {
      const inHolddown = status.holddown_until !== null;
      const said = [inHolddown ? "The holddown ends at once." : "No holddown is running.",
        `Each handoff takes at most ${number(queue.max_handoff_time)} s.`];
      return wouldDo("POST", path, { mayAsk, said, always: inHolddown });
    },
    act: () => call("POST", path),
  });
}

/** Takes all partitions from one consumer, in order. */
export function drain({ queue, flows, held: heldBy }, flow, needsKey) {
  const path = `${pathOf(queue.name)}/flows/${flow.flow_id}/drain`;
  ask({
    title: `Drain ${flow.client_name}`, button: "Drain", needsKey,
    preview: (_, mayAsk) => {
      const mine = heldBy.get(flow.flow_id).length;
      const others = flows.filter((other) => other !== flow && !other.draining);
      const said = [others.length
        ? `Its ${plural(mine, "partition")} go to ${plural(others.length, "other consumer")} after the holddown of ${number(queue.rebalance_delay)} s, each after its messages in work are committed.`
        : "!No other consumer is bound: it finishes its work and leaves, and its partitions wait for the next one.",
      "It then ends. This cannot be undone."];
      return wouldDo("POST", path, { content: {}, mayAsk, said, always: true });
    },
    act: () => call("POST", path, { content: {} }),
  });
}

/** How many messages would be read again, in words; null: not known. */
export const readAgain = (count) => count === null ? "The log does not say how many messages that concerns."
  : count ? `At most ${plural(count, "message")} would be read again.` : "No message would be read again.";

/** Sets the positions from which consumers continue. */
export function positions({ queue }, needsKey) {
  const path = pathOf(queue.name) + "/positions";
  const to = ({ where, time }) => ({ to: where === "time" ? new Date(time).toISOString() : where });
  const time = labelled("Time", { type: "datetime-local", step: 1 });
  ask({
    title: `Set positions of ${queue.name}`, button: "Set positions", needsKey, name: queue.name,
    fields: {
      where: labelled("Continue from", { options: [["", "choose a place"], ["latest", "the end of the log"], ["earliest", "the first message"], ["time", "a time"]] }),
      time,
    },
    preview: async (values, mayAsk) => {
      time.parentElement.hidden = values.where !== "time";
      if (!values.where) return NOTHING("Choose where consumers continue.");
      if (values.where === "time" && !values.time) return NOTHING("Choose a time.");
      if (!mayAsk) return NOTHING("Give the key to see what would be read again or skipped.");
      const would = await call("POST", path + "?dry_run=true", { content: to(values) });
      const known = would.partitions.filter((each) => each.read_again !== null), all = known.length === would.partitions.length;
      const sum = (name) => known.reduce((total, each) => total + each[name], 0), skipped = sum("skipped");
      return [`${plural(would.partitions.length, "partition")}: their owners continue under new epochs.`,
        readAgain(all ? sum("read_again") : null),
        ...(skipped ? [`!${all ? "At" : "Of the other partitions at"} most ${plural(skipped, "message")} would never be read.`] : [])];
    },
    act: (values) => call("POST", path, { content: to(values) }),
  });
}
