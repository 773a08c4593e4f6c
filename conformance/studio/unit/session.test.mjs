// One open thread, with a server that is made up.

import assert from "node:assert/strict";
import { test } from "node:test";

// What a page has and the session wants is there before its module is read.
const stored = new Map();
globalThis.sessionStorage = { getItem: (key) => stored.get(key) ?? null, setItem: (key, value) => stored.set(key, value), removeItem: (key) => stored.delete(key) };
globalThis.requestAnimationFrame = (draw) => setImmediate(draw);
// Whoever waits for the network has it at once.
globalThis.window = { addEventListener: (_, listener) => queueMicrotask(listener), removeEventListener() {}, matchMedia: () => ({ matches: false, addEventListener() {} }) };
globalThis.localStorage = sessionStorage;
globalThis.document = { documentElement: { dataset: {} } };
const { Problem } = await import("../../../crates/umbel-server/studio/api.js");
const { Session } = await import("../../../crates/umbel-server/studio/session.js");
const { handOver } = await import("../../../crates/umbel-server/studio/sign-in.js");

const agent = { path: "/guide", name: "guide" };
const user = { id: "u1", role: "user", content: "hello" };
const empty = { threadId: "t", messages: [], state: {}, interrupts: [], runningRunId: null };
const question = { id: "q1", reason: "confirmation" };

/** A stream with these events; each is preceded by the beginning of the run and followed by its end. */
const stream = (runId, ...events) =>
  new Response([{ type: "RUN_STARTED", runId }, ...events, { type: "RUN_FINISHED", runId }].map((event, at) => `id: ${at}\ndata: ${JSON.stringify(event)}\n\n`).join(""));

/** A server that notes what it is asked. */
function server(more = {}) {
  const asked = [];
  const answers = {
    thread: async () => empty,
    runs: async () => ({ runs: [] }),
    events: async () => ({ events: [], next: null }),
    begin: async (_, input) => stream(input.runId),
    follow: async (_, __, run) => stream(run),
    ...more,
  };
  const api = Object.fromEntries(Object.entries(answers).map(([name, answer]) => [name, (...given) => (asked.push([name, ...given.slice(1)]), answer(...given))]));
  return { api, asked, count: (name) => asked.filter(([one]) => one === name).length };
}

/** A session that has been read. */
async function opened(api) {
  const session = new Session(api, agent, "t", true);
  await session.open();
  return session;
}

/** A promise that is kept from outside. */
function later() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

const refused = () => Promise.reject(new TypeError("Failed to fetch"));

test("a message that did not get through is sent again, the very same", async () => {
  let isAway = true;
  const { api, asked } = server({ begin: async (_, input) => (isAway ? refused() : stream(input.runId, { type: "TEXT_MESSAGE_CHUNK", messageId: "a", delta: "Hi." })) });
  const session = await opened(api);
  session.editedState = { mood: "good" };
  await session.send("hello");
  assert.deepEqual([session.connection, session.isRunning, session.editedState], ["lost", true, { mood: "good" }]);
  isAway = false;
  await session.reconnect();
  assert.deepEqual([session.connection, session.talk.run.status, session.editedState], ["idle", "finished", undefined]);
  assert.deepEqual(session.talk.messages.map((message) => message.content), ["hello", "Hi."]);
  const inputs = asked.filter(([name]) => name === "begin").map(([, input]) => JSON.stringify(input));
  assert.equal(new Set(inputs).size, 1);
});

test("a run that ended while the connection was lost is over", async () => {
  let thread = { ...empty, messages: [user], runningRunId: "r1" };
  const { api } = server({ thread: async () => thread, follow: refused });
  const session = await opened(api);
  assert.deepEqual([session.connection, session.isRunning], ["lost", true]);
  thread = { ...empty, messages: [user, { id: "a", role: "assistant", content: "Hi." }] };
  await session.reconnect();
  assert.deepEqual([session.connection, session.isRunning, session.talk.messages.length], ["idle", false, 2]);
});

test("a session that could not be opened can be opened later", async () => {
  let isAway = true;
  const { api } = server({ thread: async () => (isAway ? refused() : { ...empty, messages: [user] }) });
  const session = await opened(api);
  assert.equal(session.failure, "Failed to fetch");
  isAway = false;
  await session.reconnect();
  assert.deepEqual([session.failure, session.connection, session.talk.messages.length], [null, "idle", 1]);
});

test("a state that was edited is kept until the server has it", async () => {
  let isBusy = true;
  const { api, asked } = server({ begin: async (_, input) => (isBusy ? Promise.reject(new Problem(409, "BUSY", "not now")) : stream(input.runId)) });
  const session = await opened(api);
  session.editedState = { mood: "good" };
  await session.send("hello");
  assert.deepEqual([session.talk.run.status, session.editedState], ["failed", { mood: "good" }]);
  isBusy = false;
  await session.send("hello again");
  assert.deepEqual([session.talk.run.status, session.editedState, asked.findLast(([name]) => name === "begin")[1].state], ["finished", undefined, { mood: "good" }]);
});

test("a state that is edited while a run begins is for the next one", async () => {
  const beginning = later();
  const { api } = server({ begin: () => beginning.promise });
  const session = await opened(api);
  session.editedState = { mood: "good" };
  const done = session.send("hello");
  session.editedState = { mood: "bad" };
  beginning.resolve(stream("r1"));
  await done;
  assert.deepEqual(session.editedState, { mood: "bad" });
});

test("a question is decided once, and so is a call", async () => {
  const { api, count } = server({ thread: async () => ({ ...empty, messages: [user], interrupts: [question] }) });
  const session = await opened(api);
  await Promise.all([session.decide("q1", { status: "resolved" }), session.decide("q1", { status: "cancelled" })]);
  await session.decide("q1", { status: "cancelled" });
  assert.equal(count("begin"), 1);
  session.talk.pending = ["c1"];
  await Promise.all([session.answerCall("c1", "1"), session.answerCall("c1", "2")]);
  assert.equal(count("begin"), 2);
});

test("what was read does not replace a run that began meanwhile", async () => {
  const reading = later();
  const running = later();
  let thread = async () => ({ ...empty, messages: [user] });
  const { api } = server({ thread: () => thread(), begin: () => running.promise });
  const session = await opened(api);
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  thread = () => reading.promise;
  const heard = session.heardOf({ threadId: "t", updatedAt: 2 });
  const sent = session.send("and more");
  reading.resolve(empty);
  await heard;
  assert.deepEqual([session.isRunning, session.talk.messages.length], [true, 2]);
  running.resolve(stream(session.talk.run.runId));
  await sent;
  assert.equal(session.talk.run.status, "finished");
});

test("what happened elsewhere is read once, and without a word", async () => {
  let thread = { ...empty, messages: [user] };
  const { api, count } = server({ thread: async () => thread });
  const session = await opened(api);
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  assert.equal(count("thread"), 1);
  thread = { ...empty, messages: [user, { id: "a", role: "assistant", content: "Hi." }] };
  const heard = session.heardOf({ threadId: "t", updatedAt: 2 });
  assert.ok(!session.isLoading);
  await heard;
  await session.heardOf({ threadId: "t", updatedAt: 2 });
  assert.deepEqual([count("thread"), session.talk.messages.length], [2, 2]);
});

test("a run that another server has is no news each time the list is read", async () => {
  const { api, count } = server({ thread: async () => ({ ...empty, messages: [user] }) });
  const session = await opened(api);
  for (const updatedAt of [1, 1, 1, 2]) await session.heardOf({ threadId: "t", updatedAt, running: true });
  assert.equal(count("thread"), 3, "when it was opened, when it ran, and when something came");
});

test("what could not be read is read when the list tells of it again", async () => {
  let isAway = false;
  const { api } = server({ thread: async () => (isAway ? refused() : { ...empty, messages: isAway === null ? [user] : [] }) });
  const session = await opened(api);
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  isAway = true;
  await session.heardOf({ threadId: "t", updatedAt: 2 });
  assert.equal(session.failure, null);
  isAway = null;
  await session.heardOf({ threadId: "t", updatedAt: 2 });
  assert.equal(session.talk.messages.length, 1);
});

test("a run of this page is no news", async () => {
  const { api, count } = server();
  const session = await opened(api);
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  await session.send("hello");
  await session.heardOf({ threadId: "t", updatedAt: 2, running: true });
  await session.heardOf({ threadId: "t", updatedAt: 2 });
  assert.equal(count("thread"), 1);
});

test("a run that began elsewhere is followed", async () => {
  let runningRunId = null;
  const { api, asked } = server({ thread: async () => ({ ...empty, messages: [user], runningRunId }) });
  const session = await opened(api);
  await session.heardOf({ threadId: "t", updatedAt: 1 });
  runningRunId = "r7";
  await session.heardOf({ threadId: "t", updatedAt: 1, running: true });
  assert.deepEqual(asked.filter(([name]) => name === "follow").map(([, , run]) => run), ["r7"]);
  assert.equal(session.talk.run.status, "finished");
});

test("the log is read to its end, though nothing of a page may be shown", async () => {
  const pages = [{ events: [{ index: 0, runId: "r", event: { id: "a" } }], next: 9 }, { events: [], next: 19 }, { events: [{ index: 21, runId: "r", event: { id: "b" } }], next: null }];
  const { api, asked } = server({ events: async () => pages.shift() });
  const session = await opened(api);
  await session.readLog();
  assert.deepEqual(session.log.map((entry) => entry.event.id), ["a", "b"]);
  assert.deepEqual(asked.filter(([name]) => name === "events").map(([, , after]) => after), [undefined, 9, 19]);
});

test("who comes back from signing in answers all that asked for it, and sessions that are closed hear nothing", async () => {
  const signIn = (id, state) => ({ id, reason: "umbel:credential", metadata: { payload: { exchangedAuthCredential: { oauth2: { authUri: `https://login.example/?state=${state}` } } } } });
  const { api, asked } = server({ thread: async () => ({ ...empty, messages: [user], interrupts: [signIn("q1", "s"), signIn("q2", "s")] }) });
  const session = await opened(api);
  await new Promise((drawn) => session.on("talk", drawn));
  const ended = new Promise((resolve) => session.on("ended", resolve));
  handOver("http://127.0.0.1/studio/signed-in?code=c&state=s", () => undefined);
  await ended;
  const payload = { authResponseUri: "http://127.0.0.1/studio/signed-in?code=c&state=s" };
  const given = asked.filter(([name]) => name === "begin").map(([, input]) => input.resume);
  assert.deepEqual(given, [["q1", "q2"].map((interruptId) => ({ interruptId, status: "resolved", payload }))]);
  session.talk.interrupts = [signIn("q3", "t")];
  session.returns.listenFor(session.undecided());
  assert.equal(session.returns.channels.size, 1);
  session.talkChanged();
  session.close();
  // What changed before is drawn after.
  await new Promise((drawn) => session.on("talk", drawn));
  assert.equal(session.returns.channels.size, 0);
});
