// Questions to a person: yes, no, other arguments, or a form for an answer of any shape.

import { credentialForm } from "./credential-form.js";
import { h, icon } from "./dom.js";
import { render } from "./markdown.js";

/** Whether it is too late to say yes. @param {Interrupt} asked @param {number} [now] */
export function isExpired(asked, now = Date.now()) {
	return asked.expiresAt !== undefined && Date.parse(asked.expiresAt) <= now;
}

/** What may be decided about a question. @param {Interrupt} asked */
export function decisionsOf(asked) {
	const said = asked.metadata?.decisions;
	if (Array.isArray(said)) return said;
	return asked.reason === "tool_call" ? ["approve", "edit", "reject"] : ["approve", "reject"];
}

/** Whether a credential is asked for. @param {Interrupt} asked */
export function isCredential(asked) {
	return asked.reason === "umbel:credential";
}

/** A question as a card. @param {Session} session @param {Interrupt} asked @returns {HTMLElement} */
export function questionCard(session, asked) {
	const card = h("section.question", { label: asked.message ?? "A question for you", testid: "approval", "data-interrupt": asked.id });
	const decision = session.decisions.get(asked.id);
	const text = h("div");
	render(text, asked.message ?? "The agent asks for your decision.");
	card.append(h("div.question-text", null, icon("bell"), text));
	if (decision) {
		card.append(h("p.muted", null, `${decision.status === "cancelled" || decision.payload?.approved === false ? "Rejected" : "Answered"}. It goes on when the other questions are answered.`));
		return card;
	}
	const settle = (/** @type {Decision} */ answer) => {
		for (const button of card.querySelectorAll("button")) button.disabled = true;
		void session.decide(asked.id, answer);
	};
	if (isExpired(asked)) return expired(card, asked, settle);
	if (asked.expiresAt) card.append(h("p.muted", null, icon("clock"), ` Open until ${new Date(asked.expiresAt).toLocaleString()}`));
	if (isCredential(asked)) {
		credentialForm(card, asked, settle, session.turnedAway.get(asked.id)?.error);
		return card;
	}
	const isForm = asked.responseSchema !== undefined || asked.reason === "input_required" || !["tool_call", "confirmation"].includes(asked.reason);
	if (isForm) answerForm(card, asked, settle);
	else decisionForm(card, asked, settle);
	return card;
}

/** @param {HTMLElement} card @param {Interrupt} asked @param {Settle} settle */
function expired(card, asked, settle) {
	const when = new Date(asked.expiresAt ?? 0).toLocaleString();
	card.classList.add("is-expired");
	card.append(
		h("p.muted", null, icon("clock"), ` This question expired at ${when}. It can only be turned down now.`),
		h("div.buttons", null, h("button.button", { onclick: () => settle({ status: "cancelled" }) }, "Turn it down")),
	);
	return card;
}

/** @param {HTMLElement} card @param {Interrupt} asked @param {Settle} settle */
function decisionForm(card, asked, settle) {
	const may = decisionsOf(asked);
	// The answer is about the call as it is shown here, and no other.
	const shown = asked.metadata?.digest ? { digest: asked.metadata.digest } : {};
	const buttons = h("div.buttons", null);
	const room = h("div.question-room", null);
	const button = (/** @type {string} */ label, /** @type {() => void} */ onclick, kind = "") => {
		buttons.append(h("button", { class: `button ${kind}`, onclick }, label));
	};
	if (may.includes("approve")) button("Approve", () => settle({ status: "resolved", payload: { approved: true, ...shown } }), "primary");
	if (may.includes("edit")) {
		button("Edit arguments", () => {
			jsonForm(room, "Arguments as JSON", asked.metadata?.args ?? {}, "Approve with these", isObject, (args) =>
				settle({ status: "resolved", payload: { approved: true, editedArgs: args, ...shown } }));
		});
	}
	if (may.includes("respond")) {
		button("Answer in its place", () => {
			jsonForm(room, "The result of the call, as JSON", {}, "Answer", () => null, (answer) =>
				settle({ status: "resolved", payload: { approved: false, answer, ...shown } }));
		});
	}
	if (may.includes("reject")) {
		const reason = h("input.field", { type: "text", placeholder: "Why not? (optional)", label: "Why not? (optional)" });
		button("Reject", () => {
			const why = reason.value.trim();
			settle({ status: "resolved", payload: { approved: false, ...(why ? { reason: why } : {}) } });
		}, "danger-text");
		buttons.append(reason);
	}
	card.append(buttons, room);
}

/** @param {unknown} value */
function isObject(value) {
	return typeof value === "object" && value !== null && !Array.isArray(value) ? null : "Arguments are a JSON object, such as {\"city\": \"Rome\"}.";
}

/**
 * A field for JSON, which is checked before it is sent.
 * @param {HTMLElement} room @param {string} label @param {unknown} value @param {string} send
 * @param {(value: unknown) => string | null} check @param {(value: any) => void} done
 */
export function jsonForm(room, label, value, send, check, done) {
	const field = h("textarea.field.mono", { rows: "5", spellcheck: "false", label: label, value: JSON.stringify(value, null, 2) });
	const error = h("p.field-error", { role: "alert" });
	const submit = (/** @type {Event} */ event) => {
		event.preventDefault();
		try {
			const read = JSON.parse(field.value);
			const wrong = check(read);
			if (wrong) {
				error.textContent = wrong;
				return;
			}
			// What is sent is sent once.
			for (const button of form.querySelectorAll("button")) button.disabled = true;
			done(read);
		} catch (problem) {
			error.textContent = `This is not JSON: ${/** @type {Error} */ (problem).message}`;
		}
	};
	const form = h("form.json-form", { onsubmit: submit }, h("label.field-label", null, label, field), error, h("button.button.primary", { type: "submit" }, send));
	room.replaceChildren(form);
	field.focus();
}

/** A form made from the schema of the answer. @param {HTMLElement} card @param {Interrupt} asked @param {Settle} settle */
function answerForm(card, asked, settle) {
	const schema = asked.responseSchema ?? { type: "string" };
	const isRecord = schema.type === "object" && schema.properties;
	/** @type {[string, any][]} */
	const fields = isRecord ? Object.entries(schema.properties) : [["", schema]];
	const required = new Set(isRecord ? (schema.required ?? []) : [""]);
	/** @type {[string, () => any][]} */
	const readers = [];
	const error = h("p.field-error", { role: "alert" });
	const rows = fields.map(([name, one]) => {
		const { element, read } = fieldFor(one, one.title ?? (name || "Your answer"), required.has(name));
		readers.push([name, read]);
		return element;
	});
	const submit = (/** @type {Event} */ event) => {
		event.preventDefault();
		try {
			const said = readers.map(([name, read]) => [name, read()]).filter(([, value]) => value !== undefined);
			settle({ status: "resolved", payload: isRecord ? Object.fromEntries(said) : said[0]?.[1] });
		} catch (problem) {
			error.textContent = /** @type {Error} */ (problem).message;
		}
	};
	card.append(
		h("form.answer-form", { onsubmit: submit }, rows, error,
			h("div.buttons", null,
				h("button.button.primary", { type: "submit" }, "Answer"),
				h("button.button.danger-text", { onclick: () => settle({ status: "cancelled" }) }, "Do not answer"))));
}

/** @param {any} schema @param {string} label @param {boolean} required @returns {{ element: HTMLElement, read: () => any }} */
function fieldFor(schema, label, required) {
	const hint = schema.description ? h("span.muted", null, schema.description) : null;
	const wrap = (/** @type {HTMLElement} */ field) => h("label.field-label", null, label, required ? "" : " (optional)", field, hint);
	if (Array.isArray(schema.enum)) {
		const options = schema.enum.map((/** @type {any} */ one, /** @type {number} */ at) => h("option", { value: String(at) }, String(one)));
		const field = h("select.field", null, required ? null : h("option", { value: "" }, "–"), options);
		return { element: wrap(field), read: () => (field.value === "" ? undefined : schema.enum[Number(field.value)]) };
	}
	if (schema.type === "boolean") {
		const field = h("input", { type: "checkbox", checked: schema.default === true });
		return { element: h("label.field-check", null, field, label, hint), read: () => field.checked };
	}
	if (schema.type === "integer" || schema.type === "number") {
		const field = h("input.field", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, required, value: schema.default ?? "" });
		return { element: wrap(field), read: () => (field.value === "" ? undefined : Number(field.value)) };
	}
	if (schema.type === "string") {
		const field = h("input.field", { type: "text", required, minlength: schema.minLength, maxlength: schema.maxLength, value: schema.default ?? "" });
		return { element: wrap(field), read: () => (field.value === "" && !required ? undefined : field.value) };
	}
	const field = h("textarea.field.mono", { rows: "4", spellcheck: "false", value: schema.default === undefined ? "" : JSON.stringify(schema.default, null, 2) });
	const read = () => {
		if (field.value.trim() === "" && !required) return undefined;
		try {
			return JSON.parse(field.value);
		} catch {
			throw new Error(`${label}: this is not JSON.`);
		}
	};
	return { element: wrap(field), read };
}
