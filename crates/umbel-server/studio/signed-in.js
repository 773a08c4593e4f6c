// The page that people are sent back to when they signed in at a service. It hands its own address to the tab that asked, and
// keeps nothing of it. A tab that did not ask never hears of it.

import { copy, h, icon, replace } from "./dom.js";
import { handOver } from "./sign-in.js";
import "./theme.js";

/** How long nobody may answer until people are told what to do, in milliseconds. */
const PATIENCE = 2_000;
/** How often the studio is called. */
const AGAIN = 1_000;

const app = /** @type {HTMLElement} */ (document.getElementById("app"));

/** @param {string} image @param {string} title @param {string} text @param {HTMLElement} [more] */
function show(image, title, text, more) {
	document.title = `${title} · Umbel studio`;
	replace(app, h("main", { class: `alone came-back ${image === "check" ? "is-done" : ""}`, testid: "signed-in" }, icon(image), h("h1", null, title), h("p", { role: "status" }, text), more));
}

const address = location.href;
const { searchParams } = new URL(address);
if (searchParams.has("state")) {
	show("clock", "Just a moment", "This is handed over to the studio.");
	const late = setTimeout(() => {
		const button = h("button.button", { onclick: () => void copy(address, "Copied. Give it to nobody else.") }, icon("copy"), "Copy the address");
		show("warning", "No studio waits for this here", "If you were asked in another browser, at another address or in a terminal, put in the address of this page there. Else you may close this window.", button);
	}, PATIENCE);
	const again = handOver(address, () => {
		clearInterval(calls);
		clearTimeout(late);
		// What is used up needs to be seen by nobody.
		history.replaceState(null, "", location.pathname);
		if (searchParams.has("error")) show("cross", "You are not signed in", "The service did not let you in. You can try again in the studio, and may close this window.");
		else show("check", "You are signed in", "The studio goes on. You may close this window.");
	});
	const calls = setInterval(again, AGAIN);
} else show("key", "Nothing to do here", "People come to this page once they signed in at a service. You may close this window.");
