// The waterfall of a run: what took how long, and what it cost.

import { copiedTree } from "./json-tree.js";
import { duration, h, icon, onFrame, replace, words } from "./dom.js";
import { WindowList } from "./window-list.js";

/** @typedef {import("./session.js").Session} Session */
/**
 * @typedef {{
 *   id: string, parent: string | null, kind: string, name: string, start: number, end: number | null,
 *   usage?: { input?: number, output?: number, cached?: number, thoughts?: number },
 *   cost?: { amount: number, currency: string }, error?: string, attributes?: Record<string, any>,
 * }} Span
 * @typedef {{ threadId: string, runId: string, source: "recorded" | "log", startedAt: number, spans: Span[] }} Trace
 * @typedef {{ span: Span, depth: number }} Row
 */

const ROW = 28;
/** How often a run that is under way is looked at. */
const REFRESH = 700;

/** Spans in the order of a tree, with their depth. What hangs on a hidden handler is moved up. @param {Span[]} spans @param {boolean} handlers @returns {Row[]} */
export function rows(spans, handlers) {
  /** @type {Map<string | null, Span[]>} */
  const below = new Map();
  const ids = new Set(spans.map((span) => span.id));
  for (const span of spans) {
    const parent = span.parent !== null && ids.has(span.parent) ? span.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  /** @type {Row[]} */
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
  for (const span of spans) {
    if (span.kind !== "model") continue;
    sum.input += span.usage?.input ?? 0;
    sum.output += span.usage?.output ?? 0;
    sum.cost += span.cost?.amount ?? 0;
    sum.currency = span.cost?.currency ?? sum.currency;
  }
  return sum;
}

export class TracePane {
  /** @param {import("./api.js").Api} api @param {import("./inspector.js").InspectorActions} actions */
  constructor(api, actions) {
    this.api = api;
    this.actions = actions;
    /** @type {Session | null} */
    this.session = null;
    this.isActive = false;
    this.run = "";
    /** @type {Trace | null} */
    this.trace = null;
    this.chosen = "";
    this.asked = 0;
    this.unlisten = () => {};
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.picker = h("select", { class: "field", "aria-label": "Run", "data-testid": "trace-run", onchange: () => this.pick(this.picker.value) });
    this.handlers = h("input", { type: "checkbox", checked: localStorage.getItem("umbel-studio-handlers") !== "off", onchange: () => (localStorage.setItem("umbel-studio-handlers", this.handlers.checked ? "on" : "off"), this.draw()) });
    this.summary = h("p", { class: "trace-summary muted", role: "status" });
    this.scale = h("div", { class: "trace-scale", "aria-hidden": "true" });
    this.list = new WindowList({ label: "Spans", row: ROW, testid: "trace", draw: (/** @type {Row} */ row) => this.drawRow(row), onChoose: (row) => this.choose(row.span) });
    this.detail = h("div", { class: "detail", tabindex: "0", role: "region", "aria-label": "The span", "data-testid": "span-detail" });
    this.element = h("div", { class: "pane trace" },
      h("div", { class: "pane-bar" }, this.picker, h("label", { class: "field-check" }, this.handlers, "Handlers")),
      this.summary, this.scale, h("div", { class: "pane-split" }, this.list.element, this.detail));
    this.drawSoon = onFrame(() => this.draw());
  }

  /** @param {Session} session */
  attach(session) {
    this.unlisten();
    clearTimeout(this.timer);
    this.timer = undefined;
    this.session = session;
    this.run = "";
    this.trace = null;
    this.chosen = "";
    const ends = [
      session.on("runs", () => this.refresh()),
      session.on("ended", () => this.refresh()),
      session.on("wire", () => this.refreshSoon()),
      session.on("selection", () => this.followSelection()),
    ];
    this.unlisten = () => ends.forEach((end) => end());
    if (this.isActive) this.activate("");
  }

  /** @param {string} detail a run */
  activate(detail) {
    this.isActive = true;
    if (detail) this.run = detail;
    else this.followSelection();
    this.refresh();
  }

  deactivate() {
    this.isActive = false;
  }

  /** Shows the run of the event that another pane chose. */
  followSelection() {
    const { session } = this;
    const place = session?.selected ? session.places.get(session.selected) : undefined;
    const run = place === undefined ? undefined : session?.log[place]?.runId;
    if (run && run !== this.run) {
      this.run = run;
      this.refresh();
    }
    const id = session?.selected;
    const span = id ? this.trace?.spans.find((one) => one.attributes?.eventId === id || one.attributes?.messageId === id) : undefined;
    if (span) this.choose(span);
  }

  /** @param {string} run */
  pick(run) {
    this.run = run;
    this.actions.onPane("trace", run);
    this.refresh();
  }

  refreshSoon() {
    if (!this.isActive || this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.refresh();
    }, REFRESH);
  }

  refresh() {
    if (this.isActive) void this.load();
  }

  async load() {
    const { session } = this;
    if (!session) return;
    const runs = session.runs.map((run) => run.runId);
    const live = session.isRunning ? session.talk.run?.runId : undefined;
    if (live && !runs.includes(live)) runs.push(live);
    const names = new Set(runs);
    // A new run is shown at once, unless somebody looks at an older one.
    if (!names.has(this.run) || (live && this.run === runs.at(-2))) this.run = live ?? runs.at(-1) ?? "";
    const outcomes = new Map(session.runs.map((run) => [run.runId, run]));
    replace(this.picker, [...names].reverse().map((run, at) => h("option", { value: run }, label(names.size - at, outcomes.get(run)))));
    this.picker.value = this.run;
    this.picker.disabled = names.size === 0;
    if (!this.run) {
      this.trace = null;
      return this.draw();
    }
    this.asked += 1;
    const asked = this.asked;
    try {
      const trace = await this.api.trace(session.agent, session.threadId, this.run);
      if (asked !== this.asked) return;
      this.trace = trace;
      this.draw();
      if (trace.spans.some((span) => span.end === null) && session.isRunning) this.refreshSoon();
    } catch (error) {
      if (asked !== this.asked || session.isRunning) return;
      this.trace = null;
      this.draw();
      this.summary.textContent = `The trace could not be read: ${words(error)}`;
    }
  }

  draw() {
    const { trace } = this;
    const shown = trace ? rows(trace.spans, this.handlers.checked) : [];
    const now = Date.now() - (trace?.startedAt ?? 0) * 1000;
    this.length = Math.max(1, ...(trace?.spans ?? []).map((span) => span.end ?? Math.max(span.start, Math.min(now, span.start + 600_000))));
    this.now = now;
    const sum = total(trace?.spans ?? []);
    const cost = sum.currency ? ` · ${money(sum.cost, sum.currency)}` : "";
    this.summary.textContent = trace ? `${duration(this.length)} · ${sum.input} tokens in, ${sum.output} out${cost}${trace.source === "log" ? " · times from the log: spans are not exact" : ""}` : "No run yet.";
    replace(this.scale, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", null, duration((this.length ?? 1) * part))));
    this.list.show(shown);
    const at = shown.findIndex((row) => row.span.id === this.chosen);
    this.list.choose(at, false);
    const span = shown[at]?.span;
    if (span) this.showDetail(span);
    else replace(this.detail, h("p", { class: "muted pad" }, shown.length > 0 ? "Choose a span to see what is known of it." : "Say something in the chat, and the run is drawn here."));
  }

  /** @param {Row} row */
  drawRow({ span, depth }) {
    const bar = h("span", { class: `bar bar-${span.kind} ${span.error ? "has-error" : ""} ${span.end === null ? "is-open" : ""}` });
    const length = this.length ?? 1;
    const end = span.end ?? length;
    bar.style.left = `${(100 * span.start) / length}%`;
    bar.style.width = `${Math.max(0.4, (100 * (end - span.start)) / length)}%`;
    const name = h("span", { class: "span-name" }, icon(KINDS[span.kind] ?? "right"), h("span", null, span.name));
    name.style.paddingLeft = `${8 + Math.min(depth, 8) * 12}px`;
    const took = span.end === null ? "under way" : duration(end - span.start);
    const tokens = span.usage ? `${(span.usage.input ?? 0) + (span.usage.output ?? 0)} tok` : "";
    return h("div", { class: `span-row ${span.error ? "has-error" : ""}`, "aria-label": `${span.kind} ${span.name}, ${took}${span.error ? ", failed" : ""}`, "data-kind": span.kind },
      name, h("span", { class: "span-lane" }, bar), h("span", { class: "span-time" }, tokens ? h("i", null, tokens) : null, took));
  }

  /** @param {Span} span */
  choose(span) {
    this.chosen = span.id;
    const at = this.list.items.findIndex((row) => row.span.id === span.id);
    if (at >= 0 && at !== this.list.chosen) this.list.choose(at);
    this.showDetail(span);
    const event = span.attributes?.eventId ?? span.attributes?.messageId;
    if (event) this.session?.select(event);
  }

  /** @param {Span} span */
  showDetail(span) {
    const step = span.attributes?.step;
    /** @type {[string, string][]} */
    const facts = [["Begins", `after ${duration(span.start)}`], ["Takes", span.end === null ? "still under way" : duration(span.end - span.start)]];
    if (span.usage) facts.push(["Tokens", Object.entries(span.usage).map(([name, count]) => `${count} ${name}`).join(", ")]);
    if (span.cost) facts.push(["Cost", money(span.cost.amount, span.cost.currency)]);
    replace(this.detail,
      h("div", { class: "detail-bar" }, h("span", { class: `kind kind-${span.kind}` }, span.kind), h("strong", null, span.name), h("span", { class: "spacer" }),
        step !== undefined && this.trace ? h("a", { class: "button small", href: this.actions.link("prompt", `${this.trace.runId}~${step}`) }, icon("prompt"), "Its prompt") : null),
      span.error ? h("p", { class: "span-error" }, icon("warning"), span.error) : null,
      h("dl", { class: "facts" }, facts.map(([name, fact]) => [h("dt", null, name), h("dd", null, fact)])),
      span.attributes && Object.keys(span.attributes).length > 0 ? copiedTree(span.attributes, { label: "Attributes" }) : null);
  }
}

/** @type {Record<string, string>} */
const KINDS = { run: "right", agent: "agent", model: "thought", tool: "tool", handler: "fork" };

/** @param {number} number @param {import("./api.js").RunInfo | undefined} run */
export function label(number, run) {
  if (!run) return `Run ${number} · running`;
  return `Run ${number} · ${run.outcome} · ${new Date(run.startedAt * 1000).toLocaleTimeString()}`;
}

/** @param {number} amount @param {string} currency */
function money(amount, currency) {
  return `${amount < 0.01 ? amount.toPrecision(2) : amount.toFixed(2)} ${currency}`;
}
