// Events become a conversation, as the protocol has it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { addMessage, apply, eventOf, newConversation, patch, seed, textOf, unanswered } from "../../../crates/umbel-server/studio/fold.js";

const started = { type: "RUN_STARTED", threadId: "t", runId: "r" };

/** A conversation that heard these events. */
function heard(...events) {
  const talk = newConversation();
  for (const event of events) apply(talk, event);
  return talk;
}

const text = (id, delta, more = {}) => ({ type: "TEXT_MESSAGE_CONTENT", messageId: id, delta, ...more });
const call = (id, parent, name = "look") => [
  { type: "TOOL_CALL_START", toolCallId: id, toolCallName: name, parentMessageId: parent },
  { type: "TOOL_CALL_ARGS", toolCallId: id, delta: '{"a":' },
  { type: "TOOL_CALL_ARGS", toolCallId: id, delta: "1}" },
  { type: "TOOL_CALL_END", toolCallId: id },
];
const result = (id, callId, content = "ok") => ({ type: "TOOL_CALL_RESULT", messageId: id, toolCallId: callId, content });

test("text is put together, and is open until it ends", () => {
  const talk = heard(started, { type: "TEXT_MESSAGE_START", messageId: "m1", role: "assistant" }, text("m1", "Hel"), text("m1", "lo"));
  assert.deepEqual(talk.messages, [{ id: "m1", role: "assistant", content: "Hello" }]);
  assert.ok(talk.open.has("m1") && talk.dirty.has("m1") && talk.isReordered);
  apply(talk, { type: "TEXT_MESSAGE_END", messageId: "m1" });
  assert.equal(talk.open.size, 0);
});

test("a message keeps the turn of the agent that says it", () => {
  const talk = heard(started, { type: "TEXT_MESSAGE_START", messageId: "m1", subagentRunId: "s1" }, text("m1", "Hi", { subagentRunId: "s1" }));
  assert.equal(talk.messages[0].subagentRunId, "s1");
});

test("chunks need no beginning", () => {
  const talk = heard(started, { type: "TEXT_MESSAGE_CHUNK", messageId: "m1", delta: "a" }, { type: "TEXT_MESSAGE_CHUNK", messageId: "m1", delta: "b" },
    { type: "TOOL_CALL_CHUNK", toolCallId: "c1", toolCallName: "look", delta: "{" }, { type: "TOOL_CALL_CHUNK", toolCallId: "c1", delta: "}" });
  assert.equal(talk.messages[0].content, "ab");
  assert.equal(talk.messages[1].toolCalls[0].function.arguments, "{}");
});

test("calls stand in the message that makes them, with their arguments as they come", () => {
  const talk = heard(started, text("m1", "Let me see."), ...call("c1", "m1"), ...call("c2", "m1"));
  assert.equal(talk.messages.length, 1);
  assert.deepEqual(talk.messages[0].toolCalls.map((one) => [one.id, one.function.arguments]), [["c1", '{"a":1}'], ["c2", '{"a":1}']]);
  assert.equal(talk.open.size, 0);
});

test("a call without a message makes one", () => {
  assert.equal(heard(started, ...call("c1", undefined)).messages[0].id, "c1");
});

test("results stand behind their call and behind earlier results, and come once", () => {
  const talk = heard(started, ...call("c1", "m1"), ...call("c2", "m1"), text("m2", "Later."), result("r1", "c1"), result("r2", "c2"), result("r2", "c2"));
  assert.deepEqual(talk.messages.map((one) => one.id), ["m1", "r1", "r2", "m2"]);
  assert.deepEqual(unanswered(talk.messages), []);
});

test("a call that is begun again is the same call", () => {
  const talk = heard(started, ...call("c1", "m1"), { type: "TOOL_CALL_START", toolCallId: "c1", toolCallName: "look", parentMessageId: "m1" });
  assert.equal(talk.messages[0].toolCalls.length, 1);
});

test("thoughts are messages of their own", () => {
  const talk = heard(started, { type: "REASONING_MESSAGE_START", messageId: "e:thoughts", role: "reasoning" }, { type: "REASONING_MESSAGE_CONTENT", messageId: "e:thoughts", delta: "Hm." });
  assert.deepEqual([talk.messages[0].role, talk.messages[0].content], ["reasoning", "Hm."]);
  assert.equal(eventOf("e:thoughts"), "e");
});

test("a snapshot takes away, changes in place and adds behind, and keeps thoughts if it has none", () => {
  const talk = newConversation();
  seed(talk, { messages: [{ id: "1", role: "user", content: "a" }, { id: "t", role: "reasoning", content: "hm" }, { id: "2", role: "assistant", content: "b" }, { id: "3", role: "assistant", content: "c" }] });
  apply(talk, { type: "MESSAGES_SNAPSHOT", messages: [{ id: "3", role: "assistant", content: "C" }, { id: "4", role: "user", content: "d" }, { id: "1", role: "user", content: "a" }] });
  assert.deepEqual(talk.messages.map((one) => [one.id, one.content]), [["1", "a"], ["t", "hm"], ["3", "C"], ["4", "d"]]);
  apply(talk, { type: "MESSAGES_SNAPSHOT", messages: [{ id: "5", role: "reasoning", content: "x" }] });
  assert.deepEqual(talk.messages.map((one) => one.id), ["5"]);
});

test("state is replaced, patched, and left alone by a patch that does not fit", () => {
  const talk = heard(started, { type: "STATE_SNAPSHOT", snapshot: { a: { b: [1] } } });
  const before = talk.state;
  apply(talk, { type: "STATE_DELTA", delta: [{ op: "add", path: "/a/b/-", value: 2 }, { op: "add", path: "/c~1d", value: true }] });
  assert.deepEqual(talk.state, { a: { b: [1, 2] }, "c/d": true });
  assert.deepEqual(before, { a: { b: [1] } }, "what was there is not touched");
  apply(talk, { type: "STATE_DELTA", delta: [{ op: "replace", path: "/no/such", value: 1 }] });
  assert.deepEqual(talk.state, { a: { b: [1, 2] }, "c/d": true });
});

test("every kind of change in a patch is made", () => {
  const value = { list: [1, 2, 3], old: "x" };
  assert.deepEqual(patch(value, [{ op: "remove", path: "/list/1" }]), { list: [1, 3], old: "x" });
  assert.deepEqual(patch(value, [{ op: "add", path: "/list/0", value: 0 }]), { list: [0, 1, 2, 3], old: "x" });
  assert.deepEqual(patch(value, [{ op: "replace", path: "/list/0", value: 9 }]), { list: [9, 2, 3], old: "x" });
  assert.deepEqual(patch(value, [{ op: "move", from: "/old", path: "/new" }]), { list: [1, 2, 3], new: "x" });
  assert.deepEqual(patch(value, [{ op: "copy", from: "/list/2", path: "/last" }]), { list: [1, 2, 3], old: "x", last: 3 });
  assert.deepEqual(patch(value, [{ op: "replace", path: "", value: 1 }]), 1);
});

test("a run ends with what it waits for", () => {
  const asked = { id: "q1", reason: "tool_call", toolCallId: "c1" };
  const interrupted = heard(started, ...call("c1", "m1"), { type: "RUN_FINISHED", outcome: { type: "interrupt", interrupts: [asked] } });
  assert.deepEqual([interrupted.run.status, interrupted.interrupts], ["interrupted", [asked]]);
  apply(interrupted, started);
  assert.deepEqual([interrupted.run.status, interrupted.interrupts], ["running", []]);
  const pending = heard(started, ...call("c1", "m1"), { type: "RUN_FINISHED", outcome: { type: "success", pendingToolCallIds: ["c1"] } });
  assert.deepEqual([pending.run.status, pending.pending], ["finished", ["c1"]]);
  assert.equal(heard(started, { type: "RUN_FINISHED", outcome: { type: "cancelled" } }).run.status, "cancelled");
  assert.deepEqual(heard(started, { type: "RUN_ERROR", message: "no", code: "X" }).run.error, { message: "no", code: "X" });
});

test("agents that are at work at the same time are told apart from those that follow each other", () => {
  const begin = (id) => ({ type: "SUBAGENT_STARTED", subagentRunId: id, name: id });
  const end = (id) => ({ type: "SUBAGENT_FINISHED", subagentRunId: id });
  const talk = heard(started, begin("a"), begin("b"), end("a"), end("b"), begin("c"));
  assert.deepEqual([...talk.subagents.values()].map((one) => [one.name, one.isParallel, one.status]), [["a", true, "finished"], ["b", true, "finished"], ["c", false, "running"]]);
});

test("activities are replaced and patched", () => {
  const shown = { type: "ACTIVITY_SNAPSHOT", messageId: "a1", activityType: "search", content: { hits: 1 } };
  const talk = heard(started, shown, { type: "ACTIVITY_DELTA", messageId: "a1", activityType: "search", patch: [{ op: "replace", path: "/hits", value: 2 }] });
  assert.deepEqual(talk.messages[0].content, { hits: 2 });
  apply(talk, { ...shown, replace: false });
  assert.deepEqual(talk.messages[0].content, { hits: 2 });
});

test("a message of one's own is added once, and a result stands behind its call", () => {
  const talk = heard(started, ...call("c1", "m1"), text("m2", "x"));
  addMessage(talk, { id: "r1", role: "tool", toolCallId: "c1", content: "1" });
  addMessage(talk, { id: "r1", role: "tool", toolCallId: "c1", content: "1" });
  assert.deepEqual(talk.messages.map((one) => one.id), ["m1", "r1", "m2"]);
});

test("what differs in the state is told, and what is not known changes nothing", () => {
  const talk = heard(started, { type: "CUSTOM", name: "StateConflict", value: [{ key: "a", sent: 1, kept: 2 }] }, { type: "SOMETHING_NEW" });
  assert.equal(talk.conflicts[0].key, "a");
});

test("the text of parts is their text alone", () => {
  assert.equal(textOf([{ type: "text", text: "a" }, { type: "image" }, { type: "text", text: "b" }]), "a\nb");
  assert.equal(textOf(undefined), "");
});

test("the first words of a message make it one to be shown", () => {
  const talk = heard(started, { type: "TEXT_MESSAGE_START", messageId: "m1" });
  talk.isReordered = false;
  apply(talk, text("m1", "H"));
  assert.ok(talk.isReordered);
  talk.isReordered = false;
  apply(talk, text("m1", "i"));
  assert.ok(!talk.isReordered);
});
