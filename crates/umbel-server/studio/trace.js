// The waterfall of a run: what took how long, and what it cost.

import { duration, h, icon, replace, words } from "./dom.js";
import { copiedTree } from "./json-tree.js";
import { Pane } from "./pane.js";
import { WindowList } from "./window-list.js";

/** How often a run that is under way is looked at. */
const REFRESH = 700;
const HIDES = "umbel-studio-hides-handlers";
/** @type {Record<string, string>} */
const ICONS = { agent: "agent", model: "thought", tool: "tool", handler: "fork" };

/** Spans in the order of a tree, with their depth. What hangs on a hidden handler is moved up. @param {Span[]} spans @param {boolean} handlers */
export function rows(spans, handlers) {
	/** @type {Map<string | null, Span[]>} */
	const below = new Map();
	const ids = new Set(spans.map((span) => span.id));
	for (const span of spans) {
		const parent = span.parent !== null && ids.has(span.parent) ? span.parent : null;
		below.set(parent, [...(below.get(parent) ?? []), span]);
	}
	/** @type {SpanRow[]} */
	const out = [];
	const walk = (/** @type {string | null} */ parent, /** @type {number} */ depth) => {
		for (const span of below.get(parent) ?? []) {
			const isShown = handlers || span.kind !== "handler";
			if (isShown) out.push({ span, depth });
			walk(span.id, isShown ? depth + 1 : depth);
		}
	};
	walk(null, 0);
	return out;
}

/** What all model calls used and cost. @param {Span[]} spans */
export function total(spans) {
	const sum = { input: 0, output: 0, cost: 0, currency: "" };
	for (const { usage, cost } of spans.filter((span) => span.kind === "model")) {
		sum.input += usage?.input ?? 0;
		sum.output += usage?.output ?? 0;
		sum.cost += cost?.amount ?? 0;
		sum.currency = cost?.currency ?? sum.currency;
	}
	return sum;
}

/** The event of a run that a span came to: what a model answered, or what a tool gave. @param {Span} span @param {LogEntry[]} entries those of the run @returns {string | undefined} */
export function eventOfSpan({ attributes = {} }, entries) {
	// Code that was run here is a call. Results of code that the model ran itself are part of its answer.
	const ofCode = (/** @type {any} */ code) => (code?.id?.startsWith("adk-") ? code.id : []);
	const results = (/** @type {LogEntry} */ { event }) => (event.content?.parts ?? []).flatMap((/** @type {any} */ part) => part.functionResponse?.id ?? ofCode(part.codeExecutionResult));
	const looks = (/** @type {LogEntry} */ { event }) => (event.content?.parts ?? []).some((/** @type {any} */ part) => part.executableCode?.id?.startsWith("adk-file-"));
	if (attributes.callId) return entries.find((entry) => results(entry).includes(attributes.callId))?.event.id;
	const answers = entries.filter((entry) => entry.event.author !== "user" && entry.event.content && results(entry).length === 0 && !looks(entry));
	return answers[attributes.step - 1]?.event.id;
}

/** The runs of a session to choose from, the last one first. @param {HTMLSelectElement} picker @param {Session} session @param {string} chosen @returns {string} the one that is chosen */
export function offerRuns(picker, session, chosen) {
	const runs = new Map(session.runs.map((run) => [run.runId, `${run.outcome} · ${new Date(run.startedAt * 1000).toLocaleTimeString()}`]));
	const live = session.isRunning ? session.talk.run?.runId : undefined;
	if (live) runs.set(live, "running");
	const ids = [...runs.keys()];
	const run = runs.has(chosen) ? chosen : (ids.at(-1) ?? "");
	replace(picker, ids.map((id, at) => h("option", { value: id }, `Run ${at + 1} · ${runs.get(id)}`)).reverse());
	picker.value = run;
	picker.disabled = ids.length === 0;
	return run;
}

export class TracePane extends Pane {
	/** @param {Api} api @param {InspectorActions} actions */
	constructor(api, actions) {
		super(h("div.pane"), ["runs", "ended", "wire", "selection"]);
		this.api = api;
		this.actions = actions;
		this.run = "";
		/** @type {Trace | null} */
		this.trace = null;
		this.chosen = "";
		this.length = 1;
		this.asked = 0;
		/** @type {ReturnType<typeof setTimeout> | undefined} */
		this.timer = undefined;
		this.picker = h("select.field", { label: "Run", testid: "trace-run", onchange: () => actions.onPane("trace", this.picker.value) });
		this.handlers = h("input", { type: "checkbox", checked: !localStorage.getItem(HIDES), onchange: () => (localStorage.setItem(HIDES, this.handlers.checked ? "" : "yes"), this.draw()) });
		this.summary = h("p.trace-summary.muted", { role: "status" });
		this.scale = h("div.trace-scale", { "aria-hidden": "true" });
		this.list = new WindowList({ label: "Spans", row: 28, testid: "trace", draw: (/** @type {SpanRow} */ row) => this.drawRow(row), onChoose: (row) => this.choose(row.span) });
		this.detail = h("div.detail", { tabindex: "0", role: "region", label: "The span", testid: "span-detail" });
		this.element.append(h("div.pane-bar", null, this.picker, h("label.field-check", null, this.handlers, "Handlers")), this.summary, this.scale, h("div.pane-split", null, this.list.element, this.detail));
	}

	reset() {
		[this.run, this.trace, this.chosen] = ["", null, ""];
	}

	/** @param {Topic} topic */
	heard(topic) {
		if (topic === "selection") this.followSelection();
		else if (topic === "wire") this.loadSoon();
		else void this.load();
	}

	/** @param {string} detail a run */
	activate(detail) {
		this.isActive = true;
		this.run = detail || this.selectedRun || this.run;
		this.session?.wantLog();
		void this.load().then(() => detail === "" && this.followSelection());
	}

	/** Shows the run of the event that another pane chose, and its span. */
	followSelection() {
		const run = this.selectedRun;
		if (run && run !== this.run) {
			this.run = run;
			void this.load();
		}
		const id = this.session?.selected;
		const span = id ? this.trace?.spans.find((one) => eventOfSpan(one, this.entries) === id) : undefined;
		if (span && span.id !== this.chosen) this.choose(span);
	}

	/** What the log has of the run that is shown. */
	get entries() {
		return (this.session?.log ?? []).filter((entry) => entry.runId === this.run);
	}

	loadSoon() {
		this.timer ??= setTimeout(() => {
			this.timer = undefined;
			if (this.isActive) void this.load();
		}, REFRESH);
	}

	async load() {
		const { session } = this;
		if (!session) return;
		// A new run is shown at once, unless somebody looks at an older one.
		const wasLast = this.run === this.picker.options[0]?.value;
		this.run = offerRuns(this.picker, session, wasLast && session.isRunning ? "" : this.run);
		this.asked += 1;
		const asked = this.asked;
		try {
			const trace = session.hasRun(this.run) ? await this.api.trace(session.agent, session.threadId, this.run) : null;
			if (asked !== this.asked) return;
			this.trace = trace;
			this.draw();
			if (session.isRunning) this.loadSoon();
		} catch (error) {
			// A run that has just begun is not there yet.
			if (asked !== this.asked || session.isRunning) return;
			this.trace = null;
			this.draw();
			this.summary.textContent = `The trace could not be read: ${words(error)}`;
		}
	}

	draw() {
		const { trace } = this;
		const spans = trace?.spans ?? [];
		const now = Date.now() - (trace?.startedAt ?? 0) * 1000;
		this.length = Math.max(1, ...spans.map((span) => span.end ?? Math.max(span.start, now)));
		const sum = total(spans);
		const facts = [duration(this.length)];
		if (sum.input + sum.output > 0) facts.push(`${sum.input} tokens in, ${sum.output} out`);
		if (sum.currency) facts.push(money(sum.cost, sum.currency));
		if (trace?.source === "log") facts.push("made from the log: times are not exact");
		this.summary.textContent = trace ? facts.join(" · ") : "No run yet.";
		replace(this.scale, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", null, duration(this.length * part))));
		const shown = rows(spans, this.handlers.checked);
		this.list.show(shown);
		const at = shown.findIndex((row) => row.span.id === this.chosen);
		this.list.choose(at, false);
		const span = shown[at]?.span;
		if (span) this.showDetail(span);
		else replace(this.detail, h("p.muted.pad", null, shown.length > 0 ? "Choose a span to see what is known of it." : "Say something in the chat, and the run is drawn here."));
	}

	/** @param {SpanRow} row */
	drawRow({ span, depth }) {
		const mark = span.error ? "has-error" : "";
		const bar = h("span", { class: `bar bar-${span.kind} ${mark} ${span.end === null ? "is-open" : ""}` });
		const end = span.end ?? this.length;
		bar.style.left = `${(100 * span.start) / this.length}%`;
		bar.style.width = `${Math.max(0.4, (100 * (end - span.start)) / this.length)}%`;
		const name = h("span.span-name", null, icon(ICONS[span.kind] ?? "right"), h("span", null, span.name));
		name.style.paddingLeft = `${8 + Math.min(depth, 8) * 12}px`;
		const took = span.end === null ? "under way" : duration(end - span.start);
		const tokens = span.usage ? h("i", null, `${(span.usage.input ?? 0) + (span.usage.output ?? 0)} tok`) : null;
		return h("div", { class: `span-row ${mark}`, "data-kind": span.kind },
			name, h("span.offscreen", null, `${span.kind}${span.error ? ", failed" : ""}, `), h("span.span-lane", null, bar), h("span.span-time", null, tokens, took));
	}

	/** @param {Span} span */
	choose(span) {
		this.chosen = span.id;
		const at = this.list.items.findIndex((row) => row.span.id === span.id);
		if (at !== this.list.chosen) this.list.choose(at);
		this.showDetail(span);
		const event = eventOfSpan(span, this.entries);
		if (event) this.session?.select(event);
	}

	/** @param {Span} span */
	showDetail(span) {
		const { usage, cost, attributes = {} } = span;
		const facts = [["Begins", `after ${duration(span.start)}`], ["Takes", span.end === null ? "still under way" : duration(span.end - span.start)]];
		if (usage) facts.push(["Tokens", Object.entries(usage).map(([name, count]) => `${count} ${name}`).join(", ")]);
		if (cost) facts.push(["Cost", money(cost.amount, cost.currency)]);
		const link = attributes.step !== undefined ? h("a.button.small", { href: this.actions.link("prompt", `${this.run}~${attributes.step}`) }, icon("prompt"), "Its prompt") : null;
		replace(this.detail,
			h("div.detail-bar", null, h("span", { class: `kind kind-${span.kind}` }, span.kind), h("strong", null, span.name), h("span.spacer"), link),
			span.error ? h("p.span-error", null, icon("warning"), span.error) : null,
			h("dl.facts", null, facts.map(([name, fact]) => [h("dt", null, name), h("dd", null, fact)])),
			Object.keys(attributes).length > 0 ? copiedTree(attributes, { label: "Attributes" }) : null);
	}
}

/** @param {number} amount @param {string} currency */
function money(amount, currency) {
	return `${amount < 0.01 ? amount.toPrecision(2) : amount.toFixed(2)} ${currency}`;
}
