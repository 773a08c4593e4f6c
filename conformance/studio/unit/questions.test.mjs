// Questions to people, and how calls of tools stand.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decisionsOf, isCredential, isExpired } from "../../../crates/umbel-server/studio/approvals.js";
import { answeredBy, stateOf } from "../../../crates/umbel-server/studio/call-card.js";
import { newConversation } from "../../../crates/umbel-server/studio/fold.js";

test("a question expires when its time has come", () => {
  const asked = { id: "q", reason: "tool_call", expiresAt: "2026-01-01T00:00:00Z" };
  const then = Date.parse(asked.expiresAt);
  assert.deepEqual([isExpired(asked, then - 1), isExpired(asked, then), isExpired({ id: "q", reason: "tool_call" }, then)], [false, true, false]);
});

test("what may be decided is what the question says, or what its kind allows", () => {
  assert.deepEqual(decisionsOf({ id: "q", reason: "tool_call", metadata: { decisions: ["reject"] } }), ["reject"]);
  assert.deepEqual(decisionsOf({ id: "q", reason: "tool_call" }), ["approve", "edit", "reject"]);
  assert.deepEqual(decisionsOf({ id: "q", reason: "confirmation" }), ["approve", "reject"]);
});

test("a credential is told from other questions", () => {
  assert.deepEqual([isCredential({ id: "q", reason: "umbel:credential" }), isCredential({ id: "q", reason: "confirmation" })], [true, false]);
});

const call = { id: "c1", type: "function", function: { name: "x", arguments: "{}" } };

test("a call is written, runs, waits, and is done or failed", () => {
  const talk = newConversation();
  const session = { talk, answers: new Map(), isRunning: true };
  const state = (result) => stateOf(session, call, result);
  talk.open.add("c1");
  assert.equal(state(), "writing");
  talk.open.clear();
  assert.equal(state(), "running");
  session.isRunning = false;
  assert.equal(state(), "open");
  talk.pending = ["c1"];
  assert.equal(state(), "waiting");
  session.answers.set("c1", "1");
  assert.equal(state(), "running");
  const result = (content, more = {}) => ({ id: "r", role: "tool", toolCallId: "c1", content, ...more });
  assert.deepEqual([result("fine"), result('{"error": "no"}'), result('{"error": null}'), result("x", { error: "no" }), result("[1]")].map(state), ["done", "failed", "done", "failed", "done"]);
});

test("a question about a call that is shown stands in its card", () => {
  const talk = newConversation();
  talk.messages = [{ id: "m", role: "assistant", toolCalls: [call] }];
  assert.ok(answeredBy(talk, { id: "q", reason: "tool_call", toolCallId: "c1" }));
  assert.ok(!answeredBy(talk, { id: "q", reason: "tool_call", toolCallId: "c2" }));
});
