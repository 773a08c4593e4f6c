// Streams that tests cut and took up again, beside the same uncut: the official client makes the same of both. See README.md
import { isDeepStrictEqual } from "node:util";
import { HttpAgent } from "@ag-ui/client";
import { lines, report } from "./lines.mjs";

let warnings = [];
console.warn = (...words) => warnings.push(words.map(String).join(" "));
console.error = console.warn;

/** What a client has when it was told that: whatever it complains of counts, too. */
async function fold(input, events) {
  warnings = [];
  const frames = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  const answer = () => new Response(frames, { headers: { "content-type": "text/event-stream" } });
  const agent = new HttpAgent({
    url: "http://test.invalid/",
    threadId: input.threadId,
    initialMessages: input.messages,
    initialState: input.state ?? {},
    fetch: async () => answer(),
  });
  const { runId, tools } = input;
  let failed;
  try {
    await agent.runAgent({ runId, tools, resume: input.resume });
  } catch (error) {
    failed = error.message;
  }
  const { messages, state, pendingInterrupts } = agent;
  return JSON.parse(JSON.stringify({ messages, state, pendingInterrupts, failed, warnings }));
}

/** What must be the same. An error's message may have a reference of its own each time. */
function essence({ failed, ...rest }) {
  return { ...rest, failed: failed?.replace(/ \(reference .*/, "") };
}

const wrong = [];
let count = 0;
const uncut = new Map();
for (const { at, form } of lines(process.argv.slice(2), ".folds")) {
  count += 1;
  const key = JSON.stringify([form.input, form.uncut]);
  if (!uncut.has(key)) {
    uncut.clear();
    uncut.set(key, await fold(form.input, form.uncut));
  }
  const whole = uncut.get(key);
  const joined = await fold(form.input, form.joined);
  if (whole.warnings.length > 0) wrong.push(`${at}: ${form.name}: uncut: ${whole.warnings[0]}`);
  else if (!isDeepStrictEqual(essence(whole), essence(joined))) {
    wrong.push(`${at}: ${form.name}: ${JSON.stringify(joined)} is not ${JSON.stringify(whole)}`);
  }
}
report("streams in pieces", count, wrong);
