// What people do in the chat.

import assert from "node:assert/strict";
import { PANES, conversation, hears, pane, rests, route, say } from "../studio.mjs";

/** How big the studio may be, as browsers get it. */
const LARGEST = 200_000;

export const talking = {
  async "the studio is small"(studio) {
    const page = await studio.open();
    const sizes = await page.evaluate(() =>
      [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .filter(({ name }) => new URL(name).pathname.startsWith("/studio/"))
        .map(({ decodedBodySize }) => decodedBodySize));
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    console.log(`  ${sizes.length} files, ${bytes} bytes`);
    assert.ok(sizes.length > 20 && bytes <= LARGEST, `${sizes.length} files, ${bytes} bytes`);
  },

  async "the first page leads to a streamed answer"(studio) {
    const page = await studio.open();
    assert.equal(new URL(page.url()).pathname, "/studio/");
    await page.evaluate(() => {
      globalThis.lengths = new Set();
      const seen = document.querySelector("[data-testid=conversation]");
      new MutationObserver(() => globalThis.lengths.add(seen.innerText.length)).observe(seen, { subtree: true, childList: true, characterData: true });
    });
    await page.getByTestId("suggestions").getByRole("button", { name: "weather in Paris and Rome" }).click();
    await hears(page, /Paris: .*°C.*Rome: .*°C/s);
    await rests(page);
    assert.equal(await page.locator("[data-tool=get_weather][data-state=done]").count(), 2);
    const lengths = await page.evaluate(() => globalThis.lengths.size);
    assert.ok(lengths >= 4, `the answer came in ${lengths} pieces`);
    await studio.picture(page, "chat");
  },

  async "a tool's card shows its arguments and its result"(studio) {
    const page = await studio.open("guide/tour");
    const card = page.locator("[data-tool=get_weather]").first();
    await card.locator("summary").click();
    await card.getByText("celsius").first().waitFor();
    assert.match(await card.innerText(), /Arguments.*city.*Paris.*Result.*21/s);
  },

  async "thoughts are shown as such"(studio) {
    const page = await studio.open("guide/tour");
    await page.getByTestId("thought").last().locator("summary").click();
    await page.getByTestId("thought").last().getByText("Somewhere mild, by the sea.").waitFor();
  },

  async "what agents say is shown, never run, and loads nothing"(studio) {
    const page = await studio.open("guide/hostile");
    await hears(page, /onerror/);
    for (const name of PANES) {
      await pane(page, name);
    }
    for (const details of await page.locator("[data-testid=conversation] summary").all()) {
      await details.click();
    }
    assert.match(await page.title(), /Umbel studio/);
    const links = await page.locator("[data-testid=conversation] a").evaluateAll((all) => all.map((one) => one.href));
    assert.ok(links.every((link) => link.startsWith("http")), links.join());
    assert.equal(await page.locator("[data-testid=conversation] :is(script, iframe, i, b, img[src^=http])").count(), 0);
  },

  async "what is written while an agent works is sent when it is done"(studio) {
    const page = await studio.open("guide");
    await say(page, "where should I go?");
    await page.getByRole("button", { name: "Stop the run" }).waitFor();
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
    await rests(page);
    assert.match(await conversation(page), /Go to Lisbon.*weather in Rome/s);
  },

  async "an approval is given, and another is refused with a reason"(studio) {
    const page = await studio.open("booking");
    await say(page, "book 3 nights in Lisbon");
    await page.getByTestId("approval").getByRole("button", { name: "Approve" }).waitFor();
    await studio.picture(page, "approval");
    await page.getByTestId("approval").getByRole("button", { name: "Approve" }).click();
    await hears(page, /Booked: 3 nights in Lisbon/);
    await rests(page);
    await say(page, "book 2 nights in Rome");
    await page.getByTestId("approval").getByLabel("Why not?").fill("too dear");
    await page.getByTestId("approval").getByRole("button", { name: "Reject" }).click();
    await hears(page, /nothing was booked/i);
  },

  async "an approval may change what is done"(studio) {
    const page = await studio.open("booking");
    await say(page, "book 3 nights in Lisbon");
    await page.getByTestId("approval").getByRole("button", { name: "Edit arguments" }).click();
    await page.getByTestId("approval").getByRole("textbox", { name: "Arguments as JSON" }).fill('{"city": "Lisbon", "nights": 5}');
    await page.getByTestId("approval").getByRole("button", { name: "Approve with these" }).click();
    await hears(page, /Booked: 5 nights in Lisbon/);
  },

  async "a tool of the page is run"(studio) {
    const page = await studio.open("painter");
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await background();
    await say(page, "make it dark");
    await page.locator("[data-tool=set_theme][data-state=done]").waitFor();
    await rests(page);
    await hears(page, /dark/i);
    assert.notEqual(await background(), light);
  },

  async "a message is edited and run again, in a session of its own"(studio) {
    const page = await studio.open("guide");
    await say(page, "weather in Oslo");
    await hears(page, /Oslo: /);
    await rests(page);
    const [, first] = route(page);
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
    await rests(page);
    const message = page.getByTestId("user-message").filter({ hasText: "weather in Rome" });
    await message.hover();
    await message.getByRole("button", { name: "Edit and run again" }).click();
    await message.getByRole("textbox", { name: "Edit the message" }).fill("weather in Vienna");
    await message.getByRole("button", { name: "Run again from here" }).click();
    await hears(page, /Vienna: /);
    await rests(page);
    assert.notEqual(route(page)[1], first);
    const said = await conversation(page);
    assert.ok(said.includes("Oslo: ") && !said.includes("Rome"), said);
    await page.goto(`${studio.proxy.address}/studio/#/guide/${first}`);
    await hears(page, /Rome: /);
    assert.ok(!(await conversation(page)).includes("Vienna"));
  },

  async "a session is forked from a message, and the copy goes on by itself"(studio) {
    const page = await studio.open("guide/tour");
    const message = page.getByTestId("user-message").filter({ hasText: "pack an umbrella" });
    await message.hover();
    await message.getByRole("button", { name: "Fork from here" }).click();
    await page.waitForURL((url) => !url.hash.includes("/tour"));
    await page.getByTestId("user-message").filter({ hasText: "pack an umbrella" }).waitFor();
    const said = await conversation(page);
    assert.ok(said.includes("weather in Paris") && !said.includes("pack a map"), said);
    await say(page, "weather in Athens");
    await hears(page, /Athens: /);
    await page.goto(`${studio.proxy.address}/studio/#/guide/tour`);
    await page.getByTestId("user-message").filter({ hasText: "where should I go?" }).waitFor();
    assert.ok(!(await conversation(page)).includes("Athens"));
  },

  async "sessions are found by their words"(studio) {
    const page = await studio.open("guide");
    await page.getByTestId("session").first().waitFor();
    await page.getByTestId("session-search").fill("WEATHER IN PARIS, FOR THE 1.");
    // The list may be short for a moment before it is the one that was searched for.
    const found = page.getByTestId("session").filter({ hasText: /weather in Paris, for the 1\./i });
    await found.waitFor();
    await page.waitForFunction(() => document.querySelectorAll("[data-testid=session]").length === 1);
    await found.getByRole("link").first().click();
    await page.waitForURL((url) => url.hash.includes("/long"));
    await page.getByTestId("session-search").fill("nobody ever said this");
    await page.getByText("No session has these words.").waitFor();
    assert.equal(await page.getByTestId("session").count(), 0);
  },

  async "the first session of an agent is listed at once"(studio) {
    const page = await studio.open("thinker");
    await say(page, "where should I go?");
    await page.getByTestId("session").filter({ hasText: "where should I go?" }).waitFor();
    assert.equal(await page.getByText("No sessions yet.").count(), 0);
    await rests(page);
  },

  async "a run is stopped, and the session goes on"(studio) {
    const page = await studio.open("guide");
    await say(page, "where should I go?");
    await page.getByRole("button", { name: "Stop the run" }).click();
    await page.getByTestId("run-cancelled").waitFor();
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
  },
};
