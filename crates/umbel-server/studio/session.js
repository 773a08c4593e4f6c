// One thread that is open: its conversation, the events that came, its log, and what can be done with it.

import { Problem } from "./api.js";
import { CLIENT_TOOLS, knows, runClientTool } from "./client-tools.js";
import { addMessage, apply, eventOf, newConversation, seed, unanswered } from "./fold.js";
import { Returns, signInOf } from "./sign-in.js";
import { readRun } from "./stream.js";
import { onFrame, words } from "./dom.js";

/** A conversation that is longer is not sent whole: the server knows it. */
const SENT_WHOLE = 400;
/** How many events of the wire are kept. */
const KEPT = 50_000;
/** How often the log is read again while a run is under way. */
const LOG_PAUSE = 800;

/** Where the id of the thread is kept that is only here. */
const NEW = "umbel-studio-new";

/** The id of a thread that is only here until somebody says something. */
export function newThread() {
	const id = newId();
	sessionStorage.setItem(NEW, id);
	return id;
}

/** An id that nobody else has, also on pages without TLS. */
function newId() {
	const bytes = crypto.getRandomValues(new Uint8Array(12));
	return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Session {
	/** @param {Api} api @param {AgentInfo} agent @param {string} threadId @param {boolean} inspect */
	constructor(api, agent, threadId, inspect) {
		this.api = api;
		this.agent = agent;
		this.threadId = threadId;
		this.inspect = inspect;
		this.talk = newConversation();
		/** Whether the server has it: one without a message is only here. */
		this.isKnown = sessionStorage.getItem(NEW) !== threadId;
		this.isLoading = true;
		/** What went wrong when it was opened. @type {string | null} */
		this.failure = null;
		/** @type {"idle" | "live" | "reconnecting" | "lost"} */
		this.connection = "idle";
		/** @type {WireEntry[]} */
		this.wire = [];
		/** @type {LogEntry[]} */
		this.log = [];
		/** @type {Record<string, any>} */
		this.initialState = {};
		/** Where an event stands in the log, by its id. @type {Map<string, number>} */
		this.places = new Map();
		/** @type {RunInfo[]} */
		this.runs = [];
		/** The event that all panes look at, by its id. @type {string | null} */
		this.selected = null;
		/** What was decided about questions so far; they are answered together. @type {Map<string, Decision>} */
		this.decisions = new Map();
		/** The same for calls of this client's tools. @type {Map<string, string>} */
		this.answers = new Map();
		/** What a person made of the state, to be sent with the next message. @type {Record<string, any> | undefined} */
		this.editedState = undefined;
		/** What was sent to begin a run of which nothing came yet: nobody knows whether it began. @type {Record<string, any> | null} */
		this.unheard = null;
		/** How the list said the session stands; a time of 0 is not known. */
		this.listed = { updatedAt: 0, running: false };
		/** Whether the last run brought answers to questions. */
		this.isAnswer = false;
		/** Whether the log has the run that is under way: it tells of something. */
		this.isLogged = true;
		this.stopping = new AbortController();
		this.isLogWanted = false;
		/** @type {Promise<void> | null} */
		this.readingLog = null;
		/** @type {ReturnType<typeof setTimeout> | undefined} */
		this.logTimer = undefined;
		/** @type {Map<Topic, Set<() => void>>} */
		this.listeners = new Map();
		/** Where a person was not let in, by question: what the service said, and when. @type {Map<string, { error: string, at: number }>} */
		this.turnedAway = new Map();
		/** Who comes back from signing in. */
		this.returns = new Returns((state, address) => this.signedIn(state, address));
		this.talkChanged = onFrame(() => {
			this.returns.listenFor(this.stopping.signal.aborted ? [] : this.undecided());
			this.emit("talk");
		});
		this.wireChanged = onFrame(() => this.emit("wire"));
	}

	/** Hears of changes; what it gives ends that. @param {Topic} topic @param {() => void} listener */
	on(topic, listener) {
		const all = this.listeners.get(topic) ?? new Set();
		this.listeners.set(topic, all.add(listener));
		return () => void all.delete(listener);
	}

	/** The same for several kinds of changes. @param {Topic[]} topics @param {() => void} listener */
	listen(topics, listener) {
		const ends = topics.map((topic) => this.on(topic, listener));
		return () => ends.forEach((end) => end());
	}

	/** @param {Topic} topic */
	emit(topic) {
		for (const listener of [...(this.listeners.get(topic) ?? [])]) listener();
	}

	get isRunning() {
		return this.talk.run?.status === "running";
	}

	/** Whether nothing is going on that this page knows of. */
	get isIdle() {
		return !this.isRunning && !this.isLoading && this.connection === "idle";
	}

	/** Whether a person or this client is asked for something. */
	get isWaiting() {
		return !this.isRunning && (this.talk.interrupts.length > 0 || this.talk.pending.length > 0);
	}

	/** Reads the thread, and follows the run that it has. One that was made here, and in which nobody said anything, is not asked for. */
	async open() {
		this.failure = null;
		this.isLoading = this.isKnown;
		if (!this.isKnown) return this.talkChanged();
		try {
			await this.readThread();
		} catch (error) {
			const isNew = error instanceof Problem && error.status === 404;
			if (isNew) [this.isKnown, this.talk.run] = [false, null];
			else this.failure = words(error);
			this.isLoading = false;
			this.talkChanged();
		}
	}

	/** Takes over what the server has. A run that began here meanwhile knows better. */
	async readThread() {
		const { run } = this.talk;
		const thread = await this.api.thread(this.agent, this.threadId);
		const before = thread.runningRunId ? await this.api.thread(this.agent, this.threadId, thread.runningRunId) : null;
		if (this.talk.run !== run) {
			this.isLoading = false;
			this.talkChanged();
		} else if (before && thread.runningRunId) await this.takeUp(thread, before, thread.runningRunId);
		else this.show(thread);
	}

	/** Hears from the list how the session stands. What happened elsewhere is read, without a word. @param {ThreadInfo} thread */
	async heardOf({ updatedAt, running = false }) {
		if (!this.isIdle || this.failure || !this.isKnown) return;
		const before = this.listed;
		this.listed = { updatedAt, running };
		const isNews = (running && !before.running) || (before.updatedAt !== 0 && before.updatedAt !== updatedAt);
		if (!isNews) return;
		try {
			await this.readThread();
			if (this.isLogWanted) await this.readLog();
		} catch {
			// The list is read again soon.
			this.listed = before;
		}
	}

	/** @param {Thread} thread */
	show(thread) {
		// The server has no run under way: one that was here has ended unseen. What came since is not of the run seen last.
		const isPast = this.isRunning || thread.messages.at(-1)?.id !== this.talk.messages.at(-1)?.id;
		if (isPast) this.talk.run = null;
		seed(this.talk, thread);
		const asked = new Set(thread.interrupts.map((one) => one.toolCallId));
		this.talk.pending = unanswered(thread.messages).filter((call) => !asked.has(call.id) && knows(call.function.name)).map((call) => call.id);
		this.isLoading = false;
		this.talkChanged();
		// What is looked at comes first.
		void (this.readingLog ?? Promise.resolve()).then(() => this.readRuns());
		this.noteWaitingCalls();
		this.answerOwnCalls();
	}

	/** The stream tells the run from its beginning, so only what was there before is shown at once. @param {Thread} thread @param {Thread} before @param {string} run */
	async takeUp(thread, before, run) {
		seed(this.talk, { messages: before.messages, state: thread.state });
		this.talk.run = { runId: run, status: "running" };
		this.isLoading = false;
		this.talkChanged();
		void this.readRuns();
		const { signal } = this.stopping;
		const open = (/** @type {string | undefined} */ last) => this.api.follow(this.agent, this.threadId, run, last, signal);
		// Changes of the state are told from where the run began, and what is known of it is newer: its next snapshot counts.
		await this.read(run, () => open(undefined), open, true);
	}

	/** Says something. @param {string} text */
	async send(text) {
		await this.start([{ id: newId(), role: "user", content: text }], {});
	}

	/** Notes what a person decided. When all questions are decided, the run goes on. @param {string} id @param {Decision} decision */
	async decide(id, decision) {
		const open = this.talk.interrupts;
		if (!open.some((one) => one.id === id)) return;
		this.decisions.set(id, decision);
		this.talkChanged();
		for (const one of open) if (one.toolCallId) this.touchCall(one.toolCallId);
		if (!open.every((one) => this.decisions.has(one.id))) return;
		const resume = open.map((one) => ({ interruptId: one.id, ...this.decisions.get(one.id) }));
		this.decisions.clear();
		await this.start([], { resume });
	}

	/** Questions that a person has still to decide. */
	undecided() {
		return this.talk.interrupts.filter((one) => !this.decisions.has(one.id));
	}

	/** A person came back: that answers all that asked for this sign-in. Who was not let in may try again. @param {string} state @param {string} address */
	signedIn(state, address) {
		const error = new URL(address).searchParams.get("error");
		for (const one of this.undecided().filter((one) => signInOf(one)?.state === state)) {
			if (error === null) void this.decide(one.id, { status: "resolved", payload: { authResponseUri: address } });
			else {
				this.turnedAway.set(one.id, { error, at: Date.now() });
				if (one.toolCallId) this.touchCall(one.toolCallId);
				this.talkChanged();
			}
		}
	}

	/** Answers a call of a tool that this client was asked to run. @param {string} callId @param {string} content */
	async answerCall(callId, content) {
		const { pending } = this.talk;
		if (!pending.includes(callId)) return;
		this.answers.set(callId, content);
		this.touchCall(callId);
		this.talkChanged();
		if (!pending.every((id) => this.answers.has(id))) return;
		const messages = pending.map((id) => ({ id: newId(), role: "tool", toolCallId: id, content: this.answers.get(id) ?? "" }));
		this.answers.clear();
		await this.start(messages, {});
	}

	/** Runs the studio's own tools; the others wait for a person. */
	answerOwnCalls() {
		const calls = this.talk.messages.flatMap((message) => message.toolCalls ?? []);
		for (const id of this.talk.pending) {
			const call = calls.find((one) => one.id === id);
			if (call && knows(call.function.name) && !this.answers.has(id)) void this.answerCall(id, runClientTool(call));
		}
	}

	/** Calls without an answer that the log says wait for one: somebody else's tools, which a person may answer here. */
	noteWaitingCalls() {
		const asked = new Set(this.talk.interrupts.map((one) => one.toolCallId));
		const later = new Set(this.log.flatMap((entry) => entry.event.longRunningToolIds ?? []));
		if (this.isRunning || later.size === 0) return;
		const waiting = unanswered(this.talk.messages).map((call) => call.id).filter((id) => later.has(id) && !asked.has(id));
		const fresh = waiting.filter((id) => !this.talk.pending.includes(id));
		if (fresh.length === 0) return;
		this.talk.pending = [...this.talk.pending, ...fresh];
		for (const id of fresh) this.touchCall(id);
		this.talkChanged();
	}

	/** @param {string} callId */
	touchCall(callId) {
		const owner = this.talk.messages.find((message) => message.toolCalls?.some((call) => call.id === callId));
		if (owner) this.talk.dirty.add(owner.id);
	}

	/** Begins a run. @param {Message[]} said @param {{ resume?: any[] }} more */
	async start(said, more) {
		for (const message of said) addMessage(this.talk, message);
		if (sessionStorage.getItem(NEW) === this.threadId) sessionStorage.removeItem(NEW);
		const runId = newId();
		const talk = this.talk;
		const whole = talk.messages.length <= SENT_WHOLE;
		/** @type {Record<string, any>} */
		const input = {
			threadId: this.threadId,
			runId,
			messages: whole ? talk.messages.filter((message) => message.role !== "activity") : said,
			tools: CLIENT_TOOLS,
			context: [],
			forwardedProps: {},
			protocolVersion: "1.0",
			...(whole ? { state: talk.state } : {}),
			...(this.editedState !== undefined ? { state: this.editedState } : {}),
			...more,
		};
		this.isAnswer = more.resume !== undefined;
		this.isLogged = false;
		talk.state = input.state ?? talk.state;
		talk.run = { runId, status: "running" };
		talk.pending = [];
		talk.interrupts = [];
		talk.isReordered = true;
		this.talkChanged();
		this.emit("runs");
		await this.begin(input);
	}

	/** The same input begins a run once, however often it is sent. @param {Record<string, any>} input */
	async begin(input) {
		this.unheard = input;
		const { signal } = this.stopping;
		const begin = () => this.api.begin(this.agent, input, signal);
		const resume = (/** @type {string} */ last) => this.api.follow(this.agent, this.threadId, input.runId, last, signal);
		await this.read(input.runId, begin, resume, false);
	}

	/** The server answered: what was sent has arrived, and with it the state that a person made. */
	heard() {
		if (this.unheard && this.unheard.state === this.editedState) this.editedState = undefined;
		this.unheard = null;
	}

	/**
	 * Reads a run to its end and takes in what it says.
	 * @param {string} runId @param {() => Promise<Response>} begin @param {(last: string) => Promise<Response>} resume @param {boolean} holdsState
	 */
	async read(runId, begin, resume, holdsState) {
		const { signal } = this.stopping;
		try {
			await readRun({
				begin,
				resume,
				signal,
				onConnection: (state) => this.connect(state),
				onFrame: ({ id, event }) => {
					this.isKnown = true;
					this.heard();
					this.isLogged ||= !/^(RUN_STARTED|STATE_)/.test(event.type);
					this.wire.push({ at: Date.now(), id, runId, event });
					if (this.wire.length > KEPT) this.wire.splice(0, this.wire.length - KEPT);
					if (event.type === "STATE_SNAPSHOT") holdsState = false;
					if (!(holdsState && event.type === "STATE_DELTA")) apply(this.talk, event);
					this.talkChanged();
					this.wireChanged();
					this.readLogSoon();
				},
			});
			if (signal.aborted) return;
			this.connect("idle");
		} catch (error) {
			if (signal.aborted) return;
			if (error instanceof Problem) {
				this.connect("idle");
				this.unheard = null;
				apply(this.talk, { type: "RUN_ERROR", message: error.message, code: error.code });
			} else {
				this.connect("lost");
				return;
			}
		}
		this.talkChanged();
		await this.ended();
	}

	async ended() {
		this.decisions.clear();
		// The list is about to tell of the run that was here, which is no news.
		this.listed = { updatedAt: 0, running: true };
		this.emit("ended");
		this.answerOwnCalls();
		if (this.isAnswer && this.talk.run?.status !== "finished" && this.talk.interrupts.length === 0) await this.readQuestions();
		await this.readRuns();
		if (this.isLogWanted) await this.readLog();
	}

	/** Questions stay open if the run that brought their answers failed. */
	async readQuestions() {
		try {
			const { interrupts } = await this.api.thread(this.agent, this.threadId);
			if (this.isRunning) return;
			this.talk.interrupts = interrupts;
			for (const one of interrupts) if (one.toolCallId) this.touchCall(one.toolCallId);
			this.talkChanged();
		} catch {
			// Then they are there after a reload.
		}
	}

	/** @param {"idle" | "live" | "reconnecting" | "lost"} state */
	connect(state) {
		if (this.connection === state) return;
		this.connection = state;
		this.emit("connection");
	}

	/** Tries again after the connection was lost. */
	async reconnect() {
		this.connect("reconnecting");
		this.stopping = new AbortController();
		if (this.unheard) return this.begin(this.unheard);
		await this.open();
		if (this.connection === "reconnecting") this.connect(this.failure ? "lost" : "idle");
	}

	/** Ends the run that is under way. */
	async stop() {
		const run = this.talk.run;
		if (run?.status === "running") await this.api.cancel(this.agent, run.runId);
	}

	/** Nobody looks any more. */
	close() {
		this.stopping.abort();
		clearTimeout(this.logTimer);
		this.returns.listenFor([]);
		this.listeners.clear();
	}

	/** Whether the server can be asked about a run. @param {string} run */
	hasRun(run) {
		return run !== "" && (this.isLogged || run !== this.talk.run?.runId);
	}

	/** @param {string | null} eventId */
	select(eventId) {
		if (this.selected === eventId) return;
		this.selected = eventId;
		this.emit("selection");
	}

	async readRuns() {
		if (!this.isKnown) return;
		try {
			this.runs = (await this.api.runs(this.agent, this.threadId)).runs;
		} catch {
			// They are asked for again when the next run ends.
		}
		this.emit("runs");
	}

	/** Some pane shows the log: from now on it is kept up to date. */
	wantLog() {
		this.isLogWanted = true;
		if (this.isKnown) void this.readLog();
	}

	readLogSoon() {
		if (!this.isLogWanted || this.logTimer !== undefined) return;
		this.logTimer = setTimeout(() => {
			this.logTimer = undefined;
			void this.readLog();
		}, LOG_PAUSE);
	}

	/** Reads what the log has got since. Whoever asks meanwhile is told when that is done. */
	readLog() {
		if (!this.inspect || !this.isKnown) return Promise.resolve();
		this.readingLog ??= this.readLogNow().finally(() => (this.readingLog = null));
		return this.readingLog;
	}

	async readLogNow() {
		try {
			/** @type {number | null | undefined} */
			let after = this.log.at(-1)?.index;
			do {
				const page = await this.api.events(this.agent, this.threadId, after);
				this.initialState = page.initialState ?? this.initialState;
				for (const entry of page.events) {
					this.places.set(entry.event.id, this.log.length);
					for (const [id] of entry.event.customMetadata?.agui?.messages ?? []) this.places.set(id, this.log.length);
					this.log.push(entry);
				}
				// A page may have nothing that is shown, and be followed by others.
				after = page.next;
			} while (after !== null && after !== undefined);
			this.noteWaitingCalls();
			// Now it is known who said what.
			for (const { id, subagentRunId } of this.talk.messages) if (subagentRunId) this.talk.dirty.add(id);
			this.talk.isReordered = true;
			this.talkChanged();
		} catch {
			// What came so far is shown; it is read again when more happens.
		}
		this.emit("log");
	}

	/** The event of the log that a message is of. @param {string} messageId @returns {LogEntry | undefined} */
	entryOf(messageId) {
		const place = this.places.get(eventOf(messageId));
		return place === undefined ? undefined : this.log[place];
	}

	/** The agent that said something. @param {Message} message @returns {{ name: string, isParallel: boolean, isRoot: boolean }} */
	author(message) {
		const sub = message.subagentRunId ? this.talk.subagents.get(message.subagentRunId) : undefined;
		const entry = this.entryOf(message.id)?.event;
		const name = sub?.name ?? entry?.author ?? nameIn(message.subagentRunId) ?? this.agent.name;
		return { name, isParallel: sub?.isParallel ?? Boolean(entry?.branch), isRoot: !message.subagentRunId };
	}
}

/** The name in the id of an agent's turn, which is the run's, the agent's and a number. @param {string | undefined} id */
function nameIn(id) {
	return id ? /^e-.{18}-(.+?)(?:-\d+)?$/.exec(id)?.[1] : undefined;
}
