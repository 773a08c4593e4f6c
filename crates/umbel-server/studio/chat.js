// The conversation: what people and agents said, thoughts, calls of tools, and questions.

import { answeredBy, callCard } from "./call-card.js";
import { questionCard } from "./approvals.js";
import { announce, copyButton, h, hue, icon, iconButton, replace } from "./dom.js";
import { eventOf, results, textOf } from "./fold.js";
import { copiedTree } from "./json-tree.js";
import { render } from "./markdown.js";

/** How many messages are shown at first, and how many more each time. */
const PAGE = 60;

/** What a person can do about an error, by its code. The guide lists them all. @type {Record<string, string>} */
const REMEDIES = {
	INVALID_ANSWER: "Answer the question again. If it is not there any more, reload the session.",
	MODEL_AUTH: "Check the key of the model's provider.",
	MODEL_CONTEXT_TOO_LONG: "Begin a new session, or let the agent compact its history.",
	MODEL_CALL_LIMIT: "Look at the trace: the agent may turn in circles.",
	TOOL_FAILED: "Look at the failed call above and at the trace.",
};

export class Chat {
	/** @param {ChatActions} actions */
	constructor(actions) {
		this.actions = actions;
		this.list = h("div.turns", { role: "log", "aria-live": "off", label: "Conversation", testid: "conversation" });
		this.earlier = h("button.button.small.earlier", { hidden: true, onclick: () => this.showEarlier() }, "Show earlier messages");
		this.tail = h("div.tail", { testid: "chat-tail" });
		this.element = h("div.chat-scroll", { tabindex: "0", role: "region", label: "Chat", onscroll: () => this.scrolled() }, h("div.chat-column", null, this.earlier, this.list, this.tail));
		/** @type {Session | null} */
		this.session = null;
		/** @type {Map<string, Turn>} */
		this.turns = new Map();
		this.limit = PAGE;
		this.sticks = true;
		this.tailKey = "";
		/** What screen readers were told of. @type {Set<string>} */
		this.told = new Set();
		this.isQuiet = true;
		this.unlisten = () => {};
		new ResizeObserver(() => this.stick()).observe(this.list);
	}

	/** @param {Session} session */
	show(session) {
		this.session = session;
		this.turns.clear();
		this.list.replaceChildren();
		this.limit = PAGE;
		this.sticks = true;
		this.tailKey = "";
		this.told.clear();
		this.isQuiet = true;
		for (const message of session.talk.messages) session.talk.dirty.add(message.id);
		session.talk.isReordered = true;
		this.unlisten();
		const ends = [session.listen(["talk", "connection"], () => this.draw()), session.on("selection", () => this.markSelected())];
		this.unlisten = () => ends.forEach((end) => end());
		this.draw();
	}

	draw() {
		const session = this.session;
		if (!session) return;
		const { talk } = session;
		if (talk.isReordered) this.arrange(session);
		for (const id of talk.dirty) this.refresh(session, id);
		talk.dirty.clear();
		this.drawTail(session);
		this.tell(session);
		this.stick();
	}

	/** Puts the messages that are shown into their order. @param {Session} session */
	arrange(session) {
		const { talk } = session;
		talk.isReordered = false;
		const answered = results(talk.messages);
		const owners = new Set(talk.messages.flatMap((message) => (message.toolCalls ?? []).map((call) => call.id)));
		const shown = talk.messages.filter((message) => isShown(message, owners));
		const visible = shown.slice(-this.limit);
		this.earlier.hidden = shown.length === visible.length;
		this.earlier.textContent = `Show earlier messages (${shown.length - visible.length})`;
		const ids = new Set(visible.map((message) => message.id));
		for (const [id, turn] of this.turns) {
			if (ids.has(id)) continue;
			turn.element.remove();
			this.turns.delete(id);
		}
		let speaker = "";
		/** @type {ChildNode | null} */
		let next = this.list.firstChild;
		for (const message of visible) {
			const turn = this.turns.get(message.id) ?? this.make(session, message);
			if (turn.element === next) next = next.nextSibling;
			else this.list.insertBefore(turn.element, next);
			const author = message.role === "assistant" ? session.author(message) : { name: "", isParallel: false };
			turn.element.classList.toggle("continues", author.name !== "" && author.name === speaker);
			// Those who speak at the same time stand side by side.
			turn.element.classList.toggle("is-parallel", author.isParallel);
			speaker = author.name;
			// A result changes the card of its call.
			if (message.toolCalls?.some((call) => answered.has(call.id))) talk.dirty.add(message.id);
		}
		this.markSelected();
	}

	/** @param {Session} session @param {Message} message */
	make(session, message) {
		const turn = makeTurn(session, message, this.actions);
		this.turns.set(message.id, turn);
		turn.update(message);
		return turn;
	}

	/** @param {Session} session @param {string} id */
	refresh(session, id) {
		const turn = this.turns.get(id);
		if (!turn) return;
		const message = session.talk.messages.findLast((one) => one.id === id);
		if (message) turn.update(message);
	}

	showEarlier() {
		const session = this.session;
		if (!session) return;
		const before = this.element.scrollHeight - this.element.scrollTop;
		this.sticks = false;
		this.limit += PAGE * 2;
		session.talk.isReordered = true;
		this.draw();
		this.element.scrollTop = this.element.scrollHeight - before;
	}

	scrolled() {
		const { scrollTop, clientHeight, scrollHeight } = this.element;
		this.sticks = scrollTop + clientHeight >= scrollHeight - 40;
		if (scrollTop < 40 && !this.earlier.hidden && this.element.matches(":hover")) this.showEarlier();
	}

	stick() {
		if (this.sticks) this.element.scrollTop = this.element.scrollHeight;
	}

	markSelected() {
		const selected = this.session?.selected;
		for (const [id, turn] of this.turns) turn.element.classList.toggle("is-selected", selected !== null && eventOf(id) === selected);
	}

	/** Brings the message of an event into sight. @param {string} eventId */
	reveal(eventId) {
		const found = [...this.turns].find(([id]) => eventOf(id) === eventId);
		found?.[1].element.scrollIntoView({ block: "nearest" });
	}

	/** What stands behind the last message: who is at work, questions, how the run ended. @param {Session} session */
	drawTail(session) {
		const { talk, connection } = session;
		const { run } = talk;
		const free = talk.interrupts.filter((asked) => !answeredBy(talk, asked));
		const working = session.isRunning ? [...talk.subagents.values()].filter((one) => one.status === "running").map((one) => one.name) : [];
		const key = JSON.stringify([session.threadId, session.isLoading, session.failure, run?.status, run?.error, run?.result, free.map((one) => [one.id, session.decisions.has(one.id), session.turnedAway.get(one.id)?.at]), working, talk.conflicts, connection, talk.messages.length === 0, talk.open.size > 0]);
		if (key === this.tailKey) return;
		this.tailKey = key;
		const parts = [];
		if (session.isLoading) parts.push(h("p.muted.loading", null, "Loading the session…"));
		if (session.failure) parts.push(problemCard("The session could not be opened", session.failure, undefined, { label: "Try again", run: () => void session.reconnect() }));
		if (!session.isLoading && !session.failure && talk.messages.length === 0 && !session.isRunning) parts.push(this.welcome(session));
		for (const asked of free) parts.push(questionCard(session, asked));
		for (const one of talk.conflicts) parts.push(h("p.note", null, icon("warning"), ` State: \`${one.key}\` was changed by somebody else too, and stays as it is there.`));
		if (session.isRunning && connection !== "lost") parts.push(workingLine(working.length > 0 ? working : [session.agent.name], talk.open.size > 0));
		if (run?.status === "cancelled") parts.push(h("p.note", { testid: "run-cancelled" }, icon("stop"), " Stopped. Say something to go on."));
		if (run?.error) parts.push(problemCard(run.error.code === "INVALID_ANSWER" ? "The answer was not taken" : "The run failed", run.error.message, run.error.code));
		if (run?.status === "finished" && run.result !== undefined) parts.push(h("section.card.result-card", { label: "Result" }, h("h3", null, "Result"), copiedTree(run.result)));
		if (!session.isRunning && run?.usage?.length) parts.push(usageLine(run.usage));
		replace(this.tail, parts);
	}

	/** @param {Session} session */
	welcome(session) {
		const { agent } = session;
		const suggestions = (agent.suggestions ?? []).map((text) =>
			h("button.suggestion", { onclick: () => this.actions.onSend(text) }, text));
		return h("section.welcome", { label: "New session" },
			h("div", { class: `avatar big ${hue(agent.name)}`, "aria-hidden": "true" }, agent.name.slice(0, 1).toUpperCase()),
			h("h2", null, agent.name),
			agent.description ? h("p.muted", null, agent.description) : null,
			suggestions.length > 0 ? h("div.suggestions", { role: "group", label: "Suggestions", testid: "suggestions" }, suggestions) : null);
	}

	/** Tells screen readers of what is whole, and never word by word. @param {Session} session */
	tell(session) {
		const { talk } = session;
		if (this.isQuiet) {
			// What was said before one came is there to be read.
			for (const { id } of talk.messages) this.told.add(id);
			this.isQuiet = session.isLoading;
			return;
		}
		for (const message of talk.messages.slice(-8)) {
			if (message.role !== "assistant" || talk.open.has(message.id) || this.told.has(message.id)) continue;
			if (message.toolCalls?.some((call) => talk.open.has(call.id))) continue;
			this.told.add(message.id);
			const calls = (message.toolCalls ?? []).map((call) => `calls ${call.function.name}`);
			announce([session.author(message).name, textOf(message.content), ...calls].filter(Boolean).join(": "));
		}
		for (const asked of talk.interrupts) {
			if (this.told.has(asked.id)) continue;
			this.told.add(asked.id);
			announce(`Waiting for you: ${asked.message ?? "a decision"}`);
		}
		const ended = talk.run?.error ? `${talk.run.runId}-error` : "";
		if (ended && !this.told.has(ended)) {
			this.told.add(ended);
			announce(`The run failed: ${talk.run?.error?.message}`);
		}
	}
}

/** @param {Message} message @param {Set<string>} owners the calls that have a card */
function isShown(message, owners) {
	if (message.role === "tool") return !owners.has(message.toolCallId ?? "");
	if (message.role === "assistant") return textOf(message.content) !== "" || (message.toolCalls?.length ?? 0) > 0;
	return message.role !== "system" && message.role !== "developer";
}

/** What the models of the last run used. @param {Record<string, any>[]} usage */
function usageLine(usage) {
	const sum = (/** @type {string} */ key) => usage.reduce((all, one) => all + (one[key] ?? 0), 0);
	const models = usage.flatMap((one) => one.model ?? []);
	return h("p.note", { testid: "usage" }, [`${sum("inputTokens")} tokens in, ${sum("outputTokens")} out`, ...models].join(" · "));
}

/** @param {string[]} names @param {boolean} isWriting */
function workingLine(names, isWriting) {
	const dots = h("span.dots", { "aria-hidden": "true" }, h("i"), h("i"), h("i"));
	const who = names.length > 2 ? `${names.length} agents` : names.join(" and ");
	return h("p", { class: `working ${isWriting ? "is-writing" : ""}`, testid: "working" }, dots, h("span", null, `${who} ${names.length > 1 ? "are" : "is"} at work`));
}

/** @param {string} title @param {string} message @param {string} [code] @param {{ label: string, run: () => void }} [action] */
export function problemCard(title, message, code, action) {
	const remedy = code ? REMEDIES[code] : undefined;
	return h("section.card.problem", { role: "alert", testid: "problem" },
		h("h3", null, icon("warning"), title, code ? h("code", null, code) : null),
		h("p", null, message),
		remedy ? h("p.muted", null, remedy) : null,
		action ? h("button.button.small", { onclick: action.run }, action.label) : null);
}

/** @param {Session} session @param {Message} message @param {ChatActions} actions @returns {Turn} */
function makeTurn(session, message, actions) {
	switch (message.role) {
		case "user":
			return userTurn(session, message, actions);
		case "reasoning":
			return thoughtTurn(session, message);
		case "activity":
			return activityTurn();
		default:
			return agentTurn(session, message, actions);
	}
}

/** @param {Session} session @param {Message} message @param {ChatActions} actions @returns {Turn} */
function userTurn(session, message, actions) {
	const body = h("div.bubble", null);
	const said = () => textOf(session.talk.messages.find((one) => one.id === message.id)?.content);
	const edit = () => {
		const field = h("textarea.field", { rows: "3", label: "Edit the message", value: said() });
		const stop = () => element.classList.remove("is-editing");
		const form = h("form", {
			class: "edit-form",
			onsubmit: (event) => (event.preventDefault(), field.value.trim() && actions.onRerun(message.id, field.value.trim())),
			onkeydown: (event) => {
				if (event.key === "Escape") stop();
				else if (event.key === "Enter" && !event.shiftKey) (event.preventDefault(), form.requestSubmit());
			},
		}, field, h("div.buttons", null,
			h("button.button.primary.small", { type: "submit" }, "Run again from here"),
			h("button.button.small", { onclick: stop }, "Cancel"),
			h("span.muted", null, "In a new session; this one stays.")));
		element.querySelector(".edit-form")?.remove();
		element.append(form);
		element.classList.add("is-editing");
		field.focus();
	};
	const tools = h("div.turn-tools", null,
		iconButton("edit", "Edit and run again", edit),
		iconButton("fork", "Fork from here", () => actions.onFork({ messageId: message.id })),
		copyButton("Copy the message", said));
	const element = h("article.turn.user", { label: "You", testid: "user-message", "data-message": message.id }, body, tools);
	return {
		element,
		update(now) {
			const media = Array.isArray(now.content) ? now.content.filter((part) => part.type !== "text") : [];
			replace(body, textOf(now.content), media.map((part) => h("p.muted", null, `${part.type} ${part.source?.mimeType ?? ""}`)));
		},
	};
}

/** @param {Session} session @param {Message} message @param {ChatActions} actions @returns {Turn} */
function agentTurn(session, message, actions) {
	const head = h("header.turn-head", null);
	const text = h("div.md", null);
	const calls = h("div.calls", null);
	/** @type {Map<string, ReturnType<typeof callCard>>} */
	const cards = new Map();
	const said = () => textOf(session.talk.messages.find((one) => one.id === message.id)?.content);
	const tools = h("div.turn-tools", null,
		iconButton("list", "Show the event", () => actions.onInspect(eventOf(message.id))),
		iconButton("fork", "Fork from here", () => actions.onFork({ messageId: message.id })),
		copyButton("Copy the message", said));
	const element = h("article.turn.agent", { testid: "agent-message", "data-message": message.id }, head, text, calls, tools);
	let headKey = "";
	return {
		element,
		update(now) {
			const author = session.author(now);
			const key = `${author.name} ${author.isParallel}`;
			if (key !== headKey) {
				headKey = key;
				element.setAttribute("aria-label", author.name);
				replace(head,
					h("span", { class: `avatar ${hue(author.name)}`, "aria-hidden": "true" }, author.name.slice(0, 1).toUpperCase()),
					h("span.author", null, author.name),
					author.isParallel ? h("span.chip", null, "in parallel") : null);
			}
			render(text, textOf(now.content));
			text.classList.toggle("is-open", session.talk.open.has(now.id));
			text.hidden = textOf(now.content) === "";
			const answered = results(session.talk.messages);
			for (const call of now.toolCalls ?? []) {
				const card = cards.get(call.id) ?? callCard(session, call, author.name);
				if (!cards.has(call.id)) calls.append(card.element);
				cards.set(call.id, card);
				card.update(call, answered.get(call.id));
			}
			if (now.role === "tool") replace(calls, h("div.card", null, copiedTree(now.content)));
		},
	};
}

/** @param {Session} session @param {Message} message @returns {Turn} */
function thoughtTurn(session, message) {
	const text = h("div.md", null);
	const label = h("span", null, "Thought");
	const details = h("details.thought", null, h("summary", null, icon("thought"), label), text);
	const element = h("article.turn.thoughts", { label: "Thought", testid: "thought", "data-message": message.id }, details);
	let wasOpen = false;
	return {
		element,
		update(now) {
			const isOpen = session.talk.open.has(now.id);
			label.textContent = isOpen ? "Thinking…" : `${session.author(now).name} thought about it`;
			// It is shown while it is being thought, and put away afterwards.
			if (isOpen !== wasOpen) details.open = isOpen;
			wasOpen = isOpen;
			render(text, textOf(now.content));
		},
	};
}

/** @returns {Turn} */
function activityTurn() {
	const body = h("div");
	const title = h("span");
	const element = h("article.turn.activity.card", { label: "Activity", testid: "activity" }, h("h3", null, icon("refresh"), title), body);
	return {
		element,
		update(now) {
			title.textContent = now.activityType ?? "Activity";
			replace(body, copiedTree(now.content ?? {}));
		},
	};
}
