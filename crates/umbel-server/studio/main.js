// The studio: puts the parts together and keeps the address in step with what is shown.

import { Api } from "./api.js";
import { Chat, problemCard } from "./chat.js";
import { Composer } from "./composer.js";
import { Docs } from "./docs.js";
import { h, icon, iconButton, replace, svg, toast, words } from "./dom.js";
import { Inspector } from "./inspector.js";
import { readRoute, writeRoute } from "./route.js";
import { Session, newThread } from "./session.js";
import { Sessions } from "./sessions.js";
import { listenForKeys } from "./shortcuts.js";
import { splitter } from "./split.js";
import { onTheme, theme, toggleTheme } from "./theme.js";

const api = new Api();
/** Sessions that are followed, whether or not they are shown: a run that nobody looks at is ended by the server. @type {Map<string, Session>} */
const open = new Map();
/** @type {Offer} */
let offer = { agents: [], version: "", inspect: false };
/** @type {Session | null} */
let current = null;

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
const chat = new Chat({
	onFork: (until) => void fork(until),
	onRerun: (messageId, text) => void rerun(messageId, text),
	onSend: (text) => send(text),
	onInspect: (eventId) => (current?.select(eventId), showPane("events", eventId)),
});
const composer = new Composer({ onSend: (text) => send(text), onStop: () => stop() });
const sessions = new Sessions(api, {
	onAgent: (agent) => go({ agent: nameOf(agent), thread: newThread() }),
	onOpen: (thread) => go({ thread }),
	onNew: () => newSession(),
	onDeleted: (agent, thread) => forget(agent, thread),
	// What happens elsewhere is followed, too.
	onListed: (agent, thread) => void open.get(keyOf(agent, thread.threadId))?.heardOf(thread),
	live: () => open.values(),
	link: (thread) => writeRoute({ ...here(), thread, detail: "" }),
});
const inspector = new Inspector(api, {
	onPane: (pane, detail) => go({ pane, detail }),
	link: (pane, detail) => writeRoute({ ...here(), pane, detail }),
	onFork: (until) => void fork(until),
	onReveal: (eventId) => chat.reveal(eventId),
});

/** The name of an agent in the address: its path behind the base path. @param {AgentInfo} agent */
function nameOf(agent) {
	return agent.path.slice(api.base.pathname.length - 1).replace(/^\/+/, "") || "-";
}

function here() {
	return readRoute(location.hash);
}

/** @param {Partial<Route>} to */
function go(to) {
	const from = here();
	const detail = to.detail ?? (to.thread !== undefined || to.pane !== undefined ? "" : from.detail);
	const hash = writeRoute({ ...from, ...to, detail });
	if (hash !== location.hash) location.hash = hash;
}

/** @param {string} text */
function send(text) {
	if (!current || current.isRunning) return;
	chat.sticks = true;
	void current.send(text);
}

function stop() {
	current?.stop().catch((error) => toast(`The run could not be stopped: ${words(error)}`, { kind: "bad" }));
}

function newSession() {
	go({ thread: newThread() });
	showPart("chat");
	composer.focus();
}

/** Agents may have threads of the same name. @param {AgentInfo} agent @param {string} thread */
function forget(agent, thread) {
	const key = keyOf(agent, thread);
	const session = open.get(key);
	if (!session) return;
	session.close();
	open.delete(key);
	if (session === current) newSession();
}

/** @param {{ messageId?: string, eventId?: string, before?: boolean }} until @returns {Promise<string | null>} */
async function fork(until) {
	const session = current;
	if (!session) return null;
	try {
		const { threadId } = await api.fork(session.agent, session.threadId, until);
		go({ thread: threadId });
		showPart("chat");
		toast("This is a copy. The session it came from stays as it was.", { action: { label: "Go back", run: () => go({ thread: session.threadId }) } });
		await sessions.load(false);
		return threadId;
	} catch (error) {
		toast(`The session could not be forked: ${words(error)}`, { kind: "bad" });
		return null;
	}
}

/** Everything up to the message without it, and then the message as it is now. @param {string} messageId @param {string} text */
async function rerun(messageId, text) {
	const thread = await fork({ messageId, before: true });
	if (!thread) return;
	const agent = current?.agent;
	const session = agent ? await sessionOf(agent, thread) : null;
	await session?.send(text);
}

/** @param {AgentInfo} agent @param {string} thread */
function keyOf(agent, thread) {
	return `${agent.path} ${thread}`;
}

/** @type {WeakMap<Session, Promise<void>>} */
const opening = new WeakMap();

/** A session that has been read. @param {AgentInfo} agent @param {string} thread */
async function sessionOf(agent, thread) {
	const session = findSession(agent, thread);
	await opening.get(session);
	return session;
}

/** @param {AgentInfo} agent @param {string} thread */
function findSession(agent, thread) {
	const key = keyOf(agent, thread);
	const known = open.get(key);
	if (known) return known;
	const session = new Session(api, agent, thread, offer.inspect);
	open.set(key, session);
	session.listen(["runs", "ended"], () => sessions.draw());
	session.on("ended", () => void sessions.refresh());
	// Following a run takes as long as the run; the session is read when its messages are there.
	opening.set(session, new Promise((resolve) => {
		const end = session.on("talk", () => !session.isLoading && (end(), resolve()));
	}));
	void session.open();
	return session;
}

/** Shows what the address says. */
function follow() {
	const route = here();
	const agent = offer.agents.find((one) => nameOf(one) === route.agent) ?? offer.agents[0];
	if (!agent) return;
	if (nameOf(agent) !== route.agent || !route.thread) {
		history.replaceState(null, "", writeRoute({ ...route, agent: nameOf(agent), thread: route.thread || newThread() }));
		return follow();
	}
	const session = findSession(agent, route.thread);
	if (session !== current) {
		current = session;
		drop();
		chat.show(session);
		composer.show(session);
		inspector.attach(session);
		showPart("chat");
	}
	sessions.show(agent, route.thread);
	inspector.show(route.pane, route.detail);
	document.title = `${agent.name} · Umbel studio`;
}

/** Sessions that are neither shown nor at work, and in which nobody is about to sign in or has decided, are read again when they are wanted. */
function drop() {
	for (const [key, session] of open) {
		if (session === current || session.isRunning || session.connection !== "idle" || session.returns.channels.size > 0 || session.decisions.size > 0) continue;
		session.close();
		open.delete(key);
	}
}

/** @param {string} pane @param {string} [detail] */
function showPane(pane, detail = "") {
	showPart("inspector");
	go({ pane, detail });
}

/** On narrow screens one part is shown at a time. @param {"sessions" | "chat" | "inspector"} part */
function showPart(part) {
	app.dataset.part = part;
	for (const tab of app.querySelectorAll(".parts [data-part]")) {
		tab.setAttribute("aria-pressed", String(/** @type {HTMLElement} */ (tab).dataset.part === part));
	}
}

/** @param {boolean} wasWrong @returns {Promise<string>} */
function askForToken(wasWrong) {
	return new Promise((resolve) => {
		const field = h("input.field", { type: "password", autocomplete: "off", required: true, label: "Token", testid: "token" });
		const dialog = h("dialog.dialog", { "aria-labelledby": "token-title", oncancel: (event) => event.preventDefault(), onclose: () => (dialog.remove(), resolve(field.value.trim())) },
			h("form", { method: "dialog" },
				h("h2", { id: "token-title" }, icon("key"), " A token is needed"),
				h("p", null, wasWrong ? "The server does not know this token any more. Enter another." : "This server wants to know who asks. Enter your token; it is kept until this tab is closed."),
				field,
				h("div.dialog-buttons", null, h("button.button.primary", { type: "submit" }, "Go on"))));
		document.body.append(dialog);
		dialog.showModal();
		field.focus();
	});
}

function logo() {
	const rays = svg("path", { d: "M16 29V17M16 17 5 9M16 17l-5-11M16 17V4M16 17l5-11M16 17l11-8" });
	const dots = [[5, 9], [11, 5.5], [16, 4], [21, 5.5], [27, 9]].map(([cx, cy]) => svg("circle", { cx, cy, r: 2.4 }));
	return svg("svg.logo", { viewBox: "0 0 32 32", "aria-hidden": "true" }, rays, dots);
}

/** @param {() => void} showKeys */
function layout(showKeys) {
	const themeButton = iconButton("moon", "Dark", toggleTheme, { testid: "theme" });
	onTheme(() => {
		const label = theme() === "dark" ? "Make it light" : "Make it dark";
		replace(themeButton, icon(theme() === "dark" ? "sun" : "moon"));
		themeButton.setAttribute("aria-label", label);
		themeButton.title = label;
	});
	const inspectorButton = iconButton("panel", "Show or hide the inspector", toggleInspector, { class: "icon-button wide-only" });
	const part = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ image) =>
		h("button", { "data-part": name, "aria-pressed": "false", onclick: () => showPart(/** @type {any} */ (name)) }, icon(image), label);
	replace(app,
		h("header.top", null,
			h("h1", null, logo(), "Umbel", h("span", null, "studio")),
			h("span.spacer", null),
			offer.version ? h("span.muted.version", null, offer.version) : null,
			iconButton("help", "Keys", showKeys), inspectorButton, themeButton),
		h("aside.left", { label: "Sessions" }, sessions.element),
		splitter({ label: "Width of the sessions", variable: "--left", store: "umbel-studio-left", min: 190, max: () => 420, initial: 250, isRight: false }),
		h("main.middle", { id: "main-chat", label: "Chat" }, chat.element, composer.element),
		splitter({ label: "Width of the inspector", variable: "--right", store: "umbel-studio-right", min: 320, max: () => Math.max(320, innerWidth - 700), initial: Math.min(620, Math.round(innerWidth * 0.4)), isRight: true }),
		h("aside.right", { label: "Inspector" }, inspector.element),
		h("nav.parts", { label: "Parts of the page" }, part("sessions", "Sessions", "list"), part("chat", "Chat", "chat"), part("inspector", "Inspector", "trace")));
	app.classList.toggle("no-inspector", localStorage.getItem("umbel-studio-inspector") === "off");
	showPart("chat");
}

function toggleInspector() {
	const isOff = app.classList.toggle("no-inspector");
	localStorage.setItem("umbel-studio-inspector", isOff ? "off" : "on");
}

async function begin() {
	api.askForToken = askForToken;
	const panes = inspector.panes.map(({ name, label }, at) => ({ key: String(at + 1), label: `Show ${label}`, run: () => (app.classList.remove("no-inspector"), showPane(name), inspector.focus()) }));
	const showKeys = listenForKeys([
		{ key: "c", label: "Write a message", run: () => (showPart("chat"), composer.focus()) },
		{ key: "n", label: "New session", run: newSession },
		{ key: "j", label: "Next session", run: () => sessions.step(1) },
		{ key: "k", label: "Previous session", run: () => sessions.step(-1) },
		{ key: "/", label: "Search sessions", run: () => (showPart("sessions"), sessions.search.focus()) },
		{ key: "Escape", label: "Stop the run", run: stop, when: () => current?.isRunning ?? false },
		...panes,
		{ key: "i", label: "Show or hide the inspector", run: toggleInspector },
		{ key: "t", label: "Light or dark", run: toggleTheme },
	]);
	document.getElementById("skip")?.addEventListener("click", (event) => (event.preventDefault(), showPart("chat"), composer.focus()));
	try {
		offer = await api.agents();
	} catch (error) {
		replace(app, h("main.alone", null, problemCard("The server does not answer", words(error), undefined, { label: "Try again", run: () => location.reload() })));
		return;
	}
	if (offer.agents.length === 0) {
		replace(app, h("main.alone", null, problemCard("There is no agent", "This server offers none. Add one with `Server::agent`, then reload.")));
		return;
	}
	sessions.offer(offer.agents);
	inspector.offer(offer, new Docs(api, { link: (page) => writeRoute({ ...here(), pane: "docs", detail: page }), onPage: (page) => go({ pane: "docs", detail: page }) }));
	layout(showKeys);
	window.addEventListener("hashchange", follow);
	follow();
}

void begin();
