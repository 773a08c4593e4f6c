// What an event is about, in a word and a line. No page is needed for it.

/** The kinds of events in the log, in the order in which they are offered. */
export const LOG_KINDS = ["message", "text", "thought", "call", "result", "transfer", "state", "question", "error", "other"];
/** The same for the wire. */
export const WIRE_KINDS = ["run", "text", "thought", "tool", "state", "agent", "activity", "other"];

/** An event of the log. @param {Record<string, any>} event @returns {Brief} */
export function logBrief(event) {
	/** @type {Record<string, any>[]} */
	const parts = event.content?.parts ?? [];
	const said = (/** @type {boolean} */ isThought) => parts.filter((part) => typeof part.text === "string" && Boolean(part.thought) === isThought).map((part) => part.text).join("");
	const calls = parts.flatMap((part) => part.functionCall ?? (part.executableCode ? { name: "run_code", args: { code: part.executableCode.code } } : []));
	const answers = parts.flatMap((part) => part.functionResponse ?? (part.codeExecutionResult ? { name: "run_code", response: part.codeExecutionResult.output } : []));
	const delta = Object.keys(event.actions?.stateDelta ?? {});
	if (event.errorCode || event.errorMessage) return { kind: "error", text: [event.errorCode, event.errorMessage].filter(Boolean).join(": ") };
	if (event.actions?.transferToAgent) return { kind: "transfer", text: `to ${event.actions.transferToAgent}` };
	if (event.author === "user" && said(false)) return { kind: "message", text: said(false) };
	if (calls.some((call) => /^adk_request_/.test(call.name))) return { kind: "question", text: calls.map((call) => call.name).join(", ") };
	if (calls.length > 0) return { kind: "call", text: [said(false), ...calls.map((call) => `${call.name}(${briefly(call.args)})`)].filter(Boolean).join(" · ") };
	if (answers.length > 0) return { kind: "result", text: answers.map((one) => `${one.name} → ${briefly(one.response)}`).join(" · ") };
	if (said(false)) return { kind: "text", text: said(false) };
	if (said(true)) return { kind: "thought", text: said(true) };
	if (delta.length > 0) return { kind: "state", text: delta.join(", ") };
	return { kind: "other", text: "" };
}

/** @type {[RegExp, string][]} */
const GROUPS = [
	[/^RUN_/, "run"], [/^TEXT_MESSAGE/, "text"], [/^REASONING/, "thought"], [/^TOOL_CALL/, "tool"], [/^STATE_/, "state"],
	[/^(SUBAGENT|STEP)/, "agent"], [/^ACTIVITY/, "activity"],
];

/** An event of the wire. @param {AguiEvent} event @returns {Brief} */
export function wireBrief(event) {
	const kind = GROUPS.find(([pattern]) => pattern.test(event.type))?.[1] ?? "other";
	const { type: _, ...rest } = event;
	const text = event.delta !== undefined && typeof event.delta === "string" ? event.delta : (event.toolCallName ?? event.name ?? event.stepName ?? event.message ?? briefly(rest));
	return { kind, text: String(text) };
}

/** @param {unknown} value */
function briefly(value) {
	const text = JSON.stringify(value) ?? "";
	return text.length > 160 ? `${text.slice(0, 158)}…` : text;
}
