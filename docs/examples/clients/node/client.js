// Counterpoise from JavaScript: consumes and publishes with HTTP and Postgres alone.
//
//   node client.js consume URL QUEUE INSTANCE        prints each message, then commits; SIGTERM drains
//   node client.js publish URL QUEUE PUBLISHER       appends lines "KEY<tab>VALUE" of its input
//
// A key is taken from COUNTERPOISE_TOKEN. The steps are those of docs/protocol.md, *Life of a
// client*, the statements those of docs/log-sql.md. For queues with fixed partitions.
import { randomUUID } from "node:crypto";
import { writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const BATCH = 100;
const BOUNDS = `SELECT l.resize, p.partition, p.first_position, p.next_position, p.discarded_position, p.cut
  FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
    ON p.log_id = l.log_id AND p.partition = ANY ($2::integer[]) WHERE l.name = $1`;
const READ = `SELECT position, key, value FROM counterpoise_log.messages
  WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = $1)
    AND partition = $2 AND position >= $3 AND position < $4 ORDER BY position LIMIT $5`;
const APPEND = `SELECT appended, watched FROM counterpoise_log.append($1, $2, $3, $4,
  $5::integer[], $6::bytea[], $7::text[], $8::text[], $9::timestamptz[])`;

class BindAgain extends Error {}

const [mode, url, queue, name] = process.argv.slice(2);
const base = `${url}/v1/queues/${queue}`;
const key = process.env.COUNTERPOISE_TOKEN;
let token = key; // a flow's own, as soon as it is bound
const LEASE = Number(process.env.LEASE_SECONDS ?? 10); // how long a consumer may be silent, in seconds

// Repeats a call that was not answered, or not now. Answers the body, null if there is none. It waits
// no longer than a lease: a machine that dies ends no connection, and not every `fetch` notices an end.
async function call(method, path, body) {
  for (;;) {
    const headers = { "content-type": "application/json" };
    if (token) headers.authorization = `Bearer ${token}`;
    let answer, text, failure;
    const late = new AbortController();
    // Unlike AbortSignal.timeout it keeps Node.js from ending amid the call.
    const timer = setTimeout(() => late.abort(new Error("no answer")), 1000 * LEASE);
    try {
      answer = await fetch(base + path, { method, headers, body: body && JSON.stringify(body), signal: late.signal });
      text = await answer.text();
      if (answer.status >= 500 || [408, 429].includes(answer.status)) failure = answer.status;
    } catch (error) {
      failure = error.cause?.code || error.cause?.message || error.message;
    } finally {
      clearTimeout(timer);
    }
    if (failure) {
      console.error(`${method} ${path}: ${failure}; trying again`);
      await sleep(1000 * (Number(answer?.headers.get("retry-after")) || 1));
      continue;
    }
    if (answer.ok) return answer.status === 204 ? null : JSON.parse(text);
    const content = answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : {};
    const reason = content.reason ?? content.code;
    // The token of a flow that is over is known to no call without the flow in its path.
    if (reason === "unauthorized" && token !== key) throw new BindAgain(reason);
    if (["lease_expired", "restored", "flow_not_found", "overtaken"].includes(reason)) throw new BindAgain(reason);
    throw new Error(`${method} ${path}: ${answer.status} ${content.detail ?? ""}`);
  }
}

// The log, with credentials that are renewed before they end and when they are refused.
class Log {
  constructor(purpose) { this.purpose = purpose; this.ends = 0; }

  async query(statement, parameters) {
    for (let attempt = 1; ; attempt++) {
      try {
        if (Date.now() > this.ends - 30000) await this.connect(attempt > 2);
        return (await this.client.query(statement, parameters)).rows;
      } catch (error) {
        if (error.code?.startsWith("CP") || error instanceof BindAgain) throw error;
        if (attempt === 10) throw error;
        this.ends = 0;
        await sleep(100 * attempt);
      }
    }
  }

  // Called before the first query: the answer says the log's name.
  async connect(refused = false) {
    await this.close();
    const answer = await call("POST", "/log-access", { purpose: this.purpose, refused });
    this.name = answer.log.replace("builtin:", "");
    this.count = answer.partition_count;
    if (!answer.access) throw new Error("the service gives no credentials for this log");
    this.client = new pg.Client({ connectionString: answer.access.url });
    this.client.on("error", () => { this.ends = 0; });
    await this.client.connect();
    this.ends = answer.access.expires_at ? Date.parse(answer.access.expires_at) : Infinity;
  }

  async close() { await this.client?.end().catch(() => {}); }
}

const smaller = (a, b) => (a < b ? a : b);

// How far a partition may be read: to its end, or to a cut that others have not reached.
// The view of a queue without ordered resizes has no `resize`.
function limit(partition, view, row, resize) {
  const end = BigInt(row?.next_position ?? 0);
  if (partition.waits_for?.length) return smaller(end, BigInt(partition.cut));
  if (view.resize != null && resize > BigInt(view.resize)) return smaller(end, BigInt(row?.cut ?? 0));
  return end;
}

async function consume() {
  const binder = randomUUID();
  let stopping = false;
  process.on("SIGTERM", () => { stopping = true; });
  // A bind that arrives late ends no later flow of this process.
  for (let attempt = 1; ; attempt++) {
    token = key;
    const log = new Log("read");
    try {
      const bound = await call("POST", "/flows", { client_name: name, instance_id: name,
        lease_seconds: LEASE, binder, attempt });
      token = bound.flow_token;
      await log.query("SELECT 1"); // it has a name now
      return await follow(`/flows/${bound.flow_id}`, bound.update, log, () => stopping);
    } catch (error) {
      if (!(error instanceof BindAgain)) throw error;
      if (stopping) return;
    } finally {
      await log.close();
    }
  }
}

// One flow until its end. All that was read in a round is committed in it, so a partition that
// is revoked in the next one has no messages in hand.
async function follow(flow, view, log, isStopping) {
  let seq = 0, idle = false, looks = 0, leaving = false;
  const held = new Map(); // partition -> {epoch, position}: position is null before the first read
  const settle = async (what, partitions) => {
    if (partitions.length === 0) return;
    const { results, update } = await call("POST", `${flow}/${what}`, { seq: ++seq, partitions });
    results.forEach(({ partition, outcome }, nth) => {
      if (outcome === "ok") writeSync(1, `${what} ${partition} ${partitions[nth].position}\n`);
    });
    if (update) view = update;
  };
  for (;;) {
    view = (await call("GET", `${flow}/updates?after=${view.revision}&wait=${idle ? 0.5 : 0}`)) ?? view;
    if (isStopping() && !view.draining) view = await call("POST", `${flow}/drain`, {});
    if (view.draining && !view.active) break;
    if (view.draining && ++looks % 5 === 0) leaving = (await call("GET", "/rebalance")).status === "Ready";
    const mine = view.partitions.filter((one) => one.state !== "warming");
    for (const number of held.keys())
      if (!mine.some((one) => one.partition === number)) held.delete(number);
    const rows = await log.query(BOUNDS, [log.name, mine.map((one) => one.partition)]);
    if (rows.length === 0) throw new Error("the log is gone");
    const commits = [], releases = [];
    idle = true;
    for (const one of mine) {
      const row = rows.find((found) => found.partition === one.partition);
      let known = held.get(one.partition);
      if (known?.epoch !== one.epoch) {
        known = { epoch: one.epoch, position: BigInt(one.position ?? row?.first_position ?? 0) };
        held.set(one.partition, known);
      }
      const item = () => ({ partition: one.partition, epoch: one.epoch, position: `${known.position}`,
        reached_cut: one.cut != null && !one.reached_cut && known.position >= BigInt(one.cut) });
      if (one.state === "revoking" || leaving) { releases.push(item()); continue; }
      if (known.position > BigInt(row?.next_position ?? 0))
        throw new Error(`the log ends at ${row?.next_position ?? 0} of partition ${one.partition}, before position ${known.position}`);
      const end = limit(one, view, row, BigInt(rows[0].resize));
      if (one.state === "retiring" && known.position >= BigInt(row?.next_position ?? 0)) {
        releases.push({ ...item(), finished: true });
        continue;
      }
      const reads = known.position < end && !one.paused;
      const messages = reads ? await log.query(READ, [log.name, one.partition, `${known.position}`, `${end}`, BATCH]) : [];
      if (reads && BigInt(messages[0]?.position ?? -1) !== known.position) {
        const [now] = await log.query(BOUNDS, [log.name, [one.partition]]);
        if (!(known.position < BigInt(now?.discarded_position ?? 0)))
          throw new Error(`partition ${one.partition} lacks position ${known.position}`);
        known.position = BigInt(now.discarded_position); // an administrator has discarded what was before
        commits.push(item());
        continue;
      }
      for (const { position, key, value } of messages) {
        writeSync(1, `message ${one.partition} ${position} ${key} ${value}\n`); // the work
        known.position = BigInt(position) + 1n;
      }
      if (messages.length > 0) idle = false;
      if (messages.length > 0 || item().reached_cut) commits.push(item());
    }
    await settle("commit", commits);
    await settle("release", releases);
    if (leaving) break;
  }
  await call("DELETE", flow);
}

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

async function publish() {
  const log = new Log("publish");
  let input = "";
  for await (const chunk of process.stdin.setEncoding("utf8")) input += chunk;
  const lines = input.split(/\r?\n/);
  if (lines.at(-1) === "") lines.pop();
  await log.query("SELECT 1"); // it has a name now
  let next = BigInt((await log.query("SELECT counterpoise_log.next_sequence($1, $2) AS next",
    [log.name, name]))[0].next);
  for (let from = 0; from < lines.length; from += BATCH) {
    const batch = lines.slice(from, from + BATCH).map((line) => line.split("\t"));
    const keys = batch.map(([key]) => key), values = batch.map(([, ...value]) => Buffer.from(value.join("\t")));
    const append = () => log.query(APPEND, [log.name, log.count, name, `${next}`,
      keys.map((key) => crc32(Buffer.from(key)) % log.count), values, keys, null, null]).catch((error) => {
      if (error.code !== "CP001") throw error;
      log.count = Number(error.detail); // resized meanwhile: route again, with the same numbers
      return append();
    });
    const [{ watched }] = await append();
    next += BigInt(batch.length);
    if (watched) await log.query("SELECT counterpoise_log.wake($1, $2::integer[])", [log.name, watched]);
  }
  await log.close();
}

const run = { consume, publish }[mode];
if (process.argv.length !== 6 || !run) {
  console.error("usage: node client.js consume|publish URL QUEUE NAME");
  process.exit(2);
}
await run();
