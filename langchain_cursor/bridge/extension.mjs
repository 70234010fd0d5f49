// Starts the bridge of cursor-sdk with what ChatCursor needs and Python's SDK has no words for:
// a store in memory for each agent, the agent's own system prompt, an executor that is kept warm
// without a model call, no hidden retries, one key exchange and one model catalog where the SDK
// fetches many, and an end as soon as the parent process has gone.
//
// It uses only what the wheel's `@cursor/sdk` exports. It writes Node's compile cache, and what else
// it writes lies in the scratch directory.

import { randomUUID } from "node:crypto";
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { enableCompileCache, flushCompileCache } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// The entry among an agent's options (`agents`, a map that reaches the bridge unchanged) that
// carries what is wanted of this agent. It is taken out again before the SDK sees the options.
const MARK = "langchain-cursor";

function take(name) {
  const value = process.env[name];
  delete process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}

const root = take("LANGCHAIN_CURSOR_BRIDGE_ROOT");
const scratch = take("LANGCHAIN_CURSOR_SCRATCH");
const parent = Number(take("LANGCHAIN_CURSOR_PARENT"));
const compiled = process.env.LANGCHAIN_CURSOR_COMPILE_CACHE;
delete process.env.LANGCHAIN_CURSOR_COMPILE_CACHE;
// 0.88 to 0.71 s of start-up with Node 24; where the directory cannot be written, nothing happens.
if (compiled) enableCompileCache(compiled);

endWithParent();
const catalog = handOverCatalog();
const exchanges = shareRequests();
const sdk = await load("node_modules/@cursor/sdk/dist/esm/index.js");
const platform = await sdk.createAgentPlatform({ localStore: memoryStore() });
if (typeof platform.prewarmLocalWorkspace !== "function") {
  throw new Error("this version of @cursor/sdk cannot prewarm an executor");
}
replaceCreate();
const { version } = JSON.parse(
  readFileSync(join(root, "node_modules/@cursor/sdk/package.json"), "utf8"),
);
process.stderr.write(`langchain-cursor-extension ready ${JSON.stringify({ sdk: version })}\n`);
await load("dist/bin/cursor-sdk-bridge.js");
// Node writes it at a clean exit, and a bridge is killed.
if (compiled) setTimeout(flushCompileCache, 1000).unref();

function load(path) {
  return import(pathToFileURL(join(root, path)).href);
}

// On POSIX the parent is dead when this process has another parent; the end of stdin tells at
// once, but a process forked off the parent may hold the other end of that pipe open. On Windows
// a parent's id stays the same, and the end of stdin is the only sign.
function endWithParent() {
  const orphaned = () => process.platform !== "win32" && process.ppid !== parent;
  const leave = () => {
    if (orphaned()) rmSync(scratch, { recursive: true, force: true });
    process.exit(0);
  };
  // The kernel closes a dying parent's pipes shortly before it gives its children away.
  process.stdin.on("close", () => setTimeout(leave, 100));
  process.stdin.on("error", () => {});
  process.stdin.resume();
  setInterval(() => orphaned() && leave(), 1000).unref();
}

function replaceCreate() {
  const create = sdk.Agent.create.bind(sdk.Agent);
  let created = 0;
  sdk.Agent.create = async (options) => {
    const { [MARK]: mark, ...agents } = options?.agents ?? {};
    if (mark === undefined) return create(options);
    const wish = JSON.parse(mark.prompt);
    if (created++ % 20 === 0) {
      process.stderr.write(`langchain-cursor-extension memory ${process.memoryUsage.rss()}\n`);
    }
    if (wish.forgetKey) exchanges.clear();
    const own = {
      ...options,
      // `enableAgentRetries` is part of the executor's key: the same for agents and leases.
      local: { ...options.local, store: memoryStore(), enableAgentRetries: false },
    };
    if (Object.keys(agents).length > 0) own.agents = agents;
    else delete own.agents;
    if (wish.systemPrompt !== undefined) own.systemPrompt = wish.systemPrompt;
    if (wish.prewarm) return lease(own);
    const old = catalog.held();
    try {
      return await create(own);
    } catch (error) {
      // The model may be newer than the catalog: fetch it once more before failing.
      if (!old || !String(error?.message).startsWith("Cannot use this model")) throw error;
      catalog.forget();
      return create(own);
    }
  };
}

// Every transport of the SDK exchanges the API key for itself, up to five times in a row before the
// first answer, and every agent with a store of its own fetches the model catalog. Of each request
// one runs at a time, and all who ask share its answer. The success of an exchange serves for a
// minute, far within the life of what it brings, in this process's memory alone; failures are never
// kept. A catalog is handed to the SDK for all agents to come.
function shareRequests() {
  const plain = globalThis.fetch;
  const kept = new Map();
  globalThis.fetch = (input, init) => {
    const url = typeof input === "string" || input instanceof URL ? String(input) : input?.url;
    const asked = { method: "GET", headers: input?.headers, ...init };
    if (input?.method) asked.method = init?.method ?? input.method;
    const path = URL.canParse(url) ? new URL(url).pathname : "";
    const exchange = asked.method === "POST" && path.endsWith("/auth/exchange_user_api_key");
    const models = asked.method === "GET" && path.endsWith("/v1/models");
    if (!exchange && !models) return plain(input, init);
    const key = `${url} ${new Headers(asked.headers).get("authorization")}`;
    if (!kept.has(key)) {
      // Without the first caller's signal: its end must not be the end of the others.
      const answer = plain(url, { ...init, ...asked, signal: AbortSignal.timeout(30_000) })
        .then(async (response) => {
          const { ok, status, statusText, headers } = response;
          const body = await response.text();
          if (models && ok) catalog.learn(body);
          return { ok, body, status, statusText, headers };
        });
      kept.set(key, answer);
      const forget = () => kept.get(key) === answer && kept.delete(key);
      answer.then(
        ({ ok }) => (ok && exchange ? setTimeout(forget, 60_000).unref() : forget()),
        forget,
      );
    }
    return kept.get(key).then(({ body, status, statusText, headers }) => {
      const own = new Headers(headers);
      // The body is no longer as it travelled.
      for (const name of ["content-encoding", "content-length"]) own.delete(name);
      return new Response(body, { status, statusText, headers: own });
    });
  };
  return kept;
}

// The SDK checks an agent's model against the catalog in this variable instead of fetching one. One
// that the user has set stays untouched. Python keeps what is fetched for the next bridge.
function handOverCatalog() {
  const name = "CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON";
  const theirs = Boolean(process.env[name]?.trim());
  const file = join(scratch, "catalog.json");
  const hold = (body) => {
    // The environment goes on to child processes, where a variable has its limits (128 KB on
    // Linux, 32 KB on Windows); and from there the SDK drops variants without a name.
    const limit = process.platform === "win32" ? 30_000 : 120_000;
    const { items = [] } = JSON.parse(body);
    const whole = items.every((item) => (item.variants ?? []).every(({ displayName }) => displayName));
    if (!theirs && whole && Buffer.byteLength(body) < limit) process.env[name] = body;
  };
  const first = process.env.LANGCHAIN_CURSOR_CATALOG;
  delete process.env.LANGCHAIN_CURSOR_CATALOG;
  if (first) hold(`{"items":${readFileSync(first, "utf8")}}`);
  return {
    learn(body) {
      try {
        if (!Array.isArray(JSON.parse(body).items)) return;
        writeFileSync(`${file}.new`, body, { mode: 0o600 });
        renameSync(`${file}.new`, file);
      } catch {
        return;
      }
      hold(body);
      process.stderr.write("langchain-cursor-extension catalog\n");
    },
    // With a catalog at hand the first call after a prewarm need not fetch one.
    async ensure(apiKey) {
      if (!(name in process.env)) await sdk.Cursor.models.list({ apiKey }).catch(() => {});
    },
    held: () => !theirs && name in process.env,
    forget: () => delete process.env[name],
  };
}

// To the bridge a lease is an agent that is only ever closed.
async function lease(options) {
  const [release] = await Promise.all([
    platform.prewarmLocalWorkspace(options),
    catalog.ensure(options.apiKey),
  ]);
  return {
    agentId: `lease-${randomUUID()}`,
    model: options.model,
    close() {},
    [Symbol.asyncDispose]: release,
  };
}

// A store that lives and dies with its agent: nothing reaches the disk, and reading the events
// after an offset costs the events read, not all of them.
function memoryStore() {
  const agents = new Map();
  const runs = new Map();
  const events = new Map();
  const blobs = new Map();
  const wanted = (ids, id) => !ids?.length || ids.includes(id);
  return sdk.composeLocalAgentStore({
    agents: {
      get: async ({ agentId }) => agents.get(agentId) ?? null,
      create: async ({ agent }) => (agents.set(agent.agentId, agent), agent),
      update: async ({ agent }) => (agents.set(agent.agentId, agent), agent),
      delete: async ({ filter }) => {
        for (const [id, agent] of agents) {
          if (wanted(filter.agentIds, id) && (!filter.cwd || filter.cwd === agent.cwd)) {
            agents.delete(id);
          }
        }
      },
      list: async (input) => sdk.paginateAgentDocuments([...agents.values()], input?.filter),
    },
    runs: {
      get: async ({ runId }) => runs.get(runId) ?? null,
      create: async ({ run }) => (runs.set(run.runId, run), run),
      update: async ({ run }) => (runs.set(run.runId, run), run),
      delete: async ({ filter }) => {
        for (const [id, run] of runs) {
          if (wanted(filter.agentIds, run.agentId) && wanted(filter.runIds, id)) runs.delete(id);
        }
      },
      list: async (input) => {
        const filter = input?.filter;
        const found = [...runs.values()].filter(
          (run) => wanted(filter?.agentIds, run.agentId) && wanted(filter?.runIds, run.runId),
        );
        return sdk.paginateRunDocuments(found, filter);
      },
    },
    runEvents: {
      append: async (input) => {
        const { runId, eventType, payload, payloadRef, idempotencyKey } = input;
        const log = events.get(runId) ?? { items: [], keys: new Map() };
        events.set(runId, log);
        const known = idempotencyKey == null ? undefined : log.keys.get(idempotencyKey);
        if (known) return known;
        const seq = log.items.length + 1;
        const event = {
          runId,
          seq,
          offset: String(seq),
          eventType,
          payload: payload ?? null,
          payloadRef: payloadRef ?? null,
          idempotencyKey: idempotencyKey ?? null,
          createdAt: Date.now(),
        };
        log.items.push(event);
        if (idempotencyKey != null) log.keys.set(idempotencyKey, event);
        return event;
      },
      list: async ({ runId, afterOffset, limit }) => {
        const log = events.get(runId)?.items ?? [];
        const start = afterOffset ? Number(afterOffset) : 0;
        const items = log.slice(start, limit === undefined ? undefined : start + limit);
        return { items, nextOffset: items.at(-1)?.offset };
      },
      delete: async ({ filter }) => {
        for (const runId of [...events.keys()]) {
          if (wanted(filter.runIds, runId)) events.delete(runId);
        }
      },
    },
    checkpoints: {
      get: async ({ agentId, blobId }) => blobs.get(agentId)?.get(blobId) ?? null,
      create: async (input) => put(blobs, input),
      update: async (input) => put(blobs, input),
      delete: async ({ filter }) => {
        for (const [agentId, own] of blobs) {
          if (!wanted(filter.agentIds, agentId)) continue;
          for (const blobId of [...own.keys()]) {
            if (wanted(filter.blobIds, blobId)) own.delete(blobId);
          }
        }
      },
      list: async (input) => {
        const filter = input?.filter;
        const ids = [...blobs]
          .filter(([agentId]) => wanted(filter?.agentIds, agentId))
          .flatMap(([, own]) => [...own.keys()])
          .filter((blobId) => wanted(filter?.blobIds, blobId));
        return sdk.paginateCheckpointBlobIds(ids, filter);
      },
    },
  });
}

function put(blobs, { agentId, blobId, data }) {
  const own = blobs.get(agentId) ?? new Map();
  blobs.set(agentId, own);
  own.set(blobId, data);
}
