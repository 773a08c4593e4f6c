// The agents as a drawing: who is below whom, who may hand over to whom, and who is at work now.

import { h, hue, icon, onFrame, replace, svg, words } from "./dom.js";
import { HEAD, LINE, layout, path } from "./graph-layout.js";
import { unanswered } from "./fold.js";
import { copiedTree } from "./json-tree.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./graph-layout.js").AgentNode} AgentNode */

/** @type {Record<string, string>} */
const KINDS = { llm: "model", sequential: "one after the other", parallel: "side by side", loop: "in a loop", other: "own code" };
const PAD = 24;

export class GraphPane {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    /** @type {Session | null} */
    this.session = null;
    this.isActive = false;
    this.path = "";
    this.root = "";
    /** @type {AgentNode[]} */
    this.agents = [];
    this.chosen = "";
    /** @type {Map<string, SVGGElement>} */
    this.nodes = new Map();
    this.unlisten = () => {};
    this.canvas = h("div", { class: "graph-canvas", tabindex: "0", role: "group", "aria-label": "Agents", "data-testid": "graph" });
    this.detail = h("div", { class: "detail", tabindex: "0", role: "region", "aria-label": "The agent", "data-testid": "agent-detail" });
    this.element = h("div", { class: "pane graph" }, h("div", { class: "pane-split" }, this.canvas, this.detail));
    this.markSoon = onFrame(() => this.mark());
  }

  /** @param {Session} session */
  attach(session) {
    this.unlisten();
    this.session = session;
    this.unlisten = session.listen(["talk", "ended"], () => this.markSoon());
    if (this.isActive) this.activate(this.chosen);
  }

  /** @param {string} detail an agent */
  activate(detail) {
    this.isActive = true;
    if (detail) this.chosen = detail;
    void this.load();
  }

  deactivate() {
    this.isActive = false;
  }

  async load() {
    const { session } = this;
    if (!session) return;
    if (session.agent.path !== this.path) {
      try {
        const graph = await this.api.graph(session.agent);
        this.path = session.agent.path;
        this.root = graph.root;
        this.agents = /** @type {AgentNode[]} */ (graph.agents);
        if (!this.agents.some((agent) => agent.name === this.chosen)) this.chosen = graph.root;
        this.draw();
      } catch (error) {
        replace(this.canvas, h("p", { class: "muted pad" }, `The agents could not be read: ${words(error)}`));
        return;
      }
    }
    this.choose(this.chosen);
    this.mark();
  }

  draw() {
    const { boxes, edges, width, height } = layout(this.agents);
    this.nodes.clear();
    const lines = edges.map((edge) => svg("path", { class: `edge edge-${edge.kind}`, d: path(edge), "marker-end": edge.kind === "transfer" ? "url(#arrow)" : null }));
    const arrow = svg("defs", null, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z", class: "arrow" })));
    const nodes = boxes.map((box) => this.node(box));
    const drawing = svg("svg", { class: "graph-svg", width: width + 2 * PAD, height: height + 2 * PAD, viewBox: `${-PAD} ${-PAD} ${width + 2 * PAD} ${height + 2 * PAD}` }, arrow, lines, nodes);
    const legend = h("p", { class: "muted legend" }, "Dashed lines: may hand over to.");
    replace(this.canvas, drawing, edges.some((edge) => edge.kind === "transfer") ? legend : null);
  }

  /** @param {import("./graph-layout.js").Box} box */
  node({ agent, x, y, width, height, tools }) {
    const pick = () => this.choose(agent.name);
    const node = svg("g", {
      class: `node ${hue(agent.name)}`, transform: `translate(${x} ${y})`, tabindex: "0", role: "button", "aria-pressed": "false", "data-agent": agent.name,
      "aria-label": `${agent.name}, ${KINDS[agent.kind] ?? agent.kind}`, onclick: pick,
      onkeydown: (/** @type {KeyboardEvent} */ event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick()),
    },
      svg("rect", { class: "node-box", width, height, rx: 9 }),
      svg("rect", { class: "node-side", width: 4, height: height - 16, x: 0, y: 8, rx: 2 }),
      svg("text", { class: "node-name", x: 14, y: 19 }, short(agent.name, 20)),
      svg("text", { class: "node-kind", x: 14, y: 35 }, short(agent.model ? `${KINDS[agent.kind] ?? agent.kind} · ${agent.model}` : (KINDS[agent.kind] ?? agent.kind), 26)),
      svg("circle", { class: "node-dot", cx: width - 14, cy: 15, r: 4 }),
      tools.map((tool, at) => svg("text", { class: "node-tool", x: 14, y: HEAD + 12 + at * LINE, "data-tool": tool }, short(tool, 22))));
    this.nodes.set(agent.name, node);
    return node;
  }

  /** Shows who is at work, and with which tools. */
  mark() {
    const { session } = this;
    if (!session || !this.isActive) return;
    const { talk } = session;
    const active = new Set(session.isRunning ? [...talk.subagents.values()].filter((one) => one.status === "running").map((one) => one.name) : []);
    if (session.isRunning && active.size === 0) active.add(this.root);
    const calls = new Set(session.isRunning ? unanswered(talk.messages.slice(-20)).map((call) => call.function.name) : []);
    const waiting = new Set(session.isWaiting ? unanswered(talk.messages.slice(-20)).map((call) => call.function.name) : []);
    for (const [name, node] of this.nodes) {
      node.classList.toggle("is-active", active.has(name));
      node.classList.toggle("is-chosen", name === this.chosen);
      node.setAttribute("aria-pressed", String(name === this.chosen));
      for (const tool of node.querySelectorAll(".node-tool")) {
        const tooling = tool.getAttribute("data-tool") ?? "";
        tool.classList.toggle("is-active", active.has(name) && calls.has(tooling));
        tool.classList.toggle("is-waiting", waiting.has(tooling));
      }
    }
  }

  /** @param {string} name */
  choose(name) {
    const agent = this.agents.find((one) => one.name === name);
    if (!agent) return;
    this.chosen = name;
    this.mark();
    const list = (/** @type {any} */ value) => (Array.isArray(value) ? value : []);
    replace(this.detail,
      h("div", { class: "detail-bar" }, h("span", { class: `avatar ${hue(name)}`, "aria-hidden": "true" }, name.slice(0, 1).toUpperCase()), h("strong", null, name), h("span", { class: "chip" }, KINDS[agent.kind] ?? agent.kind), agent.model ? h("code", null, agent.model) : null),
      agent.description ? h("p", { class: "pad-line" }, agent.description) : null,
      section("Instruction", list(agent.instruction).map((one) => h("figure", { class: "instruction" }, h("figcaption", null, one.source), h("pre", { tabindex: "0" }, one.text)))),
      section("Tools", list(agent.tools).map(toolDetails)),
      section("May hand over to", list(agent.transfersTo).length > 0 ? [h("p", null, list(agent.transfersTo).map((one) => h("span", { class: "chip" }, one)))] : []),
      section("Hooks, outermost first", list(agent.hooks).map((one) => h("p", { class: "hook" }, h("code", null, one.hook), list(one.handlers).map((handler) => h("span", { class: "chip" }, handler))))),
      section("Notes", list(agent.notes).map((note) => h("p", { class: "muted" }, note))));
  }
}

/** @param {string} title @param {HTMLElement[]} inside */
function section(title, inside) {
  return inside.length > 0 ? h("section", { class: "facts-section" }, h("h3", null, title), inside) : null;
}

/** @param {any} tool */
function toolDetails(tool) {
  return h("details", { class: "tool-details" },
    h("summary", null, icon("tool"), h("code", null, tool.name),
      tool.needsConfirmation ? h("span", { class: "chip" }, "asks first") : null,
      tool.longRunning ? h("span", { class: "chip" }, "answers later") : null,
      h("span", { class: "muted" }, tool.source ?? "")),
    h("p", null, tool.description),
    tool.parameters ? copiedTree(tool.parameters, { depth: 3, label: `Parameters of ${tool.name}` }) : null);
}

/** @param {string} text @param {number} length */
function short(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
