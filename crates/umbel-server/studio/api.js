// The server's HTTP API. Everything is asked for relative to where the studio itself came from.

/** What the server refused, in its own words. */
export class Problem extends Error {
	/** @param {number} status @param {string} code @param {string} message @param {string} [reference] */
	constructor(status, code, message, reference) {
		super(message);
		this.status = status;
		this.code = code;
		this.reference = reference;
	}
}

const TOKEN = "umbel-studio-token";

export class Api {
	constructor() {
		/** Where the server's own routes begin: one folder above the studio. */
		this.base = new URL("..", document.baseURI);
		/** @type {string | null} */
		this.token = sessionStorage.getItem(TOKEN);
		/** Asks a person for a token. @type {(wasWrong: boolean) => Promise<string>} */
		this.askForToken = () => Promise.reject(new Error("nobody can be asked for a token"));
		/** @type {Promise<string> | null} */
		this.asking = null;
	}

	/** @returns {Promise<Offer>} */
	agents() {
		return this.json(new URL("agents", this.base));
	}

	/**
	 * @param {AgentInfo} agent @param {{ search?: string, after?: string, limit?: number }} options
	 * @returns {Promise<{ threads: ThreadInfo[], next?: string | null }>}
	 */
	threads(agent, { search, after, limit = 50 }) {
		return this.json(this.url(agent, "threads", { limit: String(limit), after, search }));
	}

	/**
	 * A thread with all its messages, which come in pages.
	 * @param {AgentInfo} agent @param {string} thread @param {string} [before] @returns {Promise<Thread>}
	 */
	async thread(agent, thread, before) {
		const page = (/** @type {string} */ until) =>
			this.json(this.url(agent, `threads/${encodeURIComponent(thread)}`, { before, until }));
		const found = await page("");
		const pages = [found.messages];
		for (let until = found.previous; until; ) {
			const older = await page(until);
			pages.unshift(older.messages);
			until = older.previous;
		}
		return { ...found, messages: pages.flat() };
	}

	/** @param {AgentInfo} agent @param {string} thread */
	async deleteThread(agent, thread) {
		await this.ask(this.url(agent, `threads/${encodeURIComponent(thread)}`), { method: "DELETE" });
	}

	/** @param {AgentInfo} agent @param {string} thread @returns {Promise<{ runs: RunInfo[] }>} */
	runs(agent, thread) {
		return this.json(this.url(agent, `threads/${encodeURIComponent(thread)}/runs`));
	}

	/** @param {AgentInfo} agent @param {string} thread @param {number} [after] @returns {Promise<LogPage>} */
	events(agent, thread, after) {
		const query = after === undefined ? {} : { after: String(after) };
		return this.json(this.url(agent, `threads/${encodeURIComponent(thread)}/events`, query));
	}

	/**
	 * @param {AgentInfo} agent @param {string} thread
	 * @param {{ messageId?: string, eventId?: string, before?: boolean }} until
	 * @returns {Promise<{ threadId: string }>}
	 */
	fork(agent, thread, until) {
		return this.json(this.url(agent, `threads/${encodeURIComponent(thread)}/fork`), post(until));
	}

	/** @param {AgentInfo} agent @returns {Promise<{ root: string, agents: Record<string, any>[] }>} */
	graph(agent) {
		return this.json(this.url(agent, "graph"));
	}

	/** @param {AgentInfo} agent @param {string} thread @param {string} run @returns {Promise<Trace>} */
	trace(agent, thread, run) {
		return this.json(this.url(agent, `runs/${encodeURIComponent(run)}/trace`, { thread }));
	}

	/** @param {AgentInfo} agent @param {string} thread @param {string} run @returns {Promise<{ steps: Step[] }>} */
	steps(agent, thread, run) {
		return this.json(this.url(agent, `runs/${encodeURIComponent(run)}/steps`, { thread }));
	}

	/** @param {AgentInfo} agent @param {string} thread @param {string} run @param {number} step @returns {Promise<Record<string, any>>} */
	request(agent, thread, run, step) {
		return this.json(this.url(agent, `runs/${encodeURIComponent(run)}/steps/${step}/request`, { thread }));
	}

	/** @param {AgentInfo} agent @param {string} run */
	async cancel(agent, run) {
		await this.ask(this.url(agent, `runs/${encodeURIComponent(run)}/cancel`), { method: "POST" });
	}

	/** The stream of a run that is there. @param {AgentInfo} agent @param {string} thread @param {string} run @param {string | undefined} last @param {AbortSignal} signal */
	follow(agent, thread, run, last, signal) {
		/** @type {Record<string, string>} */
		const headers = { Accept: "text/event-stream" };
		if (last !== undefined) headers["Last-Event-ID"] = last;
		return this.ask(this.url(agent, `runs/${encodeURIComponent(run)}/events`, { thread }), { headers, signal });
	}

	/** Begins a run. @param {AgentInfo} agent @param {Record<string, any>} input @param {AbortSignal} signal */
	begin(agent, input, signal) {
		const init = post(input);
		return this.ask(this.url(agent, ""), { ...init, headers: { ...init.headers, Accept: "text/event-stream" }, signal });
	}

	/** @returns {Promise<{ name: string, title: string }[]>} */
	docs() {
		return this.json(new URL("docs/index.json", document.baseURI));
	}

	/** @param {string} name */
	async page(name) {
		const path = name.split("/").map(encodeURIComponent).join("/");
		return (await this.ask(new URL(`docs/${path}.md`, document.baseURI))).text();
	}

	/** @param {AgentInfo} agent @param {string} rest @param {Record<string, string | undefined>} [query] */
	url(agent, rest, query = {}) {
		const url = new URL(rest ? `${agent.path.replace(/\/+$/, "")}/${rest}` : agent.path, this.base);
		for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
		return url;
	}

	/** @param {URL} url @param {RequestInit} [init] @returns {Promise<any>} */
	async json(url, init) {
		return (await this.ask(url, init)).json();
	}

	/** An answer that is fine, or a problem. Who is not known is asked for a token. @param {URL} url @param {RequestInit} [init] @returns {Promise<Response>} */
	async ask(url, init = {}) {
		for (;;) {
			const used = this.token;
			const headers = new Headers(init.headers);
			if (used) headers.set("Authorization", `Bearer ${used}`);
			const response = await fetch(url, { ...init, headers });
			if (response.ok) return response;
			if (response.status !== 401) throw await problem(response);
			if (this.token === used) await this.newToken(used !== null);
		}
	}

	/** Several requests may be refused at once: a person is asked once. @param {boolean} wasWrong */
	async newToken(wasWrong) {
		this.asking ??= this.askForToken(wasWrong).finally(() => (this.asking = null));
		this.token = await this.asking;
		sessionStorage.setItem(TOKEN, this.token);
	}
}

/** @param {unknown} body */
function post(body) {
	return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

/** @param {Response} response */
async function problem(response) {
	const text = await response.text().catch(() => "");
	try {
		const { error } = JSON.parse(text);
		return new Problem(response.status, error.code, error.message, error.reference);
	} catch {
		return new Problem(response.status, `HTTP_${response.status}`, text || response.statusText || "The server gave no reason.");
	}
}
