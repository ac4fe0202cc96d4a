/** What administrators do to queues as such and to single partitions: mirror, delete, split, merge,
 *  and one partition's position. */

import { ask, labelled, NOTHING, readAgain } from "./actions.js";
import { call, pathOf } from "./calls.js";
import { wouldDo } from "./foreseeing.js";
import { plural } from "./words.js";

/** Mirrors the positions of a queue on Kafka into a consumer group, or no longer. */
export function mirror({ queue }, needsKey) {
  const { mirror_group: now } = queue;
  ask({
    title: `Mirror the positions of ${queue.name}`, button: "Change", needsKey,
    fields: { group: labelled("Consumer group of Kafka (empty: none)",
      { maxlength: 249, value: now ?? `counterpoise.${queue.name}`, autocomplete: "off", spellcheck: "false" }) },
    preview: ({ group }) => {
      if (group === (now ?? "")) return NOTHING(now === null ? "The positions are not mirrored." : `The positions are mirrored into the group ${now}.`);
      const left = now === null ? [] : [`The offsets of the group ${now} stay as they are now.`];
      if (!group) return ["The positions are not mirrored any more.", ...left];
      return [`The positions are written as offsets of the group ${group}, for tools that watch groups. No consumer reads them.`, ...left,
        "!Offsets that the group has in the topic are replaced. A group with members is left alone."];
    },
    act: ({ group }) => call("PATCH", pathOf(queue.name), { content: { mirror_group: group || null } }),
  });
}

/** Deletes a queue, once its name is typed. */
export function remove({ queue, flows }, needsKey) {
  ask({
    title: `Delete ${queue.name}`, button: "Delete", needsKey, name: queue.name,
    preview: (_, mayAsk) => {
      if (flows.length) return NOTHING(`!${plural(flows.length, "consumer")} bound: stop or drain first.`);
      const said = ["Its positions and its history are deleted, and the log that it owns. This cannot be undone."];
      return wouldDo("DELETE", pathOf(queue.name), { mayAsk, said, always: true });
    },
    act: async () => {
      await call("DELETE", pathOf(queue.name));
      location.hash = "";
    },
  });
}

const pathOfPartition = (queue, each) => `${pathOf(queue.name)}/partitions/${each.partition}`;

/** Splits the range of a partition. */
export function split({ queue }, each, needsKey) {
  ask({
    title: `Split partition ${each.partition}`, button: "Split", needsKey,
    fields: { at: labelled("Where", { options: [["middle", "in the middle of its range"], ["load", "between the keys of the last messages"]] }) },
    preview: (content, mayAsk) => wouldDo("POST", `${pathOfPartition(queue, each)}/split`, { content, mayAsk, said: [
      "It takes no more messages. Two new partitions share its keys, and are read once it is read to its end.",
      "The order of each key is kept. A merge of the two brings its range back."] }),
    act: ({ at }) => call("POST", `${pathOfPartition(queue, each)}/split`, { content: { at } }),
  });
}

/** Merges a partition with one whose range lies beside its own. */
export function merge({ queue, partitions }, each, needsKey) {
  ask({
    title: `Merge partition ${each.partition}`, button: "Merge", needsKey,
    fields: { other: labelled("With partition", { type: "number", min: 0, required: "" }) },
    preview: ({ other }, mayAsk) => {
      const found = partitions.find((one) => one.partition === other);
      if (!found || found === each) return NOTHING("Give the number of the partition whose range lies beside.");
      const said = [`Partitions ${each.partition} (${each.key}) and ${other} (${found.key}) take no more messages.`,
        "One new partition has the keys of both, and is read once both are read to their ends."];
      return wouldDo("POST", `${pathOfPartition(queue, each)}/merge`, { content: { with: other }, mayAsk, said });
    },
    act: ({ other }) => call("POST", `${pathOfPartition(queue, each)}/merge`, { content: { with: other } }),
  });
}

/** What this position of one partition would change, in lines of a preview. */
export async function foreseen(queue, partition, at) {
  const content = { positions: { [partition]: at } };
  const { partitions: [would] } = await call("POST", pathOf(queue.name) + "/positions?dry_run=true", { content });
  return ["Its owner continues under a new epoch.", readAgain(would.read_again),
    ...(would.skipped ? [`!At most ${plural(would.skipped, "message")} would never be read.`] : [])];
}

/** Sets the position of one partition. */
export function position({ queue }, each, needsKey) {
  const path = pathOf(queue.name) + "/positions";
  const content = ({ at }) => ({ positions: { [each.partition]: at.trim() } });
  ask({
    title: `Set the position of partition ${each.partition}`, button: "Set position", needsKey,
    fields: { at: labelled("The next message to read", { autocomplete: "off", spellcheck: "false" }) },
    preview: async (values, mayAsk) => {
      const now = `The position is ${each.position ?? "not set"}, the end of the log ${each.end ?? "not known"}.`;
      if (!values.at.trim() || values.at.trim() === each.position) return NOTHING(now);
      if (!mayAsk) return NOTHING(now, "Give the key to see what would be read again or skipped.");
      return [now, ...await foreseen(queue, each.partition, values.at.trim())];
    },
    act: (values) => call("POST", path, { content: content(values) }),
  });
}
