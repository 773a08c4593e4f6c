// The agents, and the sessions of the one that is chosen.

import { ago, ask, h, icon, iconButton, replace, toast, words } from "./dom.js";

/** How often it is looked whether other sessions changed, and how long somebody may write before it is searched. */
const REFRESH = 10_000;
const SEARCH_PAUSE = 200;

export class Sessions {
	/** @param {Api} api @param {SessionsActions} actions */
	constructor(api, actions) {
		this.api = api;
		this.actions = actions;
		/** @type {AgentInfo | null} */
		this.agent = null;
		/** @type {ThreadInfo[]} */
		this.threads = [];
		/** @type {string | null} */
		this.next = null;
		this.current = "";
		this.asked = 0;
		/** Why the list could not be read. */
		this.failure = "";
		/** @type {ReturnType<typeof setTimeout> | undefined} */
		this.timer = undefined;
		this.picker = h("select.field.agent-picker", { label: "Agent", testid: "agent-picker", onchange: () => this.pick() });
		/** @type {AgentInfo[]} */
		this.agents = [];
		this.search = h("input.field", { type: "search", placeholder: "Search sessions", label: "Search sessions", testid: "session-search", oninput: () => this.searchSoon() });
		this.list = h("ul.session-list", { label: "Sessions", testid: "sessions" });
		this.more = h("button.button.small", { hidden: true, onclick: () => void this.load(true) }, "More sessions");
		this.note = h("p.muted.session-note", { role: "status" });
		this.element = h("div.sessions", null,
			h("div.sessions-head", null,
				h("label.field-label", null, "Agent", this.picker),
				h("button.button.primary.wide", { testid: "new-session", onclick: () => actions.onNew() }, icon("plus"), "New session"),
				h("div.search", null, icon("search"), this.search)),
			h("div.session-scroll", null, this.list, this.more, this.note));
		setInterval(() => document.visibilityState === "visible" && void this.refresh(), REFRESH);
		window.addEventListener("focus", () => void this.refresh());
	}

	/** @param {AgentInfo[]} agents */
	offer(agents) {
		this.agents = agents;
		replace(this.picker, agents.map((agent, at) => h("option", { value: String(at) }, agent.name)));
	}

	pick() {
		const agent = this.agents[Number(this.picker.value)];
		if (agent) this.actions.onAgent(agent);
	}

	/** @param {AgentInfo} agent @param {string} threadId */
	show(agent, threadId) {
		const isOther = agent !== this.agent;
		this.agent = agent;
		this.current = threadId;
		this.picker.value = String(this.agents.indexOf(agent));
		if (isOther) {
			this.threads = [];
			void this.load(false);
		}
		this.draw();
	}

	searchSoon() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => void this.load(false), SEARCH_PAUSE);
	}

	/** The first page again; whoever has read on keeps the rest. */
	async refresh() {
		if (this.agent && this.threads.length <= 50) await this.load(false);
	}

	/** @param {boolean} isMore */
	async load(isMore) {
		const { agent } = this;
		if (!agent) return;
		this.asked += 1;
		const asked = this.asked;
		try {
			const after = isMore ? (this.next ?? undefined) : undefined;
			const page = await this.api.threads(agent, { search: this.search.value.trim(), after });
			// Somebody may have chosen another agent or other words meanwhile.
			if (asked !== this.asked) return;
			this.threads = isMore ? [...this.threads, ...page.threads] : page.threads;
			this.next = page.next ?? null;
			for (const thread of page.threads) this.actions.onListed(agent, thread);
			this.failure = "";
		} catch (error) {
			if (asked === this.asked) this.failure = `The sessions could not be read: ${words(error)}`;
		}
		this.draw();
	}

	draw() {
		const { agent } = this;
		if (!agent) return;
		const live = new Map([...this.actions.live()].filter((one) => one.agent === agent).map((one) => [one.threadId, one]));
		const rows = this.threads.map((thread) => this.row(thread, live.get(thread.threadId)));
		if (!this.search.value && !this.threads.some((thread) => thread.threadId === this.current)) {
			const session = live.get(this.current);
			const first = session?.talk.messages.find((message) => message.role === "user");
			const title = typeof first?.content === "string" ? first.content.slice(0, 80) : "New session";
			if (!session?.isKnown || first) rows.unshift(this.row({ threadId: this.current, updatedAt: Date.now() / 1000, title }, session));
		}
		const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.closest?.("[data-thread]");
		const thread = focused instanceof HTMLElement && this.list.contains(focused) ? focused.dataset.thread : undefined;
		replace(this.list, rows);
		const note = this.failure || (rows.length > 0 ? "" : this.search.value ? "No session has these words." : "No sessions yet.");
		if (this.note.textContent !== note) this.note.textContent = note;
		// Who stands on a row stays on it.
		if (thread) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-thread="${CSS.escape(thread)}"] a`))?.focus();
		this.more.hidden = this.next === null;
	}

	/** @param {ThreadInfo} thread @param {Session | undefined} session */
	row(thread, session) {
		const isRunning = session?.isRunning ?? thread.running ?? false;
		const isWaiting = !isRunning && (session && !session.isLoading ? session.isWaiting : (thread.waiting ?? false));
		const isCurrent = thread.threadId === this.current;
		const title = thread.title || thread.threadId;
		return h("li", { class: `session ${isCurrent ? "is-current" : ""}`, "data-thread": thread.threadId, testid: "session" },
			h("a", { href: this.actions.link(thread.threadId), "aria-current": isCurrent ? "page" : null },
				h("span.session-title", null, title),
				h("span.session-meta", null,
					isRunning ? h("span.badge.is-running", null, h("i.pulse", { "aria-hidden": "true" }), "running") : null,
					isWaiting ? h("span.badge.is-waiting", null, icon("bell"), "waiting") : null,
					h("time", null, ago(thread.updatedAt)))),
			iconButton("trash", `Delete the session ${title}`, () => void this.remove(thread)));
	}

	/** @param {ThreadInfo} thread */
	async remove(thread) {
		const { agent } = this;
		const body = `“${thread.title || thread.threadId}” and everything in it goes. This cannot be undone.`;
		if (!agent || !(await ask({ title: "Delete this session?", body, yes: "Delete", danger: true }))) return;
		try {
			if (this.threads.includes(thread)) await this.api.deleteThread(agent, thread.threadId);
			this.threads = this.threads.filter((one) => one.threadId !== thread.threadId);
			this.actions.onDeleted(agent, thread.threadId);
			toast("The session is deleted.");
		} catch (error) {
			toast(`The session could not be deleted: ${words(error)}`, { kind: "bad" });
		}
		await this.load(false);
	}

	/** The session that stands so many rows from the current one. @param {number} step */
	step(step) {
		const ids = [...this.list.querySelectorAll("[data-thread]")].map((row) => /** @type {HTMLElement} */ (row).dataset.thread ?? "");
		const at = ids.indexOf(this.current) + step;
		const to = ids[Math.max(0, Math.min(ids.length - 1, at))];
		if (to && to !== this.current) this.actions.onOpen(to);
	}
}
