// Answers that come when something else is wanted by then.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Docs } from "../../../crates/umbel-server/studio/docs.js";
import { GraphPane } from "../../../crates/umbel-server/studio/graph.js";
import { Prompt } from "../../../crates/umbel-server/studio/prompt.js";

/** A server that answers when it is told to, by what was asked for. */
function slow() {
  const waiting = new Map();
  return { ask: (name) => new Promise((resolve) => waiting.set(name, resolve)), answer: (name, value) => waiting.get(name)(value) };
}

/** A pane without a page: what it has, and the methods of its kind. */
const pane = (kind, has) => Object.assign(Object.create(kind.prototype), { asked: 0, drawn: "" }, has);

test("the graph is that of the agent chosen last, and is drawn when it changed", async () => {
  const server = slow();
  const drawn = [];
  const graph = pane(GraphPane, { api: { graph: (agent) => server.ask(agent.name) }, agents: [], root: "", chosen: "" });
  graph.draw = () => drawn.push(graph.root);
  graph.choose = () => undefined;
  const load = (name) => ((graph.session = { agent: { name } }), graph.load());
  const loads = [load("slow"), load("quick")];
  server.answer("quick", { root: "quick", agents: [] });
  server.answer("slow", { root: "slow", agents: [] });
  await Promise.all(loads);
  assert.deepEqual(drawn, ["quick"]);
  for (const agents of [[], [{ name: "new" }]]) {
    const again = load("quick");
    server.answer("quick", { root: "quick", agents });
    await again;
  }
  assert.deepEqual([drawn, graph.agents.length], [["quick", "quick"], 1]);
});

test("the page of the guide is the one chosen last", async () => {
  const server = slow();
  const drawn = [];
  const docs = pane(Docs, { api: { page: (name) => server.ask(name) }, pages: [{ name: "slow" }, { name: "quick" }], shown: "", picker: {} });
  docs.draw = (name, text) => drawn.push([name, text]);
  const shows = [docs.activate("slow"), docs.activate("quick")];
  server.answer("quick", "B");
  server.answer("slow", "A");
  await Promise.all(shows);
  assert.deepEqual([drawn, docs.picker.value], [[["quick", "B"]], "quick"]);
});

test("a prompt of one session is not kept for the next", async () => {
  const server = slow();
  const session = { agent: {}, threadId: "t", runs: [], hasRun: () => true };
  const prompt = pane(Prompt, { api: { request: () => server.ask("request") }, known: new Map(), session });
  const asking = prompt.requestOf("r", 1);
  prompt.reset();
  server.answer("request", { model: "m" });
  assert.deepEqual([await asking, prompt.known.size], [{ model: "m" }, 0]);
});
