// Streams that are taken up again, by the class in `clients/resumable-http-agent.ts`.
//
// resumable.mjs BASE_URL CLIENT_FILE: checks the types of the class, and drives the agents at BASE_URL with it while
// connections break. Prints PASS or FAIL per check; the exit code is 1 if anything fails.

import assert from "node:assert/strict";
import { copyFile, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { HttpAgent, randomUUID } from "@ag-ui/client";
import ts from "typescript";

const [base, client] = process.argv.slice(2);
if (!base || !client) {
  console.error("usage: resumable.mjs BASE_URL CLIENT_FILE");
  process.exit(2);
}

const here = dirname(fileURLToPath(import.meta.url));

/** Checks the types of the class and loads it. */
async function load() {
  const source = join(here, "resumable-http-agent.ts");
  await copyFile(client, source);
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.asynciterable.d.ts"],
    types: [],
  };
  const program = ts.createProgram([source], options);
  const wrong = ts.getPreEmitDiagnostics(program).map((one) => {
    const at = one.file ? one.file.getLineAndCharacterOfPosition(one.start ?? 0).line + 1 : 0;
    return `line ${at}: ${ts.flattenDiagnosticMessageText(one.messageText, "\n")}`;
  });
  assert.deepEqual(wrong, []);
  const text = await readFile(source, "utf8");
  const { outputText } = ts.transpileModule(text, { compilerOptions: { ...options, noEmit: false } });
  const built = join(here, "resumable-http-agent.mjs");
  await writeFile(built, outputText);
  return (await import(pathToFileURL(built).href)).ResumableHttpAgent;
}

/** A fetch whose streams break after so many frames, or end with those words. */
function breaking(frames, count, words) {
  return async (url, init) => {
    count.requests += 1;
    const response = await fetch(url, init);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      return response;
    }
    const reader = response.body.getReader();
    let left = frames;
    const body = new ReadableStream({
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) {
          controller.close();
          return;
        }
        let text = new TextDecoder().decode(value);
        let kept = "";
        while (left > 0 && text.includes("\n\n")) {
          const end = text.indexOf("\n\n") + 2;
          kept += text.slice(0, end);
          text = text.slice(end);
          left -= 1;
        }
        if (left === 0 && words) {
          controller.enqueue(new TextEncoder().encode(`${kept}data: ${JSON.stringify(words)}\n\n`));
          controller.close();
          await reader.cancel();
          return;
        }
        // Half a frame gets through, too.
        controller.enqueue(new TextEncoder().encode(left > 0 ? kept + text : kept + text.slice(0, 5)));
        if (left === 0) {
          setTimeout(() => controller.error(new TypeError("the connection broke")), 5);
          await reader.cancel();
          left = -1;
        }
      },
      cancel: () => reader.cancel(),
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

function asked(Agent, path, options = {}) {
  const user = { id: randomUUID(), role: "user", content: "Hi" };
  return new Agent({ url: `${base}${path}`, threadId: randomUUID(), initialMessages: [user], ...options });
}

/** Messages without what differs from run to run. */
function said(agent) {
  return agent.messages.map(({ role, content, toolCalls }) => ({
    role,
    content,
    calls: toolCalls?.map((call) => call.function),
  }));
}

const checks = {
  async "a stream that breaks after every few frames gives what a whole one gives"(Agent) {
    for (const path of ["/chat", "/tool", "/state"]) {
      const whole = asked(HttpAgent, path);
      await whole.runAgent();
      for (const frames of [1, 2, 5]) {
        const count = { requests: 0 };
        const agent = asked(Agent, path, { fetch: breaking(frames, count) });
        await agent.runAgent();
        assert.deepEqual(said(agent), said(whole), `${path}, ${frames} frames`);
        assert.deepEqual(agent.state, whole.state);
        assert.ok(count.requests > 1, `${path}, ${frames} frames: nothing broke`);
      }
    }
  },

  async "a stream that a server leaves is taken up elsewhere"(Agent) {
    const whole = asked(HttpAgent, "/tool");
    await whole.runAgent();
    const count = { requests: 0 };
    const words = { type: "RUN_ERROR", code: "SHUTTING_DOWN", message: "the run goes on elsewhere" };
    const agent = asked(Agent, "/tool", { fetch: breaking(5, count, words) });
    await agent.runAgent();
    assert.deepEqual(said(agent), said(whole));
    assert.ok(count.requests > 1, "nothing was left");
  },

  async "a page that is loaded again follows the run that is under way"(Agent) {
    const first = asked(Agent, "/slow");
    let begun;
    const begins = new Promise((resolve) => {
      begun = resolve;
    });
    const running = first.runAgent({}, { onTextMessageContentEvent: () => begun() });
    await begins;
    const second = new Agent({ url: first.url, threadId: first.threadId });
    await second.connectAgent();
    await running;
    assert.deepEqual(second.messages, first.messages);
    assert.equal(second.messages.length, 2);
  },

  async "a page that is loaded again shows a thread that has no run"(Agent) {
    const first = asked(Agent, "/tool");
    await first.runAgent();
    const second = new Agent({ url: first.url, threadId: first.threadId });
    await second.connectAgent();
    assert.deepEqual(said(second), said(first));
    const nobody = new Agent({ url: first.url, threadId: randomUUID() });
    await nobody.connectAgent();
    assert.deepEqual(nobody.messages, []);
  },

  async "what is refused is not asked for again"(Agent) {
    const count = { requests: 0 };
    const agent = asked(Agent, "/nowhere", { fetch: breaking(100, count) });
    await assert.rejects(agent.runAgent(), /404/);
    assert.equal(count.requests, 1);
  },

  async "a run that is given up is not taken up again"(Agent) {
    const count = { requests: 0 };
    const agent = asked(Agent, "/slow", { fetch: breaking(1000, count) });
    const running = agent.runAgent({}, { onTextMessageContentEvent: () => agent.abortRun() });
    await running.catch(() => undefined);
    assert.equal(count.requests, 1);
  },
};

const Agent = await load();
// The official client tells of every error it is given.
console.error = () => undefined;
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check(Agent);
    console.log(`PASS ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
}
process.exit(failed === 0 ? 0 : 1);
