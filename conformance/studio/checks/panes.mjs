// What the panes of the inspector show, of a session that is over and of a run that is under way.

import assert from "node:assert/strict";
import { PANES, conversation, hears, pane, rests, route, say } from "../studio.mjs";

const rowsOf = (page, list) => page.getByTestId(list).getByRole("option");

export const panes = {
  async "events: all of the log, filtered, chosen and copied"(studio) {
    const page = await studio.open("guide/tour/events");
    await page.waitForFunction(() => document.querySelector("[data-testid=events] [role=option]")?.getAttribute("aria-setsize") === "14");
    await page.getByTestId("event-filter").fill("umbrella map");
    await page.waitForFunction(() => document.querySelectorAll("[data-testid=events] [role=option]").length < 14);
    for (const text of await rowsOf(page, "events").allInnerTexts()) {
      assert.doesNotMatch(text, /Paris/);
    }
    await page.getByTestId("event-filter").fill("");
    await rowsOf(page, "events").filter({ hasText: "celsius" }).or(rowsOf(page, "events").filter({ hasText: "get_weather" })).first().click();
    await page.getByTestId("event-detail").getByText("get_weather").first().waitFor();
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByTestId("event-detail").getByRole("button", { name: "Copy as JSON" }).click();
    const copied = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
    assert.equal(copied.author, "guide");
  },

  async "events: what came over the wire is there, too"(studio) {
    const page = await studio.open("guide");
    await pane(page, "events");
    await page.getByTestId("source-wire").click();
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
    await rests(page);
    const shown = (await rowsOf(page, "events").allInnerTexts()).join("\n");
    assert.match(shown, /RUN_STARTED.*TOOL_CALL_START.*TEXT_MESSAGE_START/s);
  },

  async "events: a session is forked from any of them"(studio) {
    const page = await studio.open("guide/tour/events");
    await rowsOf(page, "events").filter({ hasText: "umbrella" }).first().waitFor();
    await rowsOf(page, "events").nth(4).click();
    await page.getByTestId("fork-event").click();
    await page.waitForURL((url) => !url.hash.includes("/tour"));
    await page.getByTestId("agent-message").first().waitFor();
    const said = await conversation(page);
    assert.ok(said.includes("Paris") && !said.includes("pack a map"), said);
  },

  async "trace: spans of a run that is over, and the prompt of a model call"(studio) {
    const page = await studio.open("guide/tour/trace");
    await rowsOf(page, "trace").first().waitFor();
    await page.getByTestId("trace-run").selectOption("tour-run-1");
    await page.waitForURL((url) => url.hash.includes("tour-run-1"));
    await page.locator("[data-testid=trace] [data-kind=tool]").first().waitFor();
    const kinds = await page.locator("[data-testid=trace] [data-kind]").evaluateAll((all) => all.map((one) => one.dataset.kind));
    assert.ok(kinds.includes("run") && kinds.includes("model"), kinds.join());
    await page.locator("[data-testid=trace] [data-kind=model]").first().click();
    await page.getByTestId("span-detail").getByText("Takes").waitFor();
    await page.getByTestId("span-detail").getByRole("link", { name: "Its prompt" }).click();
    await page.getByTestId("prompt").getByText("weather in Paris").first().waitFor();
  },

  async "trace: all bars are drawn on the same scale, however much stands beside them"(studio) {
    const page = await studio.page({}, studio.proxy.address);
    await page.route(/\/trace\?/, async (route) => {
      const trace = await (await route.fetch()).json();
      for (const span of trace.spans.filter((one) => one.kind === "model")) {
        span.usage = { input: 1_234_567_890, output: 7_654_321 };
      }
      await route.fulfill({ json: trace });
    });
    await page.goto(`${studio.proxy.address}/studio/#/guide/tour/trace`);
    await page.locator("[data-testid=trace] .span-time").filter({ hasText: "1242222211 tok" }).first().waitFor();
    const lanes = await page.locator("[data-testid=trace] .span-lane").evaluateAll((all) => all.map((one) => one.getBoundingClientRect()).map(({ left, width }) => `${left} ${width}`));
    assert.equal(new Set(lanes).size, 1, lanes.join(", "));
  },

  async "trace: a live run is recorded, with tokens where models tell them"(studio) {
    const page = await studio.open("guide");
    await pane(page, "trace");
    await say(page, "weather in Paris and Rome");
    await hears(page, /Rome: /);
    await rests(page);
    await page.locator("[data-testid=trace] [data-kind=tool]").nth(1).waitFor();
    const names = await page.locator("[data-testid=trace] [data-kind]").allInnerTexts();
    assert.equal(names.filter((name) => name.includes("get_weather")).length, 2, names.join("; "));
    assert.ok(!(await page.locator(".trace-summary").innerText()).includes("times from the log"));
  },

  async "state: what it is, and what each event changed"(studio) {
    const page = await studio.open("guide/tour/state");
    await page.getByTestId("state").getByText("packing_list").first().waitFor();
    const now = await page.getByTestId("state").innerText();
    assert.match(now, /umbrella.*map/s);
    assert.match(now, /Oslo/);
    await page.getByRole("button", { name: "Previous change" }).click();
    await page.getByText("2 of 2").waitFor();
    assert.match(await page.getByTestId("state").innerText(), /added/);
    await page.getByRole("button", { name: "Previous change" }).click();
    await page.getByText("1 of 2").waitFor();
    assert.doesNotMatch(await page.getByTestId("state").innerText(), /Oslo/);
  },

  async "state: it changes while an agent writes it"(studio) {
    const page = await studio.open("guide");
    await pane(page, "state");
    await say(page, "pack a lamp");
    await page.getByTestId("state").getByText("lamp").filter({ visible: true }).first().waitFor();
    await rests(page);
    await say(page, "pack a rope");
    await page.getByTestId("state").getByText("rope").filter({ visible: true }).first().waitFor();
  },

  async "graph: agents, their tools, and who is at work"(studio) {
    const page = await studio.open("guide");
    await pane(page, "graph");
    const node = page.getByTestId("graph").getByRole("button", { name: /guide/ }).first();
    await node.waitFor();
    await node.click();
    await page.getByTestId("agent-detail").getByText("get_weather").first().waitFor();
    await page.evaluate(() => {
      globalThis.worked = new Set();
      const graph = document.querySelector("[data-testid=graph]");
      const note = () => graph.querySelectorAll(".is-active").forEach((one) => globalThis.worked.add(one.textContent));
      new MutationObserver(note).observe(graph, { subtree: true, attributes: true, childList: true });
    });
    await say(page, "where should I go?");
    await hears(page, /Go to Lisbon/);
    await rests(page);
    const worked = await page.evaluate(() => [...globalThis.worked]);
    assert.ok(worked.some((text) => text.includes("guide")), worked.join());
    assert.equal(await page.locator("[data-testid=graph] .is-active").count(), 0);
  },

  async "prompt: what a model was asked, and what of it is new"(studio) {
    const page = await studio.open("guide");
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
    await rests(page);
    await pane(page, "prompt");
    const steps = page.getByTestId("prompt-steps").getByRole("button");
    await steps.nth(1).waitFor();
    await page.getByTestId("prompt").getByText(/all of it is new/).waitFor();
    await steps.nth(1).click();
    await page.getByTestId("prompt").getByText(/2 of 3 messages are new/).waitFor();
    const shown = await page.getByTestId("prompt").innerText();
    assert.match(shown, /weather in Rome/);
    assert.match(shown, /get_weather/);
  },

  async "docs: the guide's pages, one from another"(studio) {
    const page = await studio.open("guide");
    await pane(page, "docs");
    await page.getByTestId("doc").getByRole("heading").first().waitFor();
    await page.goto(`${studio.proxy.address}/studio/#/guide/tour/docs/server`);
    await page.getByTestId("doc").getByText("Last-Event-ID").first().waitFor();
    assert.ok((await page.getByTestId("doc").locator("table").count()) > 0);
  },

  async "every pane can be looked at while a run is under way"(studio) {
    const page = await studio.open("team");
    await say(page, "plan a day in Oslo");
    for (const name of PANES) {
      await pane(page, name);
      await studio.picture(page, `live-${name}`);
    }
    await hears(page, /Here is your day/);
    await rests(page);
    assert.equal(route(page)[2], PANES.at(-1));
  },
};
