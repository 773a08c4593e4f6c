// The state as a tree: as it is now, or as one event left it, with what that event changed.

import { jsonForm } from "./approvals.js";
import { h, icon, iconButton, onFrame, replace } from "./dom.js";
import { copiedTree } from "./json-tree.js";
import { Pane } from "./pane.js";
import { changeAt, changes, diff, withRemoved } from "./state-diff.js";

export class StatePane extends Pane {
	/** @param {InspectorActions} actions */
	constructor(actions) {
		super(h("div.pane"), ["talk", "log", "selection"]);
		this.actions = actions;
		/** @type {Change[]} */
		this.changes = [];
		this.read = 0;
		/** Which change is shown; behind the last is now. */
		this.at = 0;
		this.drawn = "";
		this.slider = h("input.slider", { type: "range", min: "-1", label: "Change of the state", testid: "state-slider", oninput: () => this.move(Number(this.slider.value)) });
		this.where = h("span.state-where", { role: "status" });
		this.body = h("div.pane-scroll.pad", { testid: "state", tabindex: "0", role: "region", label: "State" });
		this.element.append(h("div.pane-bar", null,
			iconButton("left", "Previous change", () => this.move(this.at - 1)), this.slider, iconButton("right", "Next change", () => this.move(this.at + 1)),
			this.where, h("span.spacer"), h("button.button.small", { onclick: () => this.edit() }, icon("edit"), "Edit")), this.body);
		this.drawSoon = onFrame(() => this.draw());
	}

	reset() {
		[this.changes, this.read, this.at, this.drawn] = [[], 0, 0, ""];
		replace(this.body);
	}

	/** @param {Topic} topic */
	heard(topic) {
		if (topic === "selection") this.followSelection();
		else this.drawSoon();
	}

	/** @param {string} detail the id of an event */
	activate(detail) {
		this.isActive = true;
		if (detail) this.session?.select(detail);
		this.session?.wantLog();
		this.followSelection();
		this.draw();
	}

	/** Folds the log again if it grew. Who looks at now keeps looking at it. */
	update() {
		const { session } = this;
		if (!session || session.log.length === this.read) return;
		const atNow = this.at >= this.changes.length;
		this.changes = changes(session.initialState, session.log);
		this.read = session.log.length;
		if (atNow) this.at = this.changes.length;
	}

	followSelection() {
		const { session } = this;
		const place = session?.selected ? session.places.get(session.selected) : undefined;
		if (place === undefined) return;
		this.update();
		this.at = changeAt(this.changes, place);
		this.draw();
	}

	/** @param {number} to */
	move(to) {
		this.at = Math.max(-1, Math.min(this.changes.length, to));
		const change = this.changes[this.at];
		if (change) this.session?.select(change.eventId);
		this.draw();
	}

	draw() {
		const { session } = this;
		if (!session || !this.isActive) return;
		this.update();
		this.slider.max = String(this.changes.length);
		this.slider.value = String(this.at);
		this.slider.disabled = this.changes.length === 0;
		const change = this.changes[this.at];
		const isNow = this.at >= this.changes.length;
		const edited = session.editedState;
		const state = change ? withRemoved(change.before, change.after) : isNow ? (edited ?? session.talk.state) : session.initialState;
		const key = JSON.stringify([this.at, this.changes.length, state, edited !== undefined]);
		if (key === this.drawn || this.body.querySelector("form")) return;
		this.drawn = key;
		this.where.textContent = change ? `${this.at + 1} of ${this.changes.length}, by ${change.author}` : isNow ? "now" : "at the beginning";
		const marks = change ? diff(change.before, change.after) : new Map();
		const note = change ? [summary(marks), ". ", h("a", { href: this.actions.link("events", change.eventId) }, "Show the event")]
			: isNow && edited ? ["This is sent with your next message. ", h("button.link", { onclick: () => ((session.editedState = undefined), this.draw()) }, "Discard")] : [];
		const isEmpty = Object.keys(state ?? {}).length === 0;
		replace(this.body, h("p.state-note", null, note),
			isEmpty ? h("p.muted", null, "The state is empty. What agents and tools write to it is shown here.") : copiedTree(state, { depth: 3, marks: (path) => marks.get(path), label: "State" }));
	}

	edit() {
		const { session } = this;
		if (!session) return;
		const close = () => {
			replace(this.body);
			[this.drawn, this.at] = ["", this.changes.length];
			this.draw();
		};
		const check = (/** @type {unknown} */ value) => (typeof value === "object" && value !== null && !Array.isArray(value) ? null : "The state is a JSON object.");
		jsonForm(this.body, "The state, sent with your next message", session.editedState ?? session.talk.state ?? {}, "Keep it", check, (value) => {
			session.editedState = value;
			close();
		});
		this.body.querySelector("form")?.append(h("button.button", { onclick: close }, "Cancel"));
	}
}

/** @param {Map<string, Mark>} marks */
function summary(marks) {
	const told = ["added", "changed", "removed"].map((kind) => ({ kind, count: [...marks].filter(([path, mark]) => mark === kind && !path.endsWith("/*")).length }));
	return told.filter(({ count }) => count > 0).map(({ kind, count }) => `${count} ${kind}`).join(", ") || "Written again as it was";
}
