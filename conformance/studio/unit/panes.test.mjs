// The sums behind the panes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { layout, path } from "../../../crates/umbel-server/studio/graph-layout.js";
import { logBrief, wireBrief } from "../../../crates/umbel-server/studio/log-kinds.js";
import { compare, newLines } from "../../../crates/umbel-server/studio/prompt-diff.js";
import { readRoute, writeRoute } from "../../../crates/umbel-server/studio/route.js";
import { changeAt, changes, diff, withRemoved } from "../../../crates/umbel-server/studio/state-diff.js";
import { eventOfSpan, rows, total } from "../../../crates/umbel-server/studio/trace.js";
import { scrollFor, visible } from "../../../crates/umbel-server/studio/window-list.js";

test("only rows in sight are drawn, with some to spare", () => {
  assert.deepEqual(visible(0, 300, 30, 5000), [0, 18]);
  assert.deepEqual(visible(30_000, 300, 30, 5000), [992, 1018]);
  assert.deepEqual(visible(149_700, 300, 30, 5000), [4982, 5000]);
  assert.deepEqual(visible(0, 300, 30, 3), [0, 3]);
  assert.deepEqual(visible(9000, 300, 30, 0), [0, 0]);
});

test("a row is scrolled to only if it cannot be seen", () => {
  assert.equal(scrollFor(5, 0, 300, 30), null);
  assert.equal(scrollFor(10, 0, 300, 30), 30);
  assert.equal(scrollFor(1, 300, 300, 30), 30);
});

const entry = (id, stateDelta) => ({ index: 0, runId: "r", event: { id, author: "a", ...(stateDelta ? { actions: { stateDelta } } : {}) } });

test("the state is folded event by event, and null removes", () => {
  const all = changes({ a: 1 }, [entry("1"), entry("2", { b: 2 }), entry("3", {}), entry("4", { a: null, b: 3 })]);
  assert.deepEqual(all.map((one) => [one.place, one.before, one.after]), [[1, { a: 1 }, { a: 1, b: 2 }], [3, { a: 1, b: 2 }, { b: 3 }]]);
  assert.deepEqual([0, 1, 2, 3, 9].map((place) => changeAt(all, place)), [-1, 0, 0, 1, 1]);
});

test("what is added, changed and removed is told by its path", () => {
  const marks = diff({ a: 1, b: { c: 1, d: 2 }, e: [1] }, { b: { c: 2, d: 2 }, e: [1, 2], f: 0 });
  assert.deepEqual(Object.fromEntries([...marks].filter(([path]) => !path.endsWith("*"))), { "/a": "removed", "/b/c": "changed", "/e/1": "added", "/f": "added" });
  assert.ok(marks.has("/b/*") && marks.has("/e/*"));
  assert.equal(diff({ a: [1, { b: 2 }] }, { a: [1, { b: 2 }] }).size, 0);
});

test("what was removed is still there to be shown", () => {
  assert.deepEqual(withRemoved({ a: 1, b: { c: 1 }, l: [1, 2] }, { b: {}, l: [3] }), { b: { c: 1 }, l: [3, 2], a: 1 });
});

const span = (id, parent, kind, more = {}) => ({ id, parent, kind, name: id, start: 0, end: 1, ...more });

test("spans stand below their parents, and hidden handlers leave what is below them", () => {
  const spans = [span("1", null, "run"), span("2", "1", "agent"), span("3", "2", "handler"), span("4", "3", "model"), span("5", "2", "tool"), span("6", "gone", "tool")];
  const told = (handlers) => rows(spans, handlers).map(({ span: one, depth }) => `${one.id}@${depth}`);
  assert.deepEqual(told(true), ["1@0", "2@1", "3@2", "4@3", "5@2", "6@0"]);
  assert.deepEqual(told(false), ["1@0", "2@1", "4@2", "5@2", "6@0"]);
});

test("tokens and cost are those of model calls", () => {
  const cost = { amount: 0.5, currency: "USD" };
  const spans = [span("1", null, "run", { usage: { input: 99 } }), span("2", "1", "model", { usage: { input: 3, output: 4 }, cost }), span("3", "1", "model", { usage: { output: 1 }, cost })];
  assert.deepEqual(total(spans), { input: 3, output: 5, cost: 1, currency: "USD" });
});

test("a span leads to the event that it came to", () => {
  const said = (id, author, ...parts) => ({ index: 0, runId: "r", event: { id, author, content: { parts } } });
  const entries = [said("1", "user", { text: "hi" }), said("2", "a", { functionCall: { id: "c1" } }), said("3", "a", { functionResponse: { id: "c1" } }), said("4", "a", { text: "done" })];
  const of = (attributes) => eventOfSpan(span("s", null, "model", { attributes }), entries);
  assert.deepEqual([of({ step: 1 }), of({ callId: "c1" }), of({ step: 2 }), of({ step: 3 }), of({})], ["2", "3", "4", undefined, undefined]);
});

test("a span of code leads to its result, and code that looks at files is no answer of a model", () => {
  const said = (id, ...parts) => ({ index: 0, runId: "r", event: { id, author: "a", content: { parts } } });
  const ran = (id) => ({ executableCode: { id, code: "1" } });
  const gave = (id) => ({ codeExecutionResult: { id, output: "1" } });
  const entries = [said("1", ran("adk-file-x")), said("2", gave("adk-file-x")), said("3", ran("adk-1")), said("4", gave("adk-1")), said("5", ran("theirs"), gave("theirs"))];
  const of = (attributes) => eventOfSpan(span("s", null, "model", { attributes }), entries);
  assert.deepEqual([of({ callId: "adk-1" }), of({ step: 1 }), of({ step: 2 })], ["4", "3", "5"]);
});

const agent = (name, parent, more = {}) => ({ name, kind: "llm", parent, tools: [], transfersTo: [], ...more });

test("agents stand beside the middle of those below them, and never on each other", () => {
  const { boxes, edges } = layout([agent("a", null, { transfersTo: ["b", "a"] }), agent("b", "a", { transfersTo: ["a", "c"] }), agent("c", "a"), agent("d", "c", { tools: [{ name: "t" }] }), agent("e", "c")]);
  const of = (name) => boxes.find((box) => box.agent.name === name);
  for (const one of boxes) for (const other of boxes) {
    const apart = one.x + one.width <= other.x || other.x + other.width <= one.x || one.y + one.height <= other.y || other.y + other.height <= one.y;
    assert.ok(one === other || apart, `${one.agent.name} and ${other.agent.name}`);
  }
  assert.ok(of("a").x < of("b").x && of("c").x < of("d").x);
  assert.deepEqual(edges.map((edge) => [edge.from.agent.name, edge.to.agent.name, edge.kind, Boolean(edge.arrowAt), Boolean(edge.arrowBack)]).sort(),
    [["a", "b", "child", true, true], ["a", "c", "child", false, false], ["b", "c", "transfer", true, false], ["c", "d", "child", false, false], ["c", "e", "child", false, false]]);
  for (const edge of edges) assert.match(path(edge), /^M[\d. ]+C[-\d. ]+$/);
});

test("a prompt tells what is new in it", () => {
  const before = { instruction: "a\nb", contents: [1, 2], tools: [{ name: "x" }, { name: "y" }], config: {} };
  const now = { instruction: "a\nc", contents: [1, 2, 3], tools: [{ name: "x", description: "other" }], config: {} };
  const found = compare(before, now);
  assert.deepEqual([found.kept, found.dropped, found.instruction, [...found.tools], found.goneTools, found.config], [2, 0, true, ["x"], ["y"], false]);
  assert.deepEqual([compare(null, now).isFirst, compare(before, { ...now, contents: [1, 9] }).dropped], [true, 1]);
  assert.deepEqual(newLines("a\nb", "a\nc"), [{ text: "a", isNew: false }, { text: "c", isNew: true }]);
});

test("events are named by what they are about", () => {
  const said = (author, ...parts) => logBrief({ author, content: { parts } }).kind;
  assert.equal(said("user", { text: "hi" }), "message");
  assert.equal(said("a", { text: "hm", thought: true }), "thought");
  assert.equal(said("a", { text: "hm", thought: true }, { text: "yes" }), "text");
  assert.equal(said("a", { functionCall: { name: "x", args: {} } }), "call");
  assert.equal(said("a", { functionCall: { name: "adk_request_confirmation", args: {} } }), "question");
  assert.equal(said("a", { functionResponse: { name: "x", response: {} } }), "result");
  assert.deepEqual(logBrief({ author: "a", content: { parts: [{ text: "See: " }, { executableCode: { id: "adk-1", code: "1" } }] } }), { kind: "call", text: 'See:  · run_code({"code":"1"})' });
  assert.deepEqual(logBrief({ author: "a", content: { parts: [{ codeExecutionResult: { id: "adk-1", output: "1" } }] } }), { kind: "result", text: 'run_code → "1"' });
  assert.equal(logBrief({ author: "a", actions: { transferToAgent: "b" } }).text, "to b");
  assert.equal(logBrief({ author: "a", actions: { stateDelta: { k: 1 } } }).text, "k");
  assert.equal(logBrief({ author: "a", errorCode: "X", errorMessage: "no" }).text, "X: no");
  assert.deepEqual([wireBrief({ type: "TEXT_MESSAGE_CONTENT", delta: "a" }), wireBrief({ type: "TOOL_CALL_START", toolCallName: "x" }).kind, wireBrief({ type: "NEW" }).kind], [{ kind: "text", text: "a" }, "tool", "other"]);
});

test("a place is written as an address and read again", () => {
  const route = { agent: "team/guide", thread: "a b/ü", pane: "docs", detail: "models/openai~keys" };
  assert.deepEqual(readRoute(writeRoute(route)), route);
  assert.deepEqual(readRoute("#/guide/t1"), { agent: "guide", thread: "t1", pane: "", detail: "" });
  assert.deepEqual(readRoute("#/%E0%A4%A/x"), { agent: "%E0%A4%A", thread: "x", pane: "", detail: "" });
  assert.equal(writeRoute({ agent: "a", thread: "t", pane: "", detail: "" }), "#/a/t");
});
