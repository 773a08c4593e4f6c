// `umbel serve` with agents that want credentials, as a person would set it up: a file, and a service that has pages to sign in.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** What comes before all paths. */
const BASE = "/at/home";

/** A port that nobody listens at. */
async function freePort() {
  const server = createServer();
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

/** What the service offers, and whom it asks for what. */
const document = (service) => ({
  openapi: "3.1.0",
  servers: [{ url: service }],
  paths: {
    "/api": { get: { operationId: "weather", security: [{ login: ["weather.read", "places"] }] } },
    "/shop": { get: { operationId: "order", security: [{ key: [] }] } },
  },
  components: {
    securitySchemes: {
      key: { type: "apiKey", in: "query", name: "key" },
      login: { type: "oauth2", flows: { authorizationCode: { authorizationUrl: `${service}/consent`, tokenUrl: `${service}/token` } } },
    },
  },
});

/** Agents whose tools need somebody to sign in or a key. Those of `elsewhere` come back to a page that is not the studio's. */
const agents = (service, back) => `
[agents.guide]
script = [{ call = "weather" }, "Take a hat along."]
tools = ["weather"]

[agents.elsewhere]
script = [{ call = "far_weather" }, "Take a hat along."]
tools = ["far"]

[agents.clerk]
script = [{ call = "order" }, "It is on its way."]
tools = ["shop"]

${["weather", "far", "shop"].map((name) => `
[tools.${name}]
kind = "openapi"
file = "service.json"
operations = ["${name === "shop" ? "order" : "weather"}"]
prefix = "${name === "far" ? "far_" : ""}"
allow_private = ["${new URL(service).host}"]
`).join("")}
[tools.weather.security]
login = { client_id = "umbel-public", redirect_uri = "${back}" }

[tools.far.security]
login = { client_id = "umbel-public", redirect_uri = "https://app.example/callback" }

[tools.shop.security]
key = { ask = true }
`;

/** Starts it on a port of its own, and waits until it listens. */
export async function serveSignIns(umbel, service) {
  const folder = mkdtempSync(join(tmpdir(), "umbel-signing-in-"));
  const port = await freePort();
  const address = `http://127.0.0.1:${port}${BASE}`;
  writeFileSync(join(folder, "service.json"), JSON.stringify(document(service)));
  writeFileSync(join(folder, "agents.toml"), agents(service, `${address}/studio/signed-in`));
  const server = spawn(umbel, ["serve", "--agents", "agents.toml", "--port", port, "--base-path", BASE, "--store", "memory:"], { cwd: folder });
  const served = {
    address,
    /** All that it printed. */
    log: "",
    stop() {
      server.kill("SIGKILL");
      rmSync(folder, { recursive: true });
    },
  };
  await new Promise((listening, ended) => {
    const note = (bytes) => {
      served.log += bytes;
      if (served.log.includes(address)) listening();
    };
    server.stdout.on("data", note);
    server.stderr.on("data", note);
    server.on("error", ended).on("exit", () => ended(new Error(`umbel serve ended: ${served.log}`)));
  });
  return served;
}
