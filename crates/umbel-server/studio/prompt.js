// What each model call was sent, and which part of it is new.

import { copy, h, icon, replace, words } from "./dom.js";
import { copiedTree, tree } from "./json-tree.js";
import { Pane } from "./pane.js";
import { compare, newLines } from "./prompt-diff.js";
import { offerRuns } from "./trace.js";

/** In how many earlier runs the last call of an agent is looked for. */
const LOOKS_BACK = 3;

export class Prompt extends Pane {
	/** @param {Api} api */
	constructor(api) {
		super(h("div.pane"), ["runs", "selection"]);
		this.api = api;
		this.run = "";
		this.step = 0;
		/** What does not change any more, by its address. @type {Map<string, any>} */
		this.known = new Map();
		this.asked = 0;
		this.runs = h("select.field", { label: "Run", onchange: () => this.pick(this.runs.value, 0) });
		this.picker = h("div.steps", { role: "group", label: "Model calls", testid: "prompt-steps" });
		this.body = h("div.pane-scroll.pad", { tabindex: "0", role: "region", label: "Prompt", testid: "prompt" });
		this.element.append(h("div.pane-bar", null, this.runs), this.picker, this.body);
	}

	reset() {
		[this.run, this.step] = ["", 0];
		// What is on its way goes where it was asked for.
		this.known = new Map();
	}

	/** @param {Topic} topic */
	heard(topic) {
		if (topic === "selection") void this.followSelection();
		else void this.load();
	}

	/** @param {string} detail a run, and behind `~` a step */
	activate(detail) {
		this.isActive = true;
		const [run, step] = detail.split("~");
		if (run) this.pick(run, Number(step ?? 0));
		else void this.load().then(() => this.followSelection());
	}

	/** Shows the call that made the event which another pane chose. */
	async followSelection() {
		const run = this.selectedRun;
		const selected = this.session?.selected;
		if (!run) return;
		const steps = await this.stepsOf(run).catch(() => []);
		const found = steps.find((step) => step.messageId === selected);
		if (found && (run !== this.run || found.step !== this.step)) this.pick(run, found.step);
	}

	/** @param {string} run @param {number} step */
	pick(run, step) {
		[this.run, this.step] = [run, step];
		void this.load();
	}

	/** @param {string} run @returns {Promise<Step[]>} */
	async stepsOf(run) {
		const { session, known } = this;
		if (!session?.hasRun(run)) return [];
		const { steps } = known.get(run) ?? (await this.api.steps(session.agent, session.threadId, run));
		if (session.runs.some((one) => one.runId === run && one.outcome !== "running") && !session.isRunning) known.set(run, { steps });
		return steps;
	}

	/** @param {string} run @param {number} step @returns {Promise<Asked>} */
	async requestOf(run, step) {
		const { session, known } = this;
		const key = `${run}~${step}`;
		if (session && !known.has(key)) known.set(key, await this.api.request(session.agent, session.threadId, run, step));
		return known.get(key) ?? {};
	}

	async load() {
		const { session } = this;
		if (!session) return;
		this.asked += 1;
		const asked = this.asked;
		const run = offerRuns(this.runs, session, this.run);
		if (run !== this.run) [this.run, this.step] = [run, 0];
		try {
			const steps = await this.stepsOf(run);
			if (asked !== this.asked) return;
			const step = steps.find((one) => one.step === this.step) ?? steps[0];
			this.drawSteps(steps, step);
			if (!step) return replace(this.body, h("p.muted", null, "No model was asked yet. Say something in the chat."));
			const now = await this.requestOf(run, step.step);
			const before = await this.requestBefore(steps, step);
			if (asked === this.asked) this.draw(step, now, before);
		} catch (error) {
			if (asked === this.asked) replace(this.body, h("p.muted", null, `The prompt could not be made: ${words(error)}`));
		}
	}

	/** The call of the same agent before this one, in this run or an earlier one. @param {Step[]} steps @param {Step} step @returns {Promise<Asked | null>} */
	async requestBefore(steps, step) {
		const last = (/** @type {Step[]} */ list) => list.filter((one) => one.agent === step.agent).at(-1);
		const here = last(steps.filter((one) => one.step < step.step));
		if (here) return this.requestOf(this.run, here.step);
		const runs = [...new Set(this.session?.runs.map((run) => run.runId))];
		for (const run of runs.slice(0, runs.indexOf(this.run)).reverse().slice(0, LOOKS_BACK)) {
			const found = last(await this.stepsOf(run));
			if (found) return this.requestOf(run, found.step);
		}
		return null;
	}

	/** @param {Step[]} steps @param {Step | undefined} chosen */
	drawSteps(steps, chosen) {
		const show = (/** @type {Step} */ step) => (this.pick(this.run, step.step), this.session?.select(step.messageId));
		replace(this.picker, steps.map((step) =>
			h("button.step", { "aria-pressed": String(step === chosen), onclick: () => show(step) },
				h("b", null, String(step.step)), step.agent, step.toolCalls.length > 0 ? h("span.muted", null, `→ ${step.toolCalls.join(", ")}`) : null)));
	}

	/** @param {Step} step @param {Asked} now @param {Asked | null} before */
	draw(step, now, before) {
		const found = compare(before, now);
		const { contents = [], tools = [], leavesOut = [], instruction = "" } = now;
		const fresh = contents.length - found.kept;
		const news = found.isFirst ? `The first call of ${step.agent}: all of it is new.` : `${fresh} of ${contents.length} messages ${fresh === 1 ? "is" : "are"} new since ${step.agent} was last asked${found.dropped > 0 ? `; ${found.dropped} earlier ones changed or went` : ""}.`;
		const lines = newLines(before?.instruction ?? instruction, instruction);
		replace(this.body,
			h("div.prompt-head", null, h("p", null, h("strong", null, step.agent), " asked ", h("code", null, now.model ?? "a model")),
				h("button.button.small", { onclick: () => void copy(JSON.stringify(now, null, 2)) }, icon("copy"), "Copy as JSON")),
			h("p.muted", null, news),
			part("Instruction", found.instruction, h("pre.prompt-text", { tabindex: "0" }, lines.map(({ text, isNew }) => h(isNew ? "ins" : "span", null, text, "\n")))),
			part(`Messages (${contents.length})`, false, contents.map((/** @type {any} */ content, /** @type {number} */ at) => drawContent(content, !found.isFirst && at >= found.kept))),
			part(`Tools (${tools.length})`, found.tools.size > 0 || found.goneTools.length > 0, [
				tools.map((/** @type {any} */ tool) => toolDetails(tool, found.tools.has(tool.name) ? newMark() : null)),
				found.goneTools.map((name) => h("p.muted", null, `${name} is not offered any more.`))]),
			part("Config", found.config, copiedTree({ ...now.config, ...(now.outputSchema ? { outputSchema: now.outputSchema } : {}) }, { label: "Config" })),
			leavesOut.length > 0 ? h("section.leaves-out", { testid: "leaves-out" }, h("h3", null, "What is not shown"),
				h("p", null, "The prompt is made from the log again. This cannot be known from it:"),
				h("ul", null, leavesOut.map((/** @type {string} */ one) => h("li", null, one)))) : null);
	}
}

function newMark() {
	return h("span.chip.is-new", null, "new");
}

/** A tool that can be opened. @param {any} tool @param {Child} marks */
export function toolDetails(tool, marks) {
	return h("details.tool-details", null,
		h("summary", null, icon("tool"), h("code", null, tool.name), marks), h("p", null, tool.description),
		tool.parameters ? copiedTree(tool.parameters, { depth: 3, label: `Parameters of ${tool.name}` }) : null);
}

/** @param {string} title @param {boolean} isNew @param {Child} inside */
function part(title, isNew, inside) {
	return h("details.prompt-part", { open: true }, h("summary", null, h("h3", null, title), isNew ? h("span.chip.is-new", null, "changed") : null), inside);
}

/** @param {any} content @param {boolean} isNew */
function drawContent(content, isNew) {
	const parts = (content.parts ?? []).map((/** @type {any} */ one) => {
		const { functionCall: call, functionResponse: result } = one;
		if (typeof one.text === "string") return h("pre", { class: `prompt-text ${one.thought ? "is-thought" : ""}`, tabindex: "0" }, one.text);
		if (call) return h("div.prompt-call", null, h("code", null, `call ${call.name}`), tree(call.args ?? {}, { label: "Arguments" }));
		if (result) return h("div.prompt-call", null, h("code", null, `result of ${result.name}`), tree(result.response ?? {}, { label: "Result" }));
		return tree(one);
	});
	return h("article", { class: `prompt-message ${isNew ? "is-new" : ""}` }, h("header", null, h("span.chip", null, content.role ?? "no role"), isNew ? newMark() : null), parts);
}
