// The studio in a browser: pages that note every complaint and every request that goes elsewhere.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { serveSignIns } from "./signing-in.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Findings that count. */
const GRAVE = ["serious", "critical"];

export const WIDE = { width: 1400, height: 900 };
export const NARROW = { width: 390, height: 844 };

/** The panes of the inspector. */
export const PANES = ["events", "trace", "state", "graph", "prompt", "docs"];

export class Studio {
  constructor(browser, proxy, screenshots, { guarded, umbel, service }) {
    this.browser = browser;
    this.proxy = proxy;
    this.guarded = guarded;
    this.umbel = umbel;
    /** Where a service is that people sign in at. */
    this.service = service;
    this.screenshots = screenshots;
    this.complaints = [];
    this.contexts = [];
    /** What the studio may complain about: a check that breaks connections breaks them. */
    this.excused = /^$/;
  }

  /** Opens the studio at a route such as `guide/t1/events`. */
  async open(route = "", options = {}) {
    const page = await this.page(options, this.proxy.address);
    await page.goto(route === "" ? this.proxy.address : `${this.proxy.address}/studio/#/${route}`);
    await page.getByTestId("composer").waitFor();
    return page;
  }

  /** Opens the studio of the server that wants a token. */
  async openGuarded() {
    const page = await this.page({}, new URL(this.guarded).origin);
    await page.goto(`${this.guarded}/`);
    return page;
  }

  /** Opens the studio of a server of its own, whose agents want credentials. */
  async openSigningIn(agent, options = {}) {
    this.served = await serveSignIns(this.umbel, this.service);
    const page = await this.page(options, new URL(this.served.address).origin);
    await page.goto(`${this.served.address}/studio/#/${agent}`);
    await page.getByTestId("composer").waitFor();
    return page;
  }

  /** A page that may ask its own server alone. */
  async page({ viewport = WIDE, colorScheme = "light", reducedMotion = "reduce" }, own) {
    const context = await this.browser.newContext({ viewport, colorScheme, reducedMotion });
    this.contexts.push(context);
    const page = await context.newPage();
    page.setDefaultTimeout(6_000);
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) {
        this.complain(`${message.type()}: ${message.text()} (${message.location().url})`);
      }
    });
    page.on("pageerror", (error) => this.complain(`uncaught: ${error.message}`));
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (origin !== own && !["data:", "blob:"].includes(protocol)) {
        this.complaints.push(`a request went to ${request.url()}`);
      }
    });
    return page;
  }

  complain(words) {
    if (!this.excused.test(words)) {
      this.complaints.push(words);
    }
  }

  /** Closes what a check opened. Nothing may have been complained of. */
  async finish() {
    for (const context of this.contexts.splice(0)) {
      await context.close();
    }
    this.served?.stop();
    assert.deepEqual(this.complaints, []);
  }

  /** Keeps a picture of a page. */
  async picture(page, name) {
    await page.screenshot({ path: join(this.screenshots, `${name}.png`) });
  }

  /** Lets axe look at a page. */
  async axe(page, where) {
    await page.evaluate(() => document.getAnimations().forEach((animation) => animation.finish()));
    // The page's own policy forbids scripts from elsewhere, so it is evaluated and not added.
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const grave = violations.filter(({ impact }) => GRAVE.includes(impact));
    const told = grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
    assert.deepEqual(told, [], `axe, ${where}`);
  }
}

/** Writes a message and sends it. */
export async function say(page, words) {
  await page.getByTestId("composer").fill(words);
  await page.getByTestId("composer").press("Enter");
}

/** Waits until an agent has said something. */
export const hears = (page, words) => page.getByTestId("agent-message").filter({ hasText: words }).last().waitFor();

/** Waits until no run is under way. */
export const rests = (page) => page.getByRole("button", { name: "Send", exact: true }).waitFor();

/** Shows a pane of the inspector. */
export async function pane(page, name) {
  await page.getByTestId(`tab-${name}`).click();
  await page.locator(`#tab-${name}[aria-selected=true]`).waitFor();
}

/** What the conversation says, without what changes from one look to the next. */
export const conversation = (page) => page.getByTestId("conversation").innerText();

/** What the address says: the agent, the thread, the pane and what it shows. */
export const route = (page) => new URL(page.url()).hash.slice(2).split("/");

/** Lets a page read its list of sessions, as it does every ten seconds. */
export async function looksAgain(page) {
  const read = page.waitForResponse((response) => /\/threads\?/.test(response.url()) && response.ok());
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await (await read).finished();
}
