// Credentials that people give: they sign in at a service and come back, or type a key.

import assert from "node:assert/strict";
import { NARROW, hears, looksAgain, pane, rests, say } from "../studio.mjs";

/** What every secret of the service has in it. */
const CANARY = /CANARY/;
const KEY = "key-CANARY";

/** Asks for something that needs a credential. */
async function asks(page, words = "how is it?") {
  await say(page, words);
  const question = page.getByTestId("approval");
  await question.waitFor();
  return question;
}

/** Opens the page to sign in, in a tab of its own, and answers it. */
async function signIn(page, answer) {
  const [tab] = await Promise.all([page.context().waitForEvent("page"), page.getByTestId("sign-in").click()]);
  const requests = [];
  tab.on("request", (request) => requests.push(request));
  await tab.getByRole("button", { name: answer }).click();
  return { tab, requests };
}

/** The words of the page that people come back to. */
const words = (tab, title) => tab.getByTestId("signed-in").filter({ hasText: title }).innerText();

/** Looks where secrets must not be: the page, what it keeps, the log and the wire. */
async function findsNone(page) {
  await page.bringToFront();
  await page.locator("[data-testid=tool-card] summary").first().click();
  for (const source of ["source-log", "source-wire"]) {
    await pane(page, "events");
    await page.getByTestId(source).click();
    for (const row of await page.getByTestId("events").getByRole("option").all()) {
      await row.click();
      assert.doesNotMatch(await page.content(), CANARY);
    }
  }
  for (const name of ["trace", "state", "prompt"]) {
    await pane(page, name);
    assert.doesNotMatch(await page.content(), CANARY, name);
  }
  const kept = await page.evaluate(() => [...Object.values(localStorage), ...Object.values(sessionStorage), ...[...document.querySelectorAll("input, textarea")].map((field) => field.value)].join());
  assert.doesNotMatch(kept, CANARY);
  assert.doesNotMatch(page.url(), CANARY);
}

/** Notes what goes over the network: the address and body of each request, and what came back. */
function watch(page) {
  const sent = [];
  const came = [];
  page.on("request", (request) => sent.push(`${request.method()} ${request.url()} ${request.postData() ?? ""} ${JSON.stringify(request.headers())}`));
  page.on("response", (response) => came.push(response.text().catch(() => "")));
  return { sent, came: async () => (await Promise.all(came)).join("\n") };
}

export const credentials = {
  async "people sign in at a service and come back by themselves"(studio) {
    const page = await studio.openSigningIn("guide");
    const { sent, came } = watch(page);
    const question = await asks(page);
    const shown = await question.innerText();
    const { host } = new URL(studio.service);
    for (const told of [`${host}/login`, `Sign in at\n${host}`, "weather.read", "places", "the studio, by itself"]) assert.ok(shown.includes(told), shown);
    await studio.picture(page, "sign-in-asked");
    await studio.axe(page, "a question to sign in");
    const [tab] = await Promise.all([page.context().waitForEvent("page"), page.getByTestId("sign-in").click()]);
    await page.getByText(`Waiting for you to come back from ${host}.`).waitFor();
    await studio.picture(page, "sign-in-waiting");
    const requests = [];
    tab.on("request", (request) => requests.push(request));
    assert.equal(await tab.evaluate(() => globalThis.opener), null);
    await tab.getByRole("button", { name: "Agree" }).click();
    assert.match(await words(tab, "You are signed in"), /You may close this window/);
    await studio.picture(tab, "signed-in");
    await studio.axe(tab, "the page that people come back to");
    await hears(page, "Take a hat along.");
    await page.bringToFront();
    await rests(page);
    const card = page.locator("[data-tool=weather][data-state=done]");
    await card.locator("summary").first().click();
    await card.getByText("sunny").waitFor();
    await studio.picture(page, "sign-in-done");
    await card.locator("summary").first().click();
    // The code is in the address that the service led to and in the one answer to the question, and in nothing else.
    assert.equal(tab.url(), `${studio.served.address}/studio/signed-in`);
    const own = requests.filter((request) => request.url().startsWith(studio.served.address));
    assert.ok(own.length >= 4, `${own.length} requests`);
    for (const request of own) assert.doesNotMatch(request.headers().referer ?? "", /signed-in/);
    assert.equal(own.filter((request) => CANARY.test(request.url())).length, 1);
    assert.deepEqual(sent.filter((one) => CANARY.test(one)).map((one) => one.slice(0, 5)), ["POST "]);
    assert.doesNotMatch(await came(), CANARY);
    await findsNone(page);
    assert.doesNotMatch(studio.served.log, CANARY);
  },

  async "who comes back with another state, or to a browser that did not ask, changes nothing"(studio) {
    const page = await studio.openSigningIn("guide");
    const { sent } = watch(page);
    const question = await asks(page);
    const link = await page.getByTestId("sign-in").getAttribute("href");
    const { tab } = await signIn(page, "Come back with another state");
    assert.match(await words(tab, "No studio waits for this here"), /put in the address of this page there/);
    await studio.picture(tab, "signed-in-nobody-waits");
    await studio.axe(tab, "the page that nobody waits for");
    await tab.getByRole("button", { name: "Copy the address" }).click();
    await tab.getByTestId("toast").filter({ hasText: "Copied" }).waitFor();
    const before = sent.length;
    const stranger = await studio.page({}, new URL(studio.served.address).origin);
    await stranger.goto(`${studio.served.address}/studio/signed-in`);
    assert.match(await words(stranger, "Nothing to do here"), /You may close this window/);
    const other = await stranger.context().newPage();
    await other.goto(link);
    await other.getByRole("button", { name: "Agree" }).click();
    await words(other, "No studio waits for this here");
    assert.ok(await question.isVisible());
    assert.equal(sent.slice(before).filter((one) => one.startsWith("POST")).length, 0);
    // Put in by hand, it is as good.
    await question.getByText("It does not come back?").click();
    await question.getByLabel("The address of the page").fill(other.url());
    await studio.picture(page, "sign-in-pasted");
    await question.getByRole("button", { name: "Give it" }).click();
    await hears(page, "Take a hat along.");
    await findsNone(page);
  },

  async "an address that is no answer is refused with words, and people try again"(studio) {
    studio.excused = /status of 4\d\d/;
    const page = await studio.openSigningIn("guide");
    const question = await asks(page);
    await question.getByText("It does not come back?").click();
    await question.getByLabel("The address of the page").fill(`${studio.served.address}/studio/signed-in?code=code-CANARY-0&state=another`);
    await question.getByRole("button", { name: "Give it" }).click();
    await page.getByTestId("problem").filter({ hasText: "`state` is not that of the question" }).waitFor();
    await question.waitFor();
    await studio.picture(page, "sign-in-refused");
    const { tab } = await signIn(page, "Say no");
    assert.match(await words(tab, "You are not signed in"), /did not let you in/);
    await studio.picture(tab, "signed-in-denied");
    const { host } = new URL(studio.service);
    await question.getByText(`${host} did not let you in (access_denied).`).waitFor();
    await page.bringToFront();
    await studio.picture(page, "sign-in-denied");
    await studio.axe(page, "a question to somebody who was not let in");
    const again = await signIn(page, "Say no");
    await words(again.tab, "You are not signed in");
    await question.getByText(`${host} did not let you in (access_denied).`).waitFor();
    assert.equal(await question.getByText("Waiting for you to come back").count(), 0);
    await signIn(page, "Agree");
    await hears(page, "Take a hat along.");
    assert.equal(await page.getByTestId("problem").count(), 0);
  },

  async "a studio that was reloaded or shows another session meanwhile goes on, and one of two tabs answers"(studio) {
    const page = await studio.openSigningIn("guide");
    const { sent } = watch(page);
    await asks(page);
    const twin = await page.context().newPage();
    const { sent: sentByTwin } = watch(twin);
    await twin.goto(page.url());
    await twin.getByTestId("sign-in").waitFor();
    await page.reload();
    await page.getByTestId("sign-in").waitFor();
    for (const one of [page, twin]) await looksAgain(one);
    const thread = page.url();
    const [tab] = await Promise.all([page.context().waitForEvent("page"), page.getByTestId("sign-in").click()]);
    await page.getByTestId("new-session").click();
    await page.getByTestId("suggestions").or(page.locator(".welcome")).first().waitFor();
    await tab.getByRole("button", { name: "Agree" }).click();
    await words(tab, "You are signed in");
    await page.bringToFront();
    await page.goto(thread);
    // One of them answered; the other hears of it by the list.
    for (const one of [page, twin]) {
      await looksAgain(one);
      await hears(one, "Take a hat along.");
    }
    const answers = [...sent, ...sentByTwin].filter((one) => one.startsWith("POST") && CANARY.test(one));
    assert.equal(answers.length, 1);
  },

  async "where people come back to another page they put in its address"(studio) {
    const page = await studio.openSigningIn("elsewhere", { viewport: NARROW, colorScheme: "dark" });
    const question = await asks(page);
    assert.match(await question.innerText(), /Then back to\s+app\.example/);
    await studio.picture(page, "sign-in-elsewhere");
    await studio.axe(page, "a question to sign in, narrow and dark");
    const [tab] = await Promise.all([page.context().waitForEvent("page"), page.getByTestId("sign-in").click()]);
    const back = tab.waitForRequest((request) => request.url().startsWith("https://app.example/"));
    await tab.getByRole("button", { name: "Agree" }).click();
    await question.getByLabel("The address of the page").fill((await back).url());
    await question.getByRole("button", { name: "Give it" }).click();
    await hears(page, "Take a hat along.");
  },

  async "who does not sign in is done without"(studio) {
    const page = await studio.openSigningIn("guide");
    const question = await asks(page);
    await question.getByRole("button", { name: "Do not sign in" }).click();
    await page.locator("[data-tool=weather][data-state=failed]").waitFor();
    await hears(page, "Take a hat along.");
    await studio.picture(page, "sign-in-not-given");
  },

  async "a key is typed, sent once, and shown nowhere"(studio) {
    const page = await studio.openSigningIn("clerk");
    const { sent, came } = watch(page);
    const question = await asks(page, "order it");
    assert.match(await question.innerText(), /models do not see it/);
    const field = question.getByLabel("API key");
    assert.equal(await field.getAttribute("type"), "password");
    await field.fill(KEY);
    await studio.picture(page, "key-asked");
    await studio.axe(page, "a question for a key");
    await field.press("Enter");
    await hears(page, "It is on its way.");
    await rests(page);
    const card = page.locator("[data-tool=order][data-state=done]");
    await card.locator("summary").first().click();
    await card.getByText("ordered").first().waitFor();
    await studio.picture(page, "key-given");
    await card.locator("summary").first().click();
    await findsNone(page);
    assert.equal(sent.filter((one) => one.includes(KEY)).length, 1);
    assert.doesNotMatch(await came(), CANARY);
    assert.doesNotMatch(studio.served.log, CANARY);
  },
};
