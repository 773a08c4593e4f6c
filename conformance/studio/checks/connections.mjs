// What happens when connections break.

import assert from "node:assert/strict";
import { conversation, hears, looksAgain, rests, say } from "../studio.mjs";

const LONG_ANSWER = "where should I go?";
const ITS_END = /Say `?book 3 nights in Lisbon`?\./;

/** What the browser itself says of a connection that broke. */
const BROKEN = /net::ERR_|Failed to load resource/;

export const connections = {
  async "a stream that is cut is taken up again, and nothing is lost or doubled"(studio) {
    studio.excused = BROKEN;
    const page = await studio.open("guide");
    await say(page, LONG_ANSWER);
    await hears(page, ITS_END);
    await rests(page);
    const uncut = await conversation(page);
    const cuts = studio.proxy.cuts;
    for (const bytes of [200, 700, 1500]) {
      await page.getByTestId("new-session").click();
      await page.getByTestId("suggestions").waitFor();
      studio.proxy.cutAfter(bytes);
      await say(page, LONG_ANSWER);
      await hears(page, ITS_END);
      await rests(page);
      assert.equal(await conversation(page), uncut, `cut after ${bytes} bytes`);
    }
    assert.equal(studio.proxy.cuts - cuts, 3, "each stream was cut");
  },

  async "a server that cannot be reached for a while is waited for"(studio) {
    studio.excused = BROKEN;
    const page = await studio.open("guide");
    await say(page, LONG_ANSWER);
    await page.getByTestId("agent-message").or(page.getByTestId("thought")).first().waitFor();
    studio.proxy.down();
    try {
      await page.locator("[data-testid=connection][data-state=reconnecting]").waitFor();
    } finally {
      studio.proxy.up();
    }
    await hears(page, ITS_END);
    await page.locator("[data-testid=connection][data-state=idle]").waitFor({ state: "attached" });
  },

  async "a reload in the middle of a run loses nothing"(studio) {
    const page = await studio.open("guide");
    await say(page, LONG_ANSWER);
    await hears(page, ITS_END);
    await rests(page);
    const whole = await conversation(page);
    await page.getByTestId("new-session").click();
    await page.getByTestId("suggestions").waitFor();
    await say(page, LONG_ANSWER);
    await page.getByTestId("agent-message").or(page.getByTestId("thought")).first().waitFor();
    const thread = new URL(page.url()).hash.split("/")[2];
    const read = page.waitForResponse((response) => response.url().endsWith(`/threads/${thread}`) && response.ok());
    await page.reload();
    const { runningRunId } = await (await read).json();
    assert.notEqual(runningRunId, null, "the run was over before the page was back");
    await hears(page, ITS_END);
    await rests(page);
    assert.equal(await conversation(page), whole);
  },

  async "a short run on one page is seen on another that shows the same session"(studio) {
    const first = await studio.open("guide");
    await say(first, "weather in Rome");
    await hears(first, /Rome: /);
    await rests(first);
    const thread = new URL(first.url()).hash.split("/")[2];
    const second = await studio.open(`guide/${thread}`);
    await hears(second, /Rome: /);
    await looksAgain(second);
    await say(first, "weather in Oslo");
    await hears(first, /Oslo: /);
    await rests(first);
    await looksAgain(second);
    await hears(second, /Oslo: /);
    assert.equal(await second.getByTestId("user-message").count(), 2);
  },

  async "a message that did not get through is sent when somebody tries again"(studio) {
    studio.excused = BROKEN;
    const page = await studio.open("guide");
    // No pauses: a person would wait for a minute.
    await page.evaluate(() => {
      const wait = window.setTimeout;
      window.setTimeout = (run, ms, ...more) => wait(run, Math.min(ms ?? 0, 5), ...more);
    });
    studio.proxy.down();
    try {
      await say(page, "weather in Rome");
      await page.locator("[data-testid=connection][data-state=lost]").waitFor();
    } finally {
      studio.proxy.up();
    }
    await page.getByTestId("connection").getByRole("button", { name: "Try again" }).click();
    await hears(page, /Rome: /);
    await rests(page);
    assert.equal(await page.getByTestId("user-message").count(), 1);
  },

  async "a question that is open is there after a reload"(studio) {
    const page = await studio.open("booking");
    await say(page, "book 3 nights in Lisbon");
    await page.getByTestId("approval").waitFor();
    await page.reload();
    await page.getByTestId("approval").getByRole("button", { name: "Approve" }).click();
    await hears(page, /Booked: 3 nights in Lisbon/);
  },
};
