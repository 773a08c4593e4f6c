// The agents as a drawing: who is below whom, who may hand over to whom, and who is at work now.

import { h, hue, onFrame, replace, svg, words } from "./dom.js";
import { unanswered } from "./fold.js";
import { HEAD, LINE, layout, path } from "./graph-layout.js";
import { Pane } from "./pane.js";
import { toolDetails } from "./prompt.js";

/** @type {Record<string, string>} */
const KINDS = { llm: "model", sequential: "one after the other", parallel: "side by side", loop: "in a loop", other: "own code" };
const PAD = 24;

export class GraphPane extends Pane {
	/** @param {Api} api */
	constructor(api) {
		super(h("div.pane"), ["talk", "ended"]);
		this.api = api;
		this.root = "";
		this.asked = 0;
		/** What is drawn. */
		this.drawn = "";
		/** @type {AgentNode[]} */
		this.agents = [];
		this.chosen = "";
		/** @type {Map<string, SVGGElement>} */
		this.nodes = new Map();
		this.canvas = h("div.graph-canvas", { tabindex: "0", role: "group", label: "Agents", testid: "graph" });
		this.detail = h("div.detail", { tabindex: "0", role: "region", label: "The agent", testid: "agent-detail" });
		this.element.append(h("div.pane-split", null, this.canvas, this.detail));
		this.heard = onFrame(() => this.mark());
	}

	/** @param {string} detail an agent */
	activate(detail) {
		this.isActive = true;
		this.chosen = detail || this.chosen;
		void this.load();
	}

	async load() {
		const agent = this.session?.agent;
		if (!agent) return;
		this.asked += 1;
		const asked = this.asked;
		try {
			const graph = await this.api.graph(agent);
			// Somebody may have chosen another agent meanwhile.
			if (asked !== this.asked) return;
			const drawn = JSON.stringify(graph);
			[this.root, this.agents] = [graph.root, /** @type {AgentNode[]} */ (graph.agents)];
			if (drawn !== this.drawn) this.draw();
			this.drawn = drawn;
		} catch (error) {
			if (asked !== this.asked) return;
			this.drawn = "";
			return replace(this.canvas, h("p.muted.pad", null, `The agents could not be read: ${words(error)}`));
		}
		this.choose(this.agents.some((one) => one.name === this.chosen) ? this.chosen : this.root);
	}

	draw() {
		const { boxes, edges, width, height } = layout(this.agents);
		this.nodes.clear();
		const tip = "url(#arrow)";
		const lines = edges.map((edge) => svg("path", { class: `edge edge-${edge.kind}`, d: path(edge), "marker-end": edge.arrowAt ? tip : null, "marker-start": edge.arrowBack ? tip : null }));
		const arrow = svg("defs", null, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto-start-reverse" }, svg("path.arrow", { d: "M0 0 8 4 0 8z" })));
		const [wide, high] = [width + 2 * PAD, height + 2 * PAD];
		const drawing = svg("svg.graph-svg", { width: wide, height: high, viewBox: `${-PAD} ${-PAD} ${wide} ${high}` }, arrow, lines, boxes.map((box) => this.node(box)));
		drawing.style.minWidth = `${wide * 0.8}px`;
		replace(this.canvas, drawing, edges.some((edge) => edge.arrowAt || edge.arrowBack) ? h("p.muted.legend", null, "Arrows: may hand over to.") : null);
	}

	/** @param {Box} box */
	node({ agent, x, y, width, height, tools }) {
		const pick = () => this.choose(agent.name);
		const kind = KINDS[agent.kind] ?? agent.kind;
		const node = svg("g", {
			class: `node ${hue(agent.name)}`, transform: `translate(${x} ${y})`, tabindex: "0", role: "button", "data-agent": agent.name, onclick: pick,
			onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick()),
		},
			svg("rect.node-box", { width, height, rx: 9 }),
			svg("rect.node-side", { width: 4, height: height - 16, y: 8, rx: 2 }),
			svg("text.node-name", { x: 14, y: 19 }, short(agent.name, 18)),
			svg("text.node-kind", { x: 14, y: 35 }, short(agent.model ? `${kind} · ${agent.model}` : kind, 24)),
			svg("circle.node-dot", { cx: width - 14, cy: 15, r: 4 }),
			tools.map((tool, at) => svg("text.node-tool", { x: 14, y: HEAD + 12 + at * LINE, "data-tool": tool }, short(tool, 19))));
		this.nodes.set(agent.name, node);
		return node;
	}

	/** Shows who is at work, and with which tools. */
	mark() {
		const { session } = this;
		if (!session || !this.isActive) return;
		const { isRunning, isWaiting, talk } = session;
		const active = new Set(isRunning ? [...talk.subagents.values()].filter((one) => one.status === "running").map((one) => one.name) : []);
		if (isRunning && active.size === 0) active.add(this.root);
		const calls = new Set(unanswered(talk.messages.slice(-20)).map((call) => call.function.name));
		for (const [name, node] of this.nodes) {
			node.classList.toggle("is-active", active.has(name));
			node.classList.toggle("is-chosen", name === this.chosen);
			node.setAttribute("aria-pressed", String(name === this.chosen));
			for (const tool of node.querySelectorAll(".node-tool")) {
				const isOpen = calls.has(tool.getAttribute("data-tool") ?? "");
				tool.classList.toggle("is-active", isOpen && active.has(name));
				tool.classList.toggle("waits", isOpen && isWaiting);
			}
		}
	}

	/** @param {string} name */
	choose(name) {
		const agent = this.agents.find((one) => one.name === name);
		if (!agent) return;
		this.chosen = name;
		this.mark();
		const { instruction = [], tools = [], transfersTo = [], hooks = [], notes = [] } = /** @type {Record<string, any[]>} */ (/** @type {unknown} */ (agent));
		const chips = (/** @type {string[]} */ names) => names.map((one) => h("span.chip", null, one));
		replace(this.detail,
			h("div.detail-bar", null, h("span", { class: `avatar ${hue(name)}`, "aria-hidden": "true" }, name.slice(0, 1).toUpperCase()), h("strong", null, name), chips([KINDS[agent.kind] ?? agent.kind]), agent.model ? h("code", null, agent.model) : null),
			agent.description ? h("p.pad-line", null, agent.description) : null,
			section("Instruction", instruction.map((one) => h("figure.instruction", null, h("figcaption", null, one.source), h("pre", { tabindex: "0" }, one.text)))),
			section("Tools", tools.map((tool) => toolDetails(tool, [chips([...(tool.needsConfirmation ? ["asks first"] : []), ...(tool.longRunning ? ["answers later"] : [])]), h("span.muted", null, tool.source)]))),
			section("May hand over to", chips(transfersTo)),
			section("Hooks, outermost first", hooks.map((one) => h("p.hook", null, h("code", null, one.hook), chips(one.handlers)))),
			section("Notes", notes.map((note) => h("p.muted", null, note))));
	}
}

/** @param {string} title @param {HTMLElement[]} inside */
function section(title, inside) {
	return inside.length > 0 ? h("section.facts-section", null, h("h3", null, title), inside) : null;
}

/** @param {string} text @param {number} length */
function short(text, length) {
	return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
