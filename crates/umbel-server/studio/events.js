// The events of a session: what its log has, and what came over the wire while this page looked.

import { copy, h, hue, icon, iconButton, onFrame, replace } from "./dom.js";
import { eventOf } from "./fold.js";
import { closed } from "./inspector.js";
import { tree } from "./json-tree.js";
import { LOG_KINDS, WIRE_KINDS, logBrief, wireBrief } from "./log-kinds.js";
import { Pane } from "./pane.js";
import { WindowList } from "./window-list.js";

export class Events extends Pane {
	/** @param {InspectorActions} actions */
	constructor(actions) {
		super(h("div.pane"), ["log", "wire", "selection"]);
		this.actions = actions;
		this.source = "log";
		/** Rows are made once. @type {EventRow[]} */
		this.rows = [];
		/** @type {unknown} */
		this.first = null;
		this.drawSoon = onFrame(() => this.draw());
		this.search = h("input.field", { type: "search", placeholder: "Filter", label: "Filter events", testid: "event-filter", oninput: () => this.drawSoon() });
		this.kind = h("select.field", { label: "Kind of event", testid: "event-kind", onchange: () => this.draw() });
		this.count = h("span.muted.count", { role: "status" });
		this.sources = ["log", "wire"].map((source) => h("button", { testid: `source-${source}`, value: source, onclick: () => (this.setSource(source), this.draw()) }, source === "log" ? "Log" : "Wire"));
		this.list = new WindowList({ label: "Events", row: 30, testid: "events", draw: drawRow, onChoose: (row) => this.choose(row) });
		this.detail = h("div.detail", { tabindex: "0", role: "region", label: "The event", testid: "event-detail" });
		this.body = h("div.pane-split", null, this.list.element, this.detail);
		this.element.append(h("div.pane-bar", null, h("div.switch", { role: "group", label: "Source" }, this.sources), this.search, this.kind, this.count), this.body);
		this.setSource("log");
	}

	/** @param {string} source */
	setSource(source) {
		this.source = source;
		for (const button of this.sources) button.setAttribute("aria-pressed", String(button.value === source));
		const kinds = source === "log" ? LOG_KINDS : WIRE_KINDS;
		replace(this.kind, h("option", { value: "" }, "All kinds"), kinds.map((kind) => h("option", { value: kind }, kind)));
		this.rows = [];
		this.shown = undefined;
	}

	reset() {
		this.rows = [];
		this.shown = undefined;
		this.list.choose(-1);
	}

	/** @param {Topic} topic */
	heard(topic) {
		if (topic === "selection") this.sync();
		else this.drawSoon();
	}

	/** @param {string} detail the id of an event */
	activate(detail) {
		this.isActive = true;
		if (detail) {
			if (this.session?.places.has(detail) && this.source === "wire") this.setSource("log");
			this.session?.select(detail);
		}
		this.session?.wantLog();
		this.draw();
		this.sync();
	}

	draw() {
		const { session } = this;
		if (!session || !this.isActive) return;
		if (this.source === "log" && !session.inspect) {
			this.count.textContent = "";
			return replace(this.body, closed("The log"));
		}
		if (this.list.element.parentNode !== this.body) replace(this.body, this.list.element, this.detail);
		this.makeRows(session);
		const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
		const kind = this.kind.value;
		const fits = (/** @type {EventRow} */ row) => (!kind || row.kind === kind) && words.every((word) => row.words.includes(word) || JSON.stringify(row.json).toLowerCase().includes(word));
		const shown = words.length === 0 && !kind ? [...this.rows] : this.rows.filter(fits);
		this.count.textContent = shown.length === this.rows.length ? `${shown.length}` : `${shown.length} of ${this.rows.length}`;
		this.list.show(shown, session.isRunning);
		this.list.choose(shown.findIndex((row) => row.id === session.selected && row.id !== ""), false);
		if (shown.length > 0 && this.shown !== undefined) return;
		const nothing = this.source === "log" ? "The log is empty. Say something in the chat." : "Nothing came since this page was opened.";
		replace(this.detail, h("p.muted.pad", null, shown.length > 0 ? "Choose an event to see all of it." : this.rows.length === 0 ? nothing : "No event fits the filter."));
	}

	/** Only what is new is made. @param {Session} session */
	makeRows(session) {
		const entries = this.source === "log" ? session.log : session.wire;
		if (this.first !== entries[0] || this.rows.length > entries.length) this.rows = [];
		this.first = entries[0];
		for (let at = this.rows.length; at < entries.length; at += 1) this.rows.push(this.source === "log" ? logRow(session, at) : wireRow(session, at));
	}

	/** @param {EventRow} row */
	choose(row) {
		this.session?.select(row.id || null);
		this.showDetail(row);
		if (row.id) this.actions.onReveal(row.id);
	}

	/** Another pane chose an event. */
	sync() {
		const selected = this.session?.selected;
		const at = selected ? this.list.items.findIndex((row) => row.id === selected) : -1;
		const row = this.list.items[at];
		if (!row || this.shown === selected) return;
		if (this.list.items[this.list.chosen]?.id !== selected) this.list.choose(at);
		this.showDetail(row);
	}

	/** @param {EventRow} row */
	showDetail(row) {
		this.shown = row.id;
		const bar = h("div.detail-bar", null, h("strong", null, row.label), h("span.muted", null, row.time), h("span.spacer"));
		if (row.inLog) {
			bar.append(
				h("button.button.small", { testid: "fork-event", onclick: () => this.actions.onFork({ eventId: row.id }) }, icon("fork"), "Fork from here"),
				h("a.button.small", { href: this.actions.link("state", row.id) }, icon("state"), "State here"));
		}
		bar.append(iconButton("copy", "Copy as JSON", () => void copy(JSON.stringify(row.json, null, 2))));
		replace(this.detail, bar, tree(row.json, { depth: 4, label: "The event as JSON" }));
		this.detail.scrollTop = 0;
	}
}

/** @param {EventRow} row */
function drawRow(row) {
	const text = row.text.slice(0, 300);
	return h("div.event-row", { title: text },
		h("span.event-at", null, String(row.at)),
		h("span", { class: `kind kind-${row.kind}` }, row.inLog ? row.kind : row.label),
		row.inLog ? h("span", { class: `event-author ${hue(row.author)}` }, row.author) : null,
		h("span.event-text", null, text),
		h("span.event-time", null, row.time));
}

/** @param {Session} session @param {number} at @returns {EventRow} */
function logRow(session, at) {
	const { index, event } = /** @type {LogEntry} */ (session.log[at]);
	const brief = logBrief(event);
	const author = event.author ?? "";
	const time = since(event.timestamp - session.log[0]?.event.timestamp);
	return { ...brief, at: index, id: event.id ?? "", author, time, label: `Event ${index}`, json: event, inLog: true, words: `${author} ${brief.kind} ${brief.text}`.toLowerCase() };
}

/** @param {Session} session @param {number} at @returns {EventRow} */
function wireRow(session, at) {
	const { event, ...entry } = /** @type {WireEntry} */ (session.wire[at]);
	const brief = wireBrief(event);
	const id = typeof event.messageId === "string" ? eventOf(event.messageId) : "";
	const time = since((entry.at - (session.wire[0]?.at ?? entry.at)) / 1000);
	return { ...brief, at, id, author: "", time, label: event.type, json: entry.id ? { id: entry.id, ...event } : event, inLog: false, words: `${event.type} ${brief.text}`.toLowerCase() };
}

/** @param {number} seconds since the first event */
function since(seconds) {
	if (!(seconds >= 60)) return Number.isFinite(seconds) ? `+${seconds.toFixed(2)} s` : "";
	const [unit, name] = seconds < 3600 ? [60, "min"] : seconds < 86_400 ? [3600, "h"] : [86_400, "d"];
	return `+${Math.floor(seconds / unit)} ${name}`;
}
