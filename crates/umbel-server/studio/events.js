// The events of a session: what its log has, and what came over the wire while this page looked.

import { copy, h, hue, icon, iconButton, onFrame, replace } from "./dom.js";
import { eventOf } from "./fold.js";
import { closed } from "./inspector.js";
import { tree } from "./json-tree.js";
import { LOG_KINDS, WIRE_KINDS, logBrief, wireBrief } from "./log-kinds.js";
import { WindowList } from "./window-list.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {{ at: number, id: string, author: string, kind: string, text: string, time: string, label: string, json: unknown, inLog: boolean, words: string }} Row */

const ROW = 30;

export class Events {
  /** @param {import("./inspector.js").InspectorActions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Session | null} */
    this.session = null;
    /** @type {"log" | "wire"} */
    this.source = "log";
    this.isActive = false;
    /** Rows are made once. @type {Row[]} */
    this.rows = [];
    this.made = { source: "", count: 0, first: /** @type {unknown} */ (null) };
    this.unlisten = () => {};
    this.search = h("input", { type: "search", class: "field", placeholder: "Filter", "aria-label": "Filter events", "data-testid": "event-filter", oninput: () => this.drawSoon() });
    this.kind = h("select", { class: "field", "aria-label": "Kind of event", "data-testid": "event-kind", onchange: () => this.draw() });
    this.count = h("span", { class: "muted count", role: "status" });
    this.logButton = this.switchTo("log", "Log");
    this.wireButton = this.switchTo("wire", "Wire");
    this.list = new WindowList({ label: "Events", row: ROW, testid: "events", draw: drawRow, onChoose: (row) => this.choose(row) });
    this.detail = h("div", { class: "detail", tabindex: "0", role: "region", "aria-label": "The event", "data-testid": "event-detail" });
    this.body = h("div", { class: "pane-split" }, this.list.element, this.detail);
    this.element = h("div", { class: "pane events" },
      h("div", { class: "pane-bar" }, h("div", { class: "switch", role: "group", "aria-label": "Source" }, this.logButton, this.wireButton), this.search, this.kind, this.count),
      this.body);
    this.drawSoon = onFrame(() => this.draw());
    this.setSource("log");
  }

  /** @param {"log" | "wire"} source @param {string} label */
  switchTo(source, label) {
    return h("button", { type: "button", "aria-pressed": "false", "data-testid": `source-${source}`, onclick: () => (this.setSource(source), this.draw()) }, label);
  }

  /** @param {"log" | "wire"} source */
  setSource(source) {
    this.source = source;
    this.logButton.setAttribute("aria-pressed", String(source === "log"));
    this.wireButton.setAttribute("aria-pressed", String(source === "wire"));
    const kinds = source === "log" ? LOG_KINDS : WIRE_KINDS;
    replace(this.kind, h("option", { value: "" }, "All kinds"), kinds.map((kind) => h("option", { value: kind }, kind)));
  }

  /** @param {Session} session */
  attach(session) {
    this.unlisten();
    this.session = session;
    this.rows = [];
    this.made = { source: "", count: 0, first: null };
    replace(this.detail);
    this.list.choose(-1);
    const ends = [session.listen(["log", "wire"], () => this.drawSoon()), session.on("selection", () => this.sync())];
    this.unlisten = () => ends.forEach((end) => end());
    if (this.isActive) this.activate("");
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

  deactivate() {
    this.isActive = false;
  }

  draw() {
    const { session } = this;
    if (!session || !this.isActive) return;
    if (this.source === "log" && !session.inspect) {
      replace(this.body, closed("The log"));
      this.count.textContent = "";
      return;
    }
    if (this.list.element.parentNode !== this.body) replace(this.body, this.list.element, this.detail);
    this.makeRows(session);
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = this.kind.value;
    const shown = words.length === 0 && !kind ? this.rows : this.rows.filter((row) => (!kind || row.kind === kind) && words.every((word) => row.words.includes(word) || full(row).includes(word)));
    this.count.textContent = shown.length === this.rows.length ? `${shown.length}` : `${shown.length} of ${this.rows.length}`;
    this.list.show([...shown], session.isRunning);
    this.list.choose(this.list.items.findIndex((row) => row.id === session.selected && row.id !== ""), false);
    if (shown.length === 0) replace(this.detail, h("p", { class: "muted pad" }, this.rows.length === 0 ? this.nothing() : "No event fits the filter."));
    else if (this.detail.dataset.shown === undefined) replace(this.detail, h("p", { class: "muted pad" }, "Choose an event to see all of it."));
  }

  nothing() {
    return this.source === "log" ? "The log is empty. Say something in the chat." : "Nothing came since this page was opened.";
  }

  /** Only what is new is made. @param {Session} session */
  makeRows(session) {
    const entries = this.source === "log" ? session.log : session.wire;
    const { made } = this;
    if (made.source !== this.source || made.first !== entries[0] || made.count > entries.length) this.rows = [];
    const begun = entries[0];
    for (let at = this.rows.length; at < entries.length; at += 1) {
      this.rows.push(this.source === "log" ? logRow(/** @type {any} */ (entries[at]), session) : wireRow(session, at));
    }
    this.made = { source: this.source, count: entries.length, first: begun };
  }

  /** @param {Row} row */
  choose(row) {
    this.session?.select(row.id || null);
    this.showDetail(row);
    if (row.id) this.actions.onReveal(row.id);
  }

  /** Another pane chose an event. */
  sync() {
    const { session } = this;
    if (!session || !this.isActive) return;
    const at = this.list.items.findIndex((row) => row.id !== "" && row.id === session.selected);
    const chosen = this.list.items[this.list.chosen];
    if (at < 0 || chosen?.id === session.selected) {
      if (at >= 0 && this.detail.dataset.shown !== session.selected && chosen) this.showDetail(chosen);
      return;
    }
    this.list.choose(at);
    const row = this.list.items[at];
    if (row) this.showDetail(row);
  }

  /** @param {Row} row */
  showDetail(row) {
    this.detail.dataset.shown = row.id;
    replace(this.detail,
      h("div", { class: "detail-bar" },
        h("strong", null, row.label), h("span", { class: "muted" }, row.time), h("span", { class: "spacer" }),
        row.inLog ? h("button", { type: "button", class: "button small", "data-testid": "fork-event", onclick: () => this.actions.onFork({ eventId: row.id }) }, icon("fork"), "Fork from here") : null,
        row.inLog ? h("a", { class: "button small", href: this.actions.link("state", row.id) }, icon("state"), "State here") : null,
        iconButton("copy", "Copy as JSON", () => void copy(JSON.stringify(row.json, null, 2), "Copied as JSON."))),
      tree(row.json, { depth: 4, label: "The event as JSON" }));
    this.detail.scrollTop = 0;
  }
}

/** @param {Row} row */
function full(row) {
  return JSON.stringify(row.json).toLowerCase();
}

/** @param {Row} row */
function drawRow(row) {
  return h("div", { class: "event-row", title: row.text.slice(0, 300) },
    h("span", { class: "event-at" }, String(row.at)),
    h("span", { class: `kind kind-${row.kind}` }, row.inLog ? row.kind : row.label),
    row.inLog ? h("span", { class: `event-author ${hue(row.author)}` }, row.author) : null,
    h("span", { class: "event-text" }, row.text.slice(0, 300)),
    h("span", { class: "event-time" }, row.time));
}

/** @param {import("./api.js").LogEntry} entry @param {Session} session @returns {Row} */
function logRow(entry, session) {
  const { event } = entry;
  const { kind, text } = logBrief(event);
  const author = event.author ?? "";
  const begun = session.log[0]?.event.timestamp ?? event.timestamp;
  return { at: entry.index, id: event.id ?? "", author, kind, text, time: since(event.timestamp - begun), label: `Event ${entry.index}`, json: event, inLog: true, words: `${author} ${kind} ${text}`.toLowerCase() };
}

/** @param {Session} session @param {number} at @returns {Row} */
function wireRow(session, at) {
  const entry = /** @type {import("./session.js").WireEntry} */ (session.wire[at]);
  const { kind, text } = wireBrief(entry.event);
  const begun = session.wire[0]?.at ?? entry.at;
  const id = typeof entry.event.messageId === "string" ? eventOf(entry.event.messageId) : "";
  return { at, id, author: "", kind, text, time: since((entry.at - begun) / 1000), label: entry.event.type, json: entry.id ? { id: entry.id, ...entry.event } : entry.event, inLog: false, words: `${entry.event.type} ${text}`.toLowerCase() };
}

/** @param {number} seconds since the first event */
function since(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return `+${seconds.toFixed(2)} s`;
  if (seconds < 3600) return `+${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `+${Math.floor(seconds / 3600)} h` : `+${Math.floor(seconds / 86_400)} d`;
}
