// Where agents stand in the drawing: a tree from left to right. No page is needed for it.

const WIDTH = 150;
export const HEAD = 44;
export const LINE = 17;
const GAP_X = 44;
const GAP_Y = 18;
/** More tools than that are counted, not named. */
const NAMED = 6;

/** @param {AgentNode[]} agents parents before children @returns {{ boxes: Box[], edges: Edge[], width: number, height: number }} */
export function layout(agents) {
	/** @type {Map<string | null, AgentNode[]>} */
	const below = new Map();
	const names = new Set(agents.map((agent) => agent.name));
	for (const agent of agents) {
		const parent = agent.parent !== null && names.has(agent.parent) ? agent.parent : null;
		below.set(parent, [...(below.get(parent) ?? []), agent]);
	}
	/** @type {Map<string, Box>} */
	const boxes = new Map();
	/** @type {Edge[]} */
	const edges = [];
	let bottom = 0;
	let right = 0;
	/** Puts an agent beside the middle of those below it. @type {(agent: AgentNode, depth: number) => Box} */
	const place = (agent, depth) => {
		const tools = toolLines(agent);
		const height = HEAD + tools.length * LINE + (tools.length > 0 ? 8 : 0);
		const top = bottom;
		const children = (below.get(agent.name) ?? []).map((child) => place(child, depth + 1));
		const first = children[0];
		const last = children.at(-1);
		const middle = first && last ? (first.y + last.y + last.height) / 2 : top + height / 2;
		const y = Math.max(top, middle - height / 2);
		const box = { agent, x: depth * (WIDTH + GAP_X), y, width: WIDTH, height, tools };
		bottom = Math.max(bottom, y + height + GAP_Y);
		right = Math.max(right, box.x + WIDTH);
		boxes.set(agent.name, box);
		for (const child of children) edges.push({ from: box, to: child, kind: "child" });
		return box;
	};
	for (const agent of below.get(null) ?? []) place(agent, 0);
	for (const from of boxes.values()) {
		for (const name of from.agent.transfersTo ?? []) {
			const to = boxes.get(name);
			// Where a line of the tree is, it gets the arrow.
			const line = edges.find((edge) => edge.kind === "child" && ((edge.from === from && edge.to === to) || (edge.from === to && edge.to === from)));
			if (line) line[line.from === from ? "arrowAt" : "arrowBack"] = true;
			else if (to && to !== from) edges.push({ from, to, kind: "transfer", arrowAt: true });
		}
	}
	return { boxes: [...boxes.values()], edges, width: right, height: Math.max(0, bottom - GAP_Y) };
}

/** @param {AgentNode} agent */
function toolLines(agent) {
	const names = (agent.tools ?? []).map((tool) => tool.name);
	return names.length > NAMED ? [...names.slice(0, NAMED - 1), `and ${names.length - NAMED + 1} more`] : names;
}

/** The line of an edge: a bow where a hand-over is not along the tree. @param {Edge} edge */
export function path({ from, to, kind }) {
	const [y1, y2] = [from.y + HEAD / 2, to.y + HEAD / 2];
	const x1 = from.x + from.width;
	if (kind === "child") return `M${x1} ${y1}C${(x1 + to.x) / 2} ${y1} ${(x1 + to.x) / 2} ${y2} ${to.x} ${y2}`;
	const x2 = to.x + to.width;
	const out = Math.max(x1, x2) + 30;
	return `M${x1} ${y1 + 6}C${out} ${y1 + 6} ${out} ${y2 - 6} ${x2} ${y2 - 6}`;
}
