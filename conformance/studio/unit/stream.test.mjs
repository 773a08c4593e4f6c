// Frames are cut out of the stream wherever it is cut, and a stream that breaks is taken up again.

import assert from "node:assert/strict";
import { test } from "node:test";
import { FrameCutter, pauseAfter, readRun } from "../../../crates/umbel-server/studio/stream.js";

const frame = (id, event) => `id: ${id}\ndata: ${JSON.stringify(event)}\n\n`;

test("frames come out whole, however the text is cut", () => {
  const whole = `: alive\n\n${frame("1", { type: "A", text: "ä\n" })}${frame("2", { type: "B" })}`;
  for (let size = 1; size < whole.length; size += 1) {
    const cutter = new FrameCutter();
    const frames = [];
    for (let at = 0; at < whole.length; at += size) frames.push(...cutter.push(whole.slice(at, at + size)));
    assert.deepEqual(frames, [{ id: "1", event: { type: "A", text: "ä\n" } }, { id: "2", event: { type: "B" } }]);
  }
});

test("other line ends and several lines of data are read too", () => {
  assert.deepEqual(new FrameCutter().push('id:7\r\ndata: {"type":\r\ndata: "A"}\r\n\r\n'), [{ id: "7", event: { type: "A" } }]);
});

test("half a frame is not a frame", () => {
  assert.deepEqual(new FrameCutter().push('id: 1\ndata: {"type":"A"}\n'), []);
});

/** Answers of a server, one per connection: text, or a status that refuses. */
function server(...answers) {
  const asked = [];
  const open = (last) => {
    asked.push(last);
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    return Promise.resolve(new Response(answer));
  };
  return { asked, begin: () => open(undefined), resume: (last) => open(last) };
}

const read = async ({ begin, resume }, more = {}) => {
  const [types, states] = [[], []];
  const { signal } = new AbortController();
  await readRun({ begin: async () => begin(), resume: async (last) => resume(last), signal, onFrame: ({ event }) => types.push(event.type), onConnection: (state) => states.push(state), wait: async () => {}, ...more });
  return { types, states };
};

const begin = frame("1", { type: "RUN_STARTED" });
const end = frame("3", { type: "RUN_FINISHED" });

test("a run is read to its end", async () => {
  assert.deepEqual(await read(server(begin + end)), { types: ["RUN_STARTED", "RUN_FINISHED"], states: ["live"] });
});

test("a stream that breaks is asked for again behind its last frame, and half a frame is not taken", async () => {
  const broken = server(`${begin}${frame("2", { type: "X" })}id: 3\ndata: {"ty`, end);
  assert.deepEqual(await read(broken), { types: ["RUN_STARTED", "X", "RUN_FINISHED"], states: ["live", "reconnecting", "live"] });
  assert.deepEqual(broken.asked, [undefined, "2"]);
});

test("without a frame the same request is sent again", async () => {
  const down = server(new TypeError("fetch failed"), new TypeError("fetch failed"), begin + end);
  await read(down);
  assert.deepEqual(down.asked, [undefined, undefined, undefined]);
});

test("a server that only leaves is not the end of the run", async () => {
  const leaving = server(begin + frame("2", { type: "RUN_ERROR", code: "SHUTTING_DOWN", message: "" }), end);
  assert.deepEqual((await read(leaving)).types, ["RUN_STARTED", "RUN_FINISHED"]);
  assert.deepEqual(leaving.asked, [undefined, "2"]);
});

test("what is wrong with the request is told at once, and what is wrong with the server is not", async () => {
  const refusal = (status) => Object.assign(new Error("no"), { status });
  await assert.rejects(read(server(refusal(422), begin + end)), /no/);
  assert.equal((await read(server(refusal(503), begin + end))).types.length, 2);
});

test("it gives up after some tries, and counts anew when something came", async () => {
  const dead = Array.from({ length: 9 }, () => new TypeError("fetch failed"));
  await assert.rejects(read(server(...dead), { attempts: 3 }), /connection is lost/);
  const slow = server(begin, ...dead.slice(0, 3), frame("2", { type: "X" }), ...dead.slice(0, 3), end);
  assert.equal((await read(slow, { attempts: 4 })).types.length, 3);
});

test("pauses grow and have a longest", () => {
  assert.deepEqual([1, 2, 3, 20].map(pauseAfter), [250, 500, 1000, 8000]);
});
