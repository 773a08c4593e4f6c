// Drives the page with a headless Chromium, against the agents of a running `umbel serve`.
//
// node test.mjs [--agents http://127.0.0.1:8123] [--chromium /usr/bin/chromium] [--screenshots FOLDER]
//
// Prints PASS or FAIL per check; the exit code is 1 if anything fails. `cargo xtask copilotkit` does all of it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values } = parseArgs({
  options: {
    agents: { type: "string", default: "http://127.0.0.1:8123" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
    screenshots: { type: "string" },
  },
});

/** Starts the page's server and says where it listens. */
async function serve() {
  const script = fileURLToPath(new URL("server.mjs", import.meta.url));
  const options = { stdio: ["ignore", "pipe", "inherit"] };
  const server = spawn(process.execPath, [script, "--port", "0", "--agents", values.agents], options);
  process.on("exit", () => server.kill());
  for await (const line of createInterface({ input: server.stdout })) {
    const [, address] = line.match(/listening on (\S+)/) ?? [];
    if (address) {
      server.stdout.resume();
      return { address, stop: () => server.kill() && once(server, "exit") };
    }
  }
  throw new Error("the page's server ended before it listened");
}

/** Opens the chat with an agent. */
async function chat(page, agent) {
  await page.getByRole("navigation").getByRole("button", { name: agent, exact: true }).click();
  await page.getByPlaceholder("Say something").waitFor();
}

async function say(page, words) {
  const box = page.getByPlaceholder("Say something");
  await box.fill(words);
  await box.press("Enter");
}

const sees = (page, words) => page.getByRole("main").getByText(words).last().waitFor();

const checks = {
  async "chat: an answer is streamed into the page"(page) {
    await chat(page, "guide");
    await say(page, "hello");
    await sees(page, /Hello! Ask me/);
  },
  async "backend tool: two calls in Umbel become two cards"(page) {
    await chat(page, "guide");
    await say(page, "weather in Paris and Rome");
    await sees(page, /Paris: .* °C\. Rome: .* °C\./);
    const cards = await page.getByTestId("weather").allInnerTexts();
    assert.match(cards.join(), /Paris .*°C,Rome .*°C/s);
  },
  async "client tool: the page does what the agent asks, and the agent hears of it"(page) {
    await chat(page, "painter");
    assert.equal(await page.locator("[data-theme]").getAttribute("data-theme"), "light");
    await say(page, "make it dark");
    await page.locator("[data-theme=dark]").waitFor();
    await page.getByTestId("theme").filter({ hasText: "The page is dark" }).waitFor();
    await page.getByTestId("copilot-assistant-message").filter({ hasText: /dark/i }).last().waitFor();
  },
  async "approval: what was approved is done, and the conversation goes on"(page) {
    await chat(page, "booking");
    await say(page, "book 3 nights in Lisbon");
    await page.getByTestId("approval").getByRole("button", { name: "Approve" }).click();
    await sees(page, /Booked: 3 nights in Lisbon/);
    assert.equal(await page.getByTestId("approval").count(), 0);
    await say(page, "book 2 nights in Rome");
    await page.getByTestId("approval").getByRole("button", { name: "Approve" }).click();
    await sees(page, /Booked: 2 nights in Rome/);
  },
  async "approval: what was refused is not done"(page) {
    await chat(page, "booking");
    await say(page, "book 3 nights in Lisbon");
    await page.getByTestId("approval").getByRole("button", { name: "Refuse" }).click();
    await sees(page, /nothing was booked/i);
  },
};

const server = await serve();
const browser = await chromium.launch({ executablePath: values.chromium });
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const page = await browser.newPage();
  const complaints = [];
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  page.setDefaultTimeout(15_000);
  try {
    await page.goto(server.address);
    await check(page);
    assert.deepEqual(complaints, []);
    console.log(`PASS ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n  ${error.message}\n  ${complaints.join("\n  ")}`);
  }
  if (values.screenshots) {
    await page.screenshot({ path: join(values.screenshots, `${name.replaceAll(/\W+/g, "-")}.png`) });
  }
  await page.close();
}
await browser.close();
await server.stop();
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
