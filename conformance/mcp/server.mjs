// The official client against our MCP server, over HTTP and over standard input and output:
// `node server.mjs ADDRESS PROGRAM`.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, ElicitRequestSchema, McpError } from "@modelcontextprotocol/sdk/types.js";

const [address, program] = process.argv.slice(2);
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL("/mcp", address)),
  stdio: () => new StdioClientTransport({ command: program, args: ["--stdio"], stderr: "inherit" }),
};

/// A client, and what it was asked.
async function connect(transport, answer) {
  const capabilities = answer ? { elicitation: {} } : {};
  const client = new Client({ name: "umbel-checks", version: "1" }, { capabilities });
  const asked = [];
  if (answer) {
    client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
      asked.push(params);
      return answer(params);
    });
  }
  await client.connect(transport());
  return { client, asked };
}

const text = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text);
const call = (client, name, args = {}) => client.callTool({ name, arguments: args });

const checks = {
  async "lists what there is"(transport) {
    const { client } = await connect(transport);
    assert.equal(client.getServerVersion().name, "umbel-conformance");
    const { tools } = await client.listTools();
    const counter = tools.find((tool) => tool.name === "counter");
    assert.equal(counter.description, "Counts what it is told.");
    assert.deepEqual(counter.inputSchema.required, ["request"]);
    assert.equal(counter.outputSchema.properties.turns.type, "integer");
    assert.equal((await client.listResources()).resources.length, 3);
    assert.equal((await client.listPrompts()).prompts.length, 4);
    await client.close();
  },

  async "calls, and gets structures that fit"(transport) {
    const { client } = await connect(transport);
    // The client checks the structure against the schema that was listed.
    await client.listTools();
    const first = await call(client, "counter", { request: "one" });
    assert.deepEqual(first.structuredContent, { turns: 1 });
    const session = first._meta["umbel/session"];
    assert.equal(text(first)[1], `session: ${session}`);
    const second = await call(client, "counter", { request: "two", session });
    assert.deepEqual(second.structuredContent, { turns: 2 });
    assert.deepEqual((await call(client, "counter", { request: "new" })).structuredContent, { turns: 1 });
    await client.close();
  },

  async "is told how far things are"(transport) {
    const { client } = await connect(transport);
    const told = [];
    const onprogress = (progress) => told.push(progress);
    await client.callTool({ name: "test_tool_with_progress" }, CallToolResultSchema, { onprogress });
    assert.deepEqual(told.map(({ progress }) => progress), [0, 50, 100]);
    assert.equal(told[1].message, "50 of 100");
    await client.close();
  },

  async "cancels"(transport) {
    const { client } = await connect(transport);
    const before = (await call(client, "given_up")).structuredContent.givenUp;
    const stop = new AbortController();
    const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
    await assert.rejects(client.callTool({ name: "wait" }, CallToolResultSchema, options));
    const over = Date.now() + 10_000;
    while ((await call(client, "given_up")).structuredContent.givenUp === before) assert.ok(Date.now() < over);
    await client.close();
  },

  async "asks people"(transport) {
    const accept = (content) => () => ({ action: "accept", content });
    const answers = [
      [accept({ confirm: true }), (result) => assert.deepEqual(text(result), ["deleted"])],
      [accept({ confirm: false }), (result) => assert.equal(result.isError, true)],
      [() => ({ action: "decline" }), (result) => assert.equal(result.isError, true)],
      [() => ({ action: "cancel" }), (result) => assert.match(text(result)[0], /^This waits for an answer/)],
    ];
    for (const [answer, check] of answers) {
      const { client, asked } = await connect(transport, answer);
      check(await call(client, "delete"));
      assert.equal(asked.length, 1);
      assert.equal(asked[0].requestedSchema.properties.confirm.type, "boolean");
      await client.close();
    }
    const { client } = await connect(transport);
    assert.match(text(await call(client, "delete"))[0], /this client cannot ask one/);
    await client.close();
  },

  async "tells what went wrong"(transport) {
    const { client } = await connect(transport);
    const failed = await call(client, "test_error_handling");
    assert.equal(failed.isError, true);
    assert.deepEqual(text(failed), ["This tool intentionally returns an error for testing"]);
    const misfit = await call(client, "counter", { request: 5 });
    assert.equal(misfit.isError, true);
    assert.match(text(misfit)[0], /^the arguments do not fit `counter`/);
    await assert.rejects(call(client, "no_such_tool"), (error) => error instanceof McpError && error.code === -32602);
    await client.close();
  },

  async "keeps two clients apart"(transport) {
    const [one, two] = [await connect(transport), await connect(transport)];
    const told = [];
    const onprogress = (progress) => told.push(progress);
    const stop = new AbortController();
    const options = { signal: stop.signal, onprogress };
    const waiting = two.client.callTool({ name: "wait" }, CallToolResultSchema, options);
    const given = await Promise.all([call(one.client, "test_simple_text"), call(two.client, "test_simple_text")]);
    for (const result of given) assert.deepEqual(text(result), ["This is a simple text response for testing."]);
    await one.client.close();
    assert.deepEqual((await call(two.client, "counter", { request: "still there" })).structuredContent, { turns: 1 });
    stop.abort("enough");
    await assert.rejects(waiting);
    await two.client.close();
  },

  async "ends its session"(transport) {
    const { client } = await connect(transport);
    if (!client.transport.terminateSession) return client.close();
    assert.ok(client.transport.sessionId);
    await client.transport.terminateSession();
    await client.close();
  },
};

let failed = 0;
for (const [name, transport] of Object.entries(transports)) {
  for (const [check, run] of Object.entries(checks)) {
    try {
      await run(transport);
      console.log(`ok   ${name}: ${check}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}: ${check}\n${error.stack}`);
    }
  }
}
process.exit(failed === 0 ? 0 : 1);
