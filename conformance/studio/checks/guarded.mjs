// A server that is somebody else's: behind a base path, and it wants a token.

import assert from "node:assert/strict";
import { hears, pane, rests, say } from "../studio.mjs";

/** What stands in the file of tokens. */
const TOKEN = "guarded-by-this-token-alone";

/** What the browser itself says where a token is missing. */
const UNAUTHORIZED = /status of 401/;

export const guarded = {
  async "a token is asked for, and kept by the tab alone"(studio) {
    studio.excused = UNAUTHORIZED;
    const page = await studio.openGuarded();
    const enter = async (token) => {
      await page.getByTestId("token").fill(token);
      await page.getByTestId("token").press("Enter");
    };
    await enter("nobody-has-this-token-at-all");
    await page.getByText("does not know this token").waitFor();
    await enter(TOKEN);
    await say(page, "weather in Rome");
    await hears(page, /Rome: /);
    await rests(page);
    await page.reload();
    await hears(page, /Rome: /);
    assert.ok(!page.url().includes(TOKEN));
    assert.deepEqual(await page.evaluate(() => Object.values(localStorage).join()), "");
    await pane(page, "prompt");
    await page.getByTestId("inspect-off").waitFor();
    await studio.picture(page, "guarded");
    await studio.axe(page, "a pane that is closed");
  },
};
