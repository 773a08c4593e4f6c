// The page, and CopilotKit's runtime between it and the agents of `umbel serve`.
//
// node server.mjs [--port 3000] [--agents http://127.0.0.1:8123]

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";

const { values } = parseArgs({
  options: {
    port: { type: "string", default: "3000" },
    agents: { type: "string", default: "http://127.0.0.1:8123" },
  },
});

// CopilotKit's runtime tells its makers about itself unless it is told not to.
process.env.COPILOTKIT_TELEMETRY_DISABLED ??= "true";

/** An agent of `umbel serve`, by its path. */
const agent = (name) => new HttpAgent({ url: `${values.agents}/${name}` });

const runtime = createCopilotNodeListener({
  runtime: new CopilotRuntime({
    agents: { guide: agent("guide"), booking: agent("booking"), painter: agent("painter") },
  }),
  basePath: "/api/copilotkit",
});

const here = fileURLToPath(new URL(".", import.meta.url));
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };

/** A file of this folder: the page, or what was built for it. */
async function file(path, response) {
  const name = normalize(path === "/" ? "/index.html" : path);
  const shown = name === "/index.html" || name.startsWith("/dist/");
  const bytes = shown ? await readFile(join(here, name)).catch(() => null) : null;
  response.writeHead(bytes ? 200 : 404, { "Content-Type": types[extname(name)] ?? "application/octet-stream" });
  response.end(bytes);
}

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  return pathname.startsWith("/api/copilotkit") ? runtime(request, response) : file(pathname, response);
});
server.listen(Number(values.port), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
