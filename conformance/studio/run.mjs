// Drives the studio with a headless Chromium, against a running `umbel serve`.
//
// node run.mjs ADDRESS SCREENSHOTS [--guarded ADDRESS] [--umbel BINARY --service ADDRESS] [--only NAME]
//
// The server has the sessions of fixture.mjs; the guarded one wants a token. People sign in at the service (the example
// `oauth_server` of umbel-tools), for agents that the binary serves. Prints PASS or FAIL per check; the exit code is 1 if anything fails.

import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { access } from "./checks/access.mjs";
import { connections } from "./checks/connections.mjs";
import { credentials } from "./checks/credentials.mjs";
import { guarded } from "./checks/guarded.mjs";
import { panes } from "./checks/panes.mjs";
import { speed } from "./checks/speed.mjs";
import { talking } from "./checks/talking.mjs";
import { startProxy } from "./proxy.mjs";
import { Studio } from "./studio.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    guarded: { type: "string" },
    umbel: { type: "string" },
    service: { type: "string" },
    only: { type: "string", default: "" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
  },
});
const [address, screenshots] = positionals;
const checks = { ...talking, ...connections, ...panes, ...access, ...(values.guarded ? guarded : {}), ...(values.service ? credentials : {}), ...speed };

const { status } = await fetch(`${address}/studio/`);
if (status !== 200) {
  console.log(`${address}/studio/ is answered with ${status}: there is nothing to look at`);
  process.exit(1);
}
const proxy = await startProxy(address);
const browser = await chromium.launch({ executablePath: values.chromium });
let failed = 0;
for (const [name, check] of Object.entries(checks).filter(([name]) => name.includes(values.only))) {
  const studio = new Studio(browser, proxy, screenshots, values);
  const began = performance.now();
  const wrong = [];
  for (const step of [() => check(studio), () => studio.finish()]) {
    try {
      await step();
    } catch (error) {
      wrong.push(error.message);
    }
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  failed += wrong.length ? 1 : 0;
  console.log(`${wrong.length ? "FAIL" : "PASS"} ${name} (${seconds} s)${wrong.map((one) => `\n  ${one.replaceAll("\n", "\n  ")}`).join("")}`);
}
await browser.close();
proxy.stop();
process.exit(failed ? 1 : 0);
