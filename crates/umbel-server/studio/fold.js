// From AG-UI events to a conversation: messages, state, the run, and who speaks. No page is needed for it.
/// <reference path="../studio.d.ts" />

/** @returns {Conversation} */
export function newConversation() {
	return {
		messages: [],
		state: {},
		run: null,
		interrupts: [],
		pending: [],
		subagents: new Map(),
		steps: [],
		open: new Set(),
		dirty: new Set(),
		isReordered: true,
		conflicts: [],
	};
}

/** Takes over a thread as the server tells it. @param {Conversation} talk @param {{ messages: Message[], state?: any, interrupts?: Interrupt[] }} thread */
export function seed(talk, thread) {
	talk.messages = thread.messages.map((message) => ({ ...message }));
	talk.state = thread.state ?? {};
	talk.interrupts = thread.interrupts ?? [];
	talk.open.clear();
	touchAll(talk);
}

/** Takes in one event. Events of kinds that are not known change nothing. @param {Conversation} talk @param {AguiEvent} event */
export function apply(talk, event) {
	const take = TAKES[event.type];
	if (take) take(talk, event);
}

/** Adds a message of this client's own. @param {Conversation} talk @param {Message} message */
export function addMessage(talk, message) {
	if (talk.messages.some((one) => one.id === message.id)) return;
	const call = message.role === "tool" ? ownerOf(talk, message.toolCallId ?? "") : undefined;
	if (call) insertResult(talk, call, message);
	else talk.messages.push(message);
	touch(talk, message.id, true);
}

/** The result of each call that has one. @param {Message[]} messages @returns {Map<string, Message>} */
export function results(messages) {
	const found = new Map();
	for (const message of messages) if (message.role === "tool" && message.toolCallId) found.set(message.toolCallId, message);
	return found;
}

/** The calls that nobody has answered. @param {Message[]} messages @returns {ToolCall[]} */
export function unanswered(messages) {
	const answered = results(messages);
	return messages.flatMap((message) => message.toolCalls ?? []).filter((call) => !answered.has(call.id));
}

/** The event of the log from which a message was made. @param {string} messageId */
export function eventOf(messageId) {
	const colon = messageId.indexOf(":");
	return colon < 0 ? messageId : messageId.slice(0, colon);
}

/** The plain text of what a message says. @param {any} content @returns {string} */
export function textOf(content) {
	if (typeof content === "string") return content;
	if (!Array.isArray(content)) return "";
	return content.map((part) => (part?.type === "text" ? part.text : "")).filter(Boolean).join("\n");
}

/** @param {Conversation} talk @param {string} id @param {boolean} [isReordered] */
function touch(talk, id, isReordered = false) {
	talk.dirty.add(id);
	talk.isReordered ||= isReordered;
}

/** @param {Conversation} talk */
function touchAll(talk) {
	for (const message of talk.messages) talk.dirty.add(message.id);
	talk.isReordered = true;
}

/** What is being said is near the end. @param {Conversation} talk @param {string} id */
function find(talk, id) {
	for (let at = talk.messages.length - 1; at >= 0; at -= 1) if (talk.messages[at]?.id === id) return talk.messages[at];
	return undefined;
}

/** @param {Conversation} talk @param {string} callId */
function ownerOf(talk, callId) {
	for (let at = talk.messages.length - 1; at >= 0; at -= 1) {
		const message = talk.messages[at];
		if (message?.toolCalls?.some((call) => call.id === callId)) return message;
	}
	return undefined;
}

/** A message of that id, made if it is not there. @param {Conversation} talk @param {string} id @param {string} role @param {AguiEvent} event */
function begin(talk, id, role, event) {
	const known = find(talk, id);
	if (known) return known;
	/** @type {Message} */
	const message = { id, role };
	if (event.name) message.name = event.name;
	if (event.subagentRunId) message.subagentRunId = event.subagentRunId;
	talk.messages.push(message);
	touch(talk, id, true);
	return message;
}

/** @param {Conversation} talk @param {string} id @param {string} role @param {AguiEvent} event */
function say(talk, id, role, event) {
	const message = begin(talk, id, role, event);
	const before = typeof message.content === "string" ? message.content : "";
	message.content = before + (event.delta ?? "");
	// A message without words is not shown, so its first ones make one more.
	touch(talk, id, before === "");
}

/** A result stands behind the message with its call, and behind earlier results. @param {Conversation} talk @param {Message} owner @param {Message} result */
function insertResult(talk, owner, result) {
	let at = talk.messages.indexOf(owner) + 1;
	while (talk.messages[at]?.role === "tool") at += 1;
	talk.messages.splice(at, 0, result);
	touch(talk, owner.id, true);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function beginCall(talk, event) {
	const known = ownerOf(talk, event.toolCallId);
	talk.open.add(event.toolCallId);
	if (known) return touch(talk, known.id);
	const message = begin(talk, event.parentMessageId ?? event.toolCallId, "assistant", event);
	/** @type {ToolCall} */
	const call = { id: event.toolCallId, type: "function", function: { name: event.toolCallName, arguments: "" } };
	message.toolCalls = [...(message.toolCalls ?? []), call];
	touch(talk, message.id, true);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function addArguments(talk, event) {
	const owner = ownerOf(talk, event.toolCallId);
	const call = owner?.toolCalls?.find((one) => one.id === event.toolCallId);
	if (!owner || !call) return;
	call.function.arguments += event.delta ?? "";
	touch(talk, owner.id);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function addResult(talk, event) {
	talk.pending = talk.pending.filter((id) => id !== event.toolCallId);
	if (find(talk, event.messageId)) return;
	/** @type {Message} */
	const message = { id: event.messageId, role: "tool", toolCallId: event.toolCallId, content: event.content };
	if (event.subagentRunId) message.subagentRunId = event.subagentRunId;
	const owner = ownerOf(talk, event.toolCallId);
	if (owner) insertResult(talk, owner, message);
	else talk.messages.push(message);
	touch(talk, message.id, true);
}

/**
 * What is not in the snapshot goes, except thoughts and activities where it has none at all; what is in both stays where it
 * is; what is new comes behind.
 * @param {Conversation} talk @param {AguiEvent} event
 */
function takeSnapshot(talk, event) {
	/** @type {Map<string, Message>} */
	const told = new Map(event.messages.map((/** @type {Message} */ message) => [message.id, message]));
	const has = (/** @type {string} */ role) => event.messages.some((/** @type {Message} */ message) => message.role === role);
	const keeps = { activity: !has("activity"), reasoning: !has("reasoning") };
	const kept = [];
	for (const message of talk.messages) {
		const now = told.get(message.id);
		told.delete(message.id);
		if (now) kept.push({ ...now });
		else if (keeps[/** @type {"activity" | "reasoning"} */ (message.role)]) kept.push(message);
	}
	talk.messages = [...kept, ...[...told.values()].map((message) => ({ ...message }))];
	touchAll(talk);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function startRun(talk, event) {
	talk.run = { runId: event.runId, status: "running" };
	talk.interrupts = [];
	talk.pending = [];
	talk.steps = [];
	talk.conflicts = [];
	talk.open.clear();
	for (const message of event.input?.messages ?? []) addMessage(talk, message);
	talk.isReordered = true;
}

/** @param {Conversation} talk @param {AguiEvent} event */
function endRun(talk, event) {
	/** @type {Run} */
	const run = talk.run ?? { runId: event.runId ?? "", status: "running" };
	const outcome = event.outcome ?? { type: "success" };
	if (event.type === "RUN_ERROR") {
		run.status = "failed";
		run.error = { message: event.message, code: event.code };
	} else if (outcome.type === "interrupt") {
		run.status = "interrupted";
		talk.interrupts = outcome.interrupts ?? [];
	} else if (outcome.type === "cancelled") {
		run.status = "cancelled";
	} else {
		run.status = "finished";
		talk.pending = outcome.pendingToolCallIds ?? [];
	}
	if (event.result !== undefined) run.result = event.result;
	if (event.usage) run.usage = event.usage;
	talk.run = run;
	talk.steps = [];
	talk.open.clear();
	for (const one of talk.subagents.values()) if (one.status === "running") one.status = "finished";
	touchAll(talk);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function startSubagent(talk, event) {
	const others = [...talk.subagents.values()].filter((one) => one.status === "running");
	const isParallel = others.length > 0;
	for (const other of others) other.isParallel = true;
	const { subagentRunId: id, name, description } = event;
	talk.subagents.set(id, { id, name, description, isParallel, status: "running" });
}

/** @param {Conversation} talk @param {AguiEvent} event @param {Subagent["status"]} status */
function endSubagent(talk, event, status) {
	const one = talk.subagents.get(event.subagentRunId);
	if (one) one.status = status;
}

/** @param {Conversation} talk @param {AguiEvent} event */
function takeActivity(talk, event) {
	const known = find(talk, event.messageId);
	if (known && event.replace === false) return;
	const message = begin(talk, event.messageId, "activity", event);
	message.activityType = event.activityType;
	message.content = event.content;
	touch(talk, message.id);
}

/** @param {Conversation} talk @param {AguiEvent} event */
function patchActivity(talk, event) {
	const message = find(talk, event.messageId);
	if (!message) return;
	message.content = patch(message.content ?? {}, event.patch) ?? message.content;
	touch(talk, message.id);
}

/** @type {Record<string, (talk: Conversation, event: AguiEvent) => void>} */
const TAKES = {
	RUN_STARTED: startRun,
	RUN_FINISHED: endRun,
	RUN_ERROR: endRun,
	STEP_STARTED: (talk, event) => void talk.steps.push(event.stepName),
	STEP_FINISHED: (talk, event) => void (talk.steps = talk.steps.filter((name) => name !== event.stepName)),
	TEXT_MESSAGE_START: (talk, event) => {
		talk.open.add(event.messageId);
		say(talk, event.messageId, event.role ?? "assistant", event);
	},
	TEXT_MESSAGE_CONTENT: (talk, event) => say(talk, event.messageId, "assistant", event),
	TEXT_MESSAGE_CHUNK: (talk, event) => event.messageId && say(talk, event.messageId, event.role ?? "assistant", event),
	TEXT_MESSAGE_END: (talk, event) => {
		talk.open.delete(event.messageId);
		touch(talk, event.messageId);
	},
	TOOL_CALL_START: beginCall,
	TOOL_CALL_ARGS: addArguments,
	TOOL_CALL_CHUNK: (talk, event) => {
		if (event.toolCallName) beginCall(talk, event);
		addArguments(talk, event);
	},
	TOOL_CALL_END: (talk, event) => {
		talk.open.delete(event.toolCallId);
		touch(talk, ownerOf(talk, event.toolCallId)?.id ?? event.toolCallId);
	},
	TOOL_CALL_RESULT: addResult,
	REASONING_MESSAGE_START: (talk, event) => {
		talk.open.add(event.messageId);
		say(talk, event.messageId, "reasoning", event);
	},
	REASONING_MESSAGE_CONTENT: (talk, event) => say(talk, event.messageId, "reasoning", event),
	REASONING_MESSAGE_CHUNK: (talk, event) => event.messageId && say(talk, event.messageId, "reasoning", event),
	REASONING_MESSAGE_END: (talk, event) => {
		talk.open.delete(event.messageId);
		touch(talk, event.messageId);
	},
	STATE_SNAPSHOT: (talk, event) => void (talk.state = event.snapshot),
	STATE_DELTA: (talk, event) => void (talk.state = patch(talk.state, event.delta) ?? talk.state),
	MESSAGES_SNAPSHOT: takeSnapshot,
	ACTIVITY_SNAPSHOT: takeActivity,
	ACTIVITY_DELTA: patchActivity,
	SUBAGENT_STARTED: startSubagent,
	SUBAGENT_FINISHED: (talk, event) => endSubagent(talk, event, event.outcome?.type === "suspended" ? "suspended" : "finished"),
	SUBAGENT_ERROR: (talk, event) => endSubagent(talk, event, "failed"),
	CUSTOM: (talk, event) => {
		if (event.name === "StateConflict" && Array.isArray(event.value)) talk.conflicts = event.value;
	},
};

/**
 * A value changed by a JSON Patch; what was there stays as it is. `undefined` if the patch does not fit.
 * @param {any} value @param {{ op: string, path: string, from?: string, value?: any }[]} operations @returns {any}
 */
export function patch(value, operations) {
	try {
		return operations.reduce((now, { op, path, from, value: given }) => {
			if (op === "remove") return put(now, keys(path), undefined, true);
			if (op === "replace") return put(now, keys(path), given, false);
			if (op === "add") return put(now, keys(path), given, false, true);
			const source = keys(from ?? "");
			const moved = source.reduce((inside, key) => inside[key], now);
			if (op === "copy") return put(now, keys(path), moved, false, true);
			if (op === "move") return put(put(now, source, undefined, true), keys(path), moved, false, true);
			return now;
		}, value);
	} catch {
		return undefined;
	}
}

/** @param {string} path */
function keys(path) {
	return path.split("/").slice(1).map((key) => key.replace(/~1/g, "/").replace(/~0/g, "~"));
}

/**
 * @param {any} inside @param {string[]} path @param {any} value @param {boolean} removes @param {boolean} [inserts]
 * @returns {any}
 */
function put(inside, path, value, removes, inserts = false) {
	const [key, ...rest] = path;
	if (key === undefined) return removes ? null : value;
	if (Array.isArray(inside)) {
		const copy = [...inside];
		const at = key === "-" ? copy.length : Number(key);
		if (rest.length > 0) copy[at] = put(copy[at], rest, value, removes, inserts);
		else if (removes) copy.splice(at, 1);
		else copy.splice(at, inserts ? 0 : 1, value);
		return copy;
	}
	if (typeof inside !== "object" || inside === null) throw new Error("there is nothing to change");
	const copy = { ...inside };
	if (rest.length > 0) copy[key] = put(copy[key], rest, value, removes, inserts);
	else if (removes) delete copy[key];
	else copy[key] = value;
	return copy;
}
