// For everybody: by keyboard alone, on narrow screens, in light and dark, and read aloud.

import assert from "node:assert/strict";
import { NARROW, PANES, hears, pane, rests, say } from "../studio.mjs";

const focused = (page) => page.evaluate(() => document.activeElement?.getAttribute("data-testid") ?? document.activeElement?.textContent ?? "");

export const access = {
  async "everything works by keyboard alone"(studio) {
    const page = await studio.open("booking");
    const { keyboard } = page;
    await keyboard.press("c");
    assert.equal(await focused(page), "composer");
    await keyboard.type("book 3 nights in Lisbon");
    await keyboard.press("Enter");
    const approve = page.getByTestId("approval").getByRole("button", { name: "Approve" });
    await approve.waitFor();
    // Backwards from the field below: the answer stands above it.
    for (let times = 0; times < 40 && !(await approve.evaluate((button) => button === document.activeElement)); times += 1) {
      await keyboard.press("Shift+Tab");
    }
    await keyboard.press("Enter");
    await hears(page, /Booked: 3 nights in Lisbon/);
    await rests(page);
    for (const [at, name] of PANES.entries()) {
      await page.locator("body").press("Escape");
      await page.evaluate(() => document.activeElement?.blur());
      await keyboard.press(String(at + 1));
      await page.locator(`#tab-${name}[aria-selected=true]`).waitFor();
    }
    await page.evaluate(() => document.activeElement?.blur());
    await keyboard.press("/");
    assert.equal(await focused(page), "session-search");
    await keyboard.press("Escape");
    await keyboard.press("?");
    await page.getByTestId("shortcuts").waitFor();
    await keyboard.press("Escape");
    await page.getByTestId("shortcuts").waitFor({ state: "detached" });
  },

  async "what has the focus can be seen, everywhere"(studio) {
    const page = await studio.open("guide/tour/events");
    await page.getByTestId("agent-message").first().waitFor();
    const invisible = new Set();
    for (let times = 0; times < 60; times += 1) {
      await page.keyboard.press("Tab");
      const seen = await page.evaluate(() => {
        const element = document.activeElement;
        if (!element || element === document.body) {
          return { name: "", shows: true };
        }
        const around = [element, element.parentElement, element.closest("form")].filter(Boolean);
        const shows = around.some((one) => {
          const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(one);
          return (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
        });
        return { name: element.outerHTML.slice(0, 120), shows };
      });
      if (!seen.shows) {
        invisible.add(seen.name);
      }
    }
    assert.deepEqual([...invisible], []);
  },

  async "axe finds nothing grave, in any pane, light or dark"(studio) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await studio.open("guide/tour", { colorScheme });
      await page.getByTestId("agent-message").first().waitFor();
      for (const name of PANES) {
        await pane(page, name);
        await page.waitForLoadState("networkidle");
        await studio.picture(page, `${name}-${colorScheme}`);
        await studio.axe(page, `${name}, ${colorScheme}`);
      }
    }
  },

  async "axe finds nothing grave where an answer is awaited"(studio) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await studio.open("booking", { colorScheme });
      await say(page, "book 3 nights in Lisbon");
      await page.getByTestId("approval").waitFor();
      await rests(page);
      await studio.axe(page, `approval, ${colorScheme}`);
    }
  },

  async "light and dark follow the system, until somebody says otherwise"(studio) {
    const brightness = (page) =>
      page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).map(Number).reduce((sum, one) => sum + one));
    const page = await studio.open("guide", { colorScheme: "dark" });
    const dark = await brightness(page);
    assert.ok(dark < 3 * 96, `dark is ${dark}`);
    await page.getByTestId("theme").click();
    const light = await brightness(page);
    assert.ok(light > 3 * 200, `light is ${light}`);
    await page.reload();
    await page.getByTestId("composer").waitFor();
    assert.equal(await brightness(page), light, "it is remembered");
  },

  async "it fits a narrow screen"(studio) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await studio.open("guide/tour", { viewport: NARROW, colorScheme });
      await page.getByTestId("agent-message").first().waitFor();
      const parts = page.getByRole("navigation", { name: "Parts of the page" });
      for (const part of ["Chat", "Sessions", "Inspector"]) {
        await parts.getByRole("button", { name: part }).click();
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${part} is ${wide} pixels too wide`);
        await studio.picture(page, `narrow-${part.toLowerCase()}-${colorScheme}`);
        await studio.axe(page, `narrow, ${part}, ${colorScheme}`);
      }
      await parts.getByRole("button", { name: "Chat" }).click();
      await say(page, "weather in Dublin");
      await hears(page, /Dublin: /);
      await rests(page);
    }
  },
};
