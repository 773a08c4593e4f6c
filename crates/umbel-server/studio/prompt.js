// What each model call was sent, and which part of it is new.

import { copy, h, icon, replace, words } from "./dom.js";
import { copiedTree, tree } from "./json-tree.js";
import { compare, newLines } from "./prompt-diff.js";
import { label } from "./trace.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./api.js").Step} Step */
/** @typedef {Record<string, any>} Request */

export class Prompt {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    /** @type {Session | null} */
    this.session = null;
    this.isActive = false;
    this.run = "";
    this.step = 0;
    /** @type {Map<string, Step[]>} */
    this.steps = new Map();
    /** @type {Map<string, Request>} */
    this.requests = new Map();
    this.asked = 0;
    this.unlisten = () => {};
    this.runs = h("select", { class: "field", "aria-label": "Run", onchange: () => this.pick(this.runs.value, 0) });
    this.picker = h("div", { class: "steps", role: "group", "aria-label": "Model calls", "data-testid": "prompt-steps" });
    this.body = h("div", { class: "pane-scroll pad", tabindex: "0", role: "region", "aria-label": "Prompt", "data-testid": "prompt" });
    this.element = h("div", { class: "pane prompt" }, h("div", { class: "pane-bar" }, this.runs), this.picker, this.body);
  }

  /** @param {Session} session */
  attach(session) {
    this.unlisten();
    this.session = session;
    this.run = "";
    this.step = 0;
    this.steps.clear();
    this.requests.clear();
    const ends = [session.on("runs", () => this.refresh()), session.on("selection", () => void this.followSelection())];
    this.unlisten = () => ends.forEach((end) => end());
    if (this.isActive) this.activate("");
  }

  /** @param {string} detail a run, and behind `~` a step */
  activate(detail) {
    this.isActive = true;
    const [run, step] = detail.split("~");
    if (run) [this.run, this.step] = [run, Number(step ?? 0)];
    if (!detail) void this.followSelection();
    this.refresh();
  }

  deactivate() {
    this.isActive = false;
  }

  refresh() {
    if (this.isActive) void this.load();
  }

  /** Shows the call that made the event which another pane chose. */
  async followSelection() {
    const { session } = this;
    const place = session?.selected ? session.places.get(session.selected) : undefined;
    const run = place === undefined ? undefined : session?.log[place]?.runId;
    if (!session || !run || !this.isActive) return;
    try {
      const found = (await this.stepsOf(run)).find((step) => step.messageId === session.selected);
      if (found) this.pick(run, found.step);
    } catch {
      // It stays at the call that is shown.
    }
  }

  /** @param {string} run @param {number} step */
  pick(run, step) {
    this.run = run;
    this.step = step;
    void this.load();
  }

  /** @param {string} run */
  async stepsOf(run) {
    const { session } = this;
    const known = this.steps.get(run);
    if (known || !session) return known ?? [];
    const { steps } = await this.api.steps(session.agent, session.threadId, run);
    const isOver = session.runs.some((one) => one.runId === run && one.outcome !== "running");
    if (isOver && !session.isRunning) this.steps.set(run, steps);
    return steps;
  }

  /** @param {string} run @param {number} step @returns {Promise<Request>} */
  async requestOf(run, step) {
    const { session } = this;
    const key = `${run}~${step}`;
    const known = this.requests.get(key);
    if (known || !session) return known ?? {};
    const request = await this.api.request(session.agent, session.threadId, run, step);
    this.requests.set(key, request);
    return request;
  }

  async load() {
    const { session } = this;
    if (!session) return;
    this.asked += 1;
    const asked = this.asked;
    const runs = [...new Map(session.runs.map((run) => [run.runId, run])).values()];
    if (!runs.some((run) => run.runId === this.run)) [this.run, this.step] = [runs.at(-1)?.runId ?? "", 0];
    replace(this.runs, runs.map((run, at) => h("option", { value: run.runId }, label(at + 1, run))).reverse());
    this.runs.value = this.run;
    this.runs.disabled = runs.length === 0;
    if (!this.run) {
      replace(this.picker);
      return replace(this.body, h("p", { class: "muted" }, "No model was asked yet. Say something in the chat."));
    }
    try {
      const steps = await this.stepsOf(this.run);
      if (asked !== this.asked) return;
      const step = steps.find((one) => one.step === this.step) ?? steps[0];
      this.drawSteps(steps, step);
      if (!step) return replace(this.body, h("p", { class: "muted" }, "No model was asked in this run."));
      const now = await this.requestOf(this.run, step.step);
      const before = await this.requestBefore(runs.map((run) => run.runId), steps, step);
      if (asked === this.asked) this.draw(step, now, before);
    } catch (error) {
      if (asked === this.asked) replace(this.body, h("p", { class: "muted" }, `The prompt could not be made: ${words(error)}`));
    }
  }

  /** The call of the same agent before this one, in this run or an earlier one. @param {string[]} runs @param {Step[]} steps @param {Step} step @returns {Promise<Request | null>} */
  async requestBefore(runs, steps, step) {
    const here = steps.filter((one) => one.agent === step.agent && one.step < step.step).at(-1);
    if (here) return this.requestOf(this.run, here.step);
    for (let at = runs.indexOf(this.run) - 1, left = 3; at >= 0 && left > 0; at -= 1, left -= 1) {
      const run = runs[at] ?? "";
      const found = (await this.stepsOf(run)).filter((one) => one.agent === step.agent).at(-1);
      if (found) return this.requestOf(run, found.step);
    }
    return null;
  }

  /** @param {Step[]} steps @param {Step | undefined} chosen */
  drawSteps(steps, chosen) {
    replace(this.picker, steps.map((step) =>
      h("button", { type: "button", class: "step", "aria-pressed": String(step === chosen), onclick: () => (this.pick(this.run, step.step), this.session?.select(step.messageId)) },
        h("b", null, String(step.step)), step.agent, step.toolCalls.length > 0 ? h("span", { class: "muted" }, `→ ${step.toolCalls.join(", ")}`) : null)));
  }

  /** @param {Step} step @param {Request} now @param {Request | null} before */
  draw(step, now, before) {
    const found = compare(before, now);
    const contents = now.contents ?? [];
    const fresh = contents.length - found.kept;
    const news = found.isFirst ? `The first call of ${step.agent}: all of it is new.` : `${fresh} of ${contents.length} messages ${fresh === 1 ? "is" : "are"} new since ${step.agent} was last asked${found.dropped > 0 ? `; ${found.dropped} earlier ones changed or went` : ""}.`;
    replace(this.body,
      h("div", { class: "prompt-head" }, h("p", null, h("strong", null, step.agent), " asked ", h("code", null, now.model ?? "a model")),
        h("button", { type: "button", class: "button small", onclick: () => void copy(JSON.stringify(now, null, 2), "Copied as JSON.") }, icon("copy"), "Copy as JSON")),
      h("p", { class: "muted" }, news),
      part("Instruction", found.instruction, [h("pre", { class: "prompt-text", tabindex: "0" }, newLines(before?.instruction ?? now.instruction ?? "", now.instruction ?? "").map(({ text, isNew }) => h(isNew ? "ins" : "span", null, text, "\n")))]),
      part(`Messages (${contents.length})`, false, contents.map((/** @type {any} */ content, /** @type {number} */ at) => drawContent(content, !found.isFirst && at >= found.kept))),
      part(`Tools (${(now.tools ?? []).length})`, found.tools.size > 0 || found.goneTools.length > 0, [
        ...(now.tools ?? []).map((/** @type {any} */ tool) => h("details", { class: "tool-details" }, h("summary", null, icon("tool"), h("code", null, tool.name), found.tools.has(tool.name) ? newMark() : null), h("p", null, tool.description), copiedTree(tool.parameters ?? {}, { depth: 3, label: `Parameters of ${tool.name}` }))),
        ...found.goneTools.map((name) => h("p", { class: "muted" }, `${name} is not offered any more.`))]),
      part("Config", found.config, [copiedTree({ ...now.config, ...(now.outputSchema ? { outputSchema: now.outputSchema } : {}) }, { label: "Config" })]),
      (now.leavesOut ?? []).length > 0 ? h("section", { class: "leaves-out", "data-testid": "leaves-out" }, h("h3", null, "What is not shown"),
        h("p", null, "The prompt is made from the log again. This cannot be known from it:"),
        h("ul", null, now.leavesOut.map((/** @type {string} */ one) => h("li", null, one)))) : null);
  }
}

function newMark() {
  return h("span", { class: "chip is-new" }, "new");
}

/** @param {string} title @param {boolean} isNew @param {HTMLElement[]} inside */
function part(title, isNew, inside) {
  return h("details", { class: "prompt-part", open: true }, h("summary", null, h("h3", null, title), isNew ? h("span", { class: "chip is-new" }, "changed") : null), inside);
}

/** @param {any} content @param {boolean} isNew */
function drawContent(content, isNew) {
  const parts = (content.parts ?? []).map((/** @type {any} */ one) => {
    if (typeof one.text === "string") return h("pre", { class: `prompt-text ${one.thought ? "is-thought" : ""}`, tabindex: "0" }, one.text);
    if (one.functionCall) return h("div", { class: "prompt-call" }, h("code", null, `call ${one.functionCall.name}`), tree(one.functionCall.args ?? {}, { label: "Arguments" }));
    if (one.functionResponse) return h("div", { class: "prompt-call" }, h("code", null, `result of ${one.functionResponse.name}`), tree(one.functionResponse.response ?? {}, { label: "Result" }));
    return tree(one);
  });
  return h("article", { class: `prompt-message ${isNew ? "is-new" : ""}` }, h("header", null, h("span", { class: "chip" }, content.role ?? "no role"), isNew ? newMark() : null), parts);
}
