// One call of a tool: what it is called with, how it stands, and what came of it.

import { jsonForm, questionCard } from "./approvals.js";
import { h, icon, replace } from "./dom.js";
import { textOf } from "./fold.js";
import { copiedTree } from "./json-tree.js";

/** @type {Record<CallState, [string, string]>} */
const STATES = {
	writing: ["being written", "edit"],
	running: ["running", "refresh"],
	waiting: ["waiting for you", "bell"],
	done: ["done", "check"],
	failed: ["failed", "warning"],
	open: ["no answer", "stop"],
};

const TRANSFER = "transfer_to_agent";

/** Whether a question is shown in the card of the call that it is about. @param {Conversation} talk @param {Interrupt} asked */
export function answeredBy(talk, asked) {
	return talk.messages.some((message) => message.toolCalls?.some((call) => call.id === asked.toolCallId));
}

/** @param {string} text @returns {any} what it is as JSON, or the text itself */
function value(text) {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
}

/** @param {Session} session @param {ToolCall} call @param {Message | undefined} result @returns {CallState} */
export function stateOf(session, call, result) {
	const { talk } = session;
	if (result) return isFailure(result) ? "failed" : "done";
	if (talk.open.has(call.id)) return "writing";
	// Its answer is sent with those to the others.
	if (session.answers.has(call.id)) return "running";
	if (talk.interrupts.some((asked) => asked.toolCallId === call.id) || talk.pending.includes(call.id)) return "waiting";
	return session.isRunning ? "running" : "open";
}

/** @param {Message} result */
function isFailure(result) {
	if (result.error) return true;
	const said = value(textOf(result.content));
	return typeof said === "object" && said !== null && !Array.isArray(said) && "error" in said && Boolean(said.error);
}

/**
 * @param {Session} session @param {ToolCall} first @param {string} author
 * @returns {{ element: HTMLElement, update: (call: ToolCall, result: Message | undefined) => void }}
 */
export function callCard(session, first, author) {
	if (first.function.name === TRANSFER) return transferLine(author);
	const badge = h("span.badge", null);
	const brief = h("span.call-brief", null);
	const inside = h("div.call-inside", null);
	const question = h("div.call-question", null);
	const details = h("details.call-details", null,
		h("summary", null, icon("tool"), h("span.call-name", null, first.function.name), brief, badge), inside);
	const element = h("section.call", { label: `Tool ${first.function.name}`, testid: "tool-card", "data-tool": first.function.name, "data-call": first.id }, details, question);
	let key = "";
	let questionKey = "";
	/** @type {[ToolCall, Message | undefined]} */
	let now = [first, undefined];
	const fill = () => {
		if (!details.open) return;
		const [call, result] = now;
		const args = call.function.arguments;
		replace(inside,
			h("h4", null, "Arguments"), args === "" ? h("p.muted", null, "None") : copiedTree(value(args), { label: "Arguments" }),
			result ? [h("h4", null, "Result"), copiedTree(value(textOf(result.content)), { label: "Result" })] : null);
	};
	details.addEventListener("toggle", fill);
	return {
		element,
		update(call, result) {
			const state = stateOf(session, call, result);
			const asked = session.talk.interrupts.find((one) => one.toolCallId === call.id);
			const isOurs = state === "waiting" && !asked;
			const next = `${state} ${call.function.arguments.length} ${result?.id}`;
			now = [call, result];
			if (next !== key) {
				key = next;
				const [label, name] = STATES[state];
				element.dataset.state = state;
				replace(badge, icon(name), label);
				brief.textContent = briefly(call.function.arguments);
				fill();
			}
			const nextQuestion = asked ? `${asked.id} ${session.decisions.has(asked.id)} ${session.turnedAway.get(asked.id)?.at}` : String(isOurs);
			if (nextQuestion === questionKey) return;
			questionKey = nextQuestion;
			if (asked) replace(question, questionCard(session, asked));
			else if (isOurs) answerForm(session, call, question);
			else replace(question);
		},
	};
}

/** A call of a tool that this page does not have: a person may answer it. @param {Session} session @param {ToolCall} call @param {HTMLElement} room */
function answerForm(session, call, room) {
	const form = h("div.question", null);
	replace(room, form);
	const active = document.activeElement;
	jsonForm(form, "This page has no such tool. Answer the call yourself, as JSON", {}, "Send the answer", () => null, (said) =>
		void session.answerCall(call.id, JSON.stringify(said)));
	// Nobody asked for the form: the focus stays where it was.
	if (active instanceof HTMLElement) active.focus();
}

/** @param {string} author */
function transferLine(author) {
	const to = h("strong");
	const element = h("p.transfer", { testid: "transfer" }, icon("arrow"), ` ${author} hands over to `, to);
	return {
		element,
		/** @param {ToolCall} call */
		update(call) {
			const args = value(call.function.arguments || "{}");
			to.textContent = args?.agent_name ?? args?.agentName ?? "another agent";
		},
	};
}

/** Arguments in one line. @param {string} text */
function briefly(text) {
	const args = value(text || "{}");
	if (typeof args !== "object" || args === null) return text.slice(0, 120);
	const line = Object.entries(args).map(([name, one]) => `${name}: ${typeof one === "string" ? one : JSON.stringify(one)}`).join(", ");
	return line.length > 120 ? `${line.slice(0, 118)}…` : line;
}
