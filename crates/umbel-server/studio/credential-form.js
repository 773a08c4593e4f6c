// What is shown where a credential is asked for: a service to sign in at, or fields for a key.

import { h, icon, replace } from "./dom.js";
import { signInOf } from "./sign-in.js";

/** What people call the parts of a credential. @type {Record<string, string>} */
const PARTS = { authResponseUri: "The address of the page that you were sent to", apiKey: "API key", token: "Token", username: "Name", password: "Password" };

/** @param {HTMLElement} card @param {Interrupt} asked @param {Settle} settle @param {string} [error] what the service said to somebody whom it did not let in */
export function credentialForm(card, asked, settle, error) {
	const signIn = signInOf(asked);
	if (signIn) signInForm(card, asked, signIn, settle, error);
	else {
		card.append(facts([["For", kept(asked)]]), h("p.muted", null, "It is kept for this agent’s tools. It does not show in the conversation, and models do not see it."));
		card.append(fieldsForm(asked, settle, "Give it", refusal("Do not give it", settle)));
	}
}

/** Where they sign in and for what, the way there, and a field for those who do not come back by themselves. @param {HTMLElement} card @param {Interrupt} asked @param {SignIn} signIn @param {Settle} settle @param {string} [error] */
function signInForm(card, asked, signIn, settle, error) {
	const { link, host, scopes, back } = signIn;
	const comesHere = back === new URL("signed-in", document.baseURI).href;
	// Codes of the standard are short words; whatever else stands there is nobody's business.
	const why = error !== undefined && /^[a-z_]{1,40}$/.test(error) ? ` (${error})` : "";
	const problem = h("p.field-error", { role: "alert" }, error === undefined ? "" : `${host} did not let you in${why}. Sign in again, or go on without.`);
	const waiting = h("p.waiting", { role: "status" });
	const label = h("span", null, "Sign in");
	const leave = () => {
		label.textContent = "Open it again";
		problem.textContent = "";
		replace(waiting, comesHere ? [h("span.dots", { "aria-hidden": "true" }, h("i"), h("i"), h("i")), ` Waiting for you to come back from ${host}.`] : null);
	};
	const field = fieldsForm(asked, settle, "Give it");
	card.append(
		facts([
			["For", kept(asked)],
			["Sign in at", h("strong", null, host)],
			["Scopes", scopes.length > 0 ? scopes.map((scope) => h("code.scope", null, scope)) : "none: the service says what it is for"],
			["Then back to", comesHere ? "the studio, by itself" : URL.canParse(back) ? new URL(back).host || back : "the page that the service names"],
		]),
		problem,
		h("div.buttons", null,
			h("a.button.primary", { href: link, target: "_blank", rel: "noopener noreferrer", testid: "sign-in", onclick: leave, onauxclick: leave }, label, icon("out")),
			refusal("Do not sign in", settle)),
		waiting,
		comesHere
			? h("details.paste", null, h("summary.muted", null, "It does not come back? Put in the address"), field)
			: h("p.muted", null, "Once you are there, copy the whole address from your browser and put it in here."));
	if (!comesHere) card.append(field);
}

/** Fields that show nothing of what is typed. @param {Interrupt} asked @param {Settle} settle @param {string} give @param {HTMLElement} [more] */
function fieldsForm(asked, settle, give, more) {
	const names = Object.keys(asked.responseSchema?.properties ?? { authResponseUri: {} });
	const fields = names.map((name) => /** @type {const} */ ([name, h("input.field", { type: name === "username" ? "text" : "password", required: true, autocomplete: "off", spellcheck: "false" })]));
	const submit = (/** @type {Event} */ event) => {
		event.preventDefault();
		// A space may be part of a password. Who copies an address often has one too many.
		const value = (/** @type {string} */ name, /** @type {string} */ typed) => (name === "authResponseUri" ? typed.trim() : typed);
		settle({ status: "resolved", payload: Object.fromEntries(fields.map(([name, field]) => [name, value(name, field.value)])) });
		for (const [, field] of fields) field.value = "";
	};
	return h("form.answer-form", { onsubmit: submit, autocomplete: "off" },
		fields.map(([name, field]) => h("label.field-label", null, PARTS[name] ?? name, field)),
		h("div.buttons", null, h(more ? "button.button.primary" : "button.button", { type: "submit" }, give), more ?? null));
}

/** @param {string} label @param {Settle} settle */
function refusal(label, settle) {
	return h("button.button.danger-text", { onclick: () => settle({ status: "cancelled" }) }, label);
}

/** The name under which a credential is kept. @param {Interrupt} asked */
function kept(asked) {
	return String(asked.metadata?.payload?.credentialKey ?? "this agent");
}

/** @param {[string, Child][]} all */
function facts(all) {
	return h("dl.facts", null, all.map(([name, fact]) => [h("dt", null, name), h("dd", null, fact)]));
}
