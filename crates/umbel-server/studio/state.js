// The state as a tree: as it is now, or as one event left it, with what that event changed.

import { jsonForm } from "./approvals.js";
import { h, iconButton, icon, onFrame, replace } from "./dom.js";
import { copiedTree } from "./json-tree.js";
import { changeAt, changes, diff, withRemoved } from "./state-diff.js";

/** @typedef {import("./session.js").Session} Session */

export class StatePane {
  /** @param {import("./inspector.js").InspectorActions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Session | null} */
    this.session = null;
    this.isActive = false;
    /** @type {import("./state-diff.js").Change[]} */
    this.changes = [];
    this.read = 0;
    /** Which change is shown; behind the last is now. */
    this.at = 0;
    this.unlisten = () => {};
    this.drawn = "";
    this.slider = h("input", { type: "range", min: "-1", class: "slider", "aria-label": "Change of the state", "data-testid": "state-slider", oninput: () => this.move(Number(this.slider.value)) });
    this.where = h("span", { class: "state-where", role: "status" });
    this.body = h("div", { class: "pane-scroll pad", "data-testid": "state", tabindex: "0", role: "region", "aria-label": "State" });
    const previous = iconButton("left", "Previous change", () => this.move(this.at - 1));
    const next = iconButton("right", "Next change", () => this.move(this.at + 1));
    const edit = h("button", { type: "button", class: "button small", onclick: () => this.edit() }, icon("edit"), "Edit");
    this.element = h("div", { class: "pane state" }, h("div", { class: "pane-bar" }, previous, this.slider, next, this.where, h("span", { class: "spacer" }), edit), this.body);
    this.drawSoon = onFrame(() => this.draw());
  }

  /** @param {Session} session */
  attach(session) {
    this.unlisten();
    this.session = session;
    this.changes = [];
    this.read = 0;
    this.at = 0;
    this.drawn = "";
    const ends = [session.listen(["talk", "log"], () => this.drawSoon()), session.on("selection", () => this.followSelection())];
    this.unlisten = () => ends.forEach((end) => end());
    if (this.isActive) this.activate("");
  }

  /** @param {string} detail the id of an event */
  activate(detail) {
    this.isActive = true;
    if (detail) this.session?.select(detail);
    this.session?.wantLog();
    this.update();
    this.followSelection();
    this.draw();
  }

  deactivate() {
    this.isActive = false;
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
    if (!session || !this.isActive) return;
    const place = session.selected ? session.places.get(session.selected) : undefined;
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
    const now = session.editedState ?? session.talk.state;
    const key = JSON.stringify([session.threadId, this.at, this.changes.length, isNow ? now : null, session.editedState !== undefined]);
    if (key === this.drawn || this.body.querySelector("form")) return;
    this.drawn = key;
    if (change) {
      const marks = diff(change.before, change.after);
      this.where.textContent = `${this.at + 1} of ${this.changes.length}, by ${change.author}`;
      replace(this.body, h("p", { class: "state-note" }, summary(marks), " ", h("a", { href: this.actions.link("events", change.eventId) }, "Show the event")),
        copiedTree(withRemoved(change.before, change.after), { depth: 2, marks: (path) => marks.get(path), label: "State" }));
      return;
    }
    this.where.textContent = isNow ? "now" : "at the beginning";
    const shown = isNow ? now : session.initialState;
    const isEmpty = Object.keys(shown ?? {}).length === 0;
    replace(this.body,
      session.editedState !== undefined ? h("p", { class: "state-note" }, "This is sent with your next message. ", h("button", { type: "button", class: "link", onclick: () => this.discard() }, "Discard")) : null,
      isEmpty ? h("p", { class: "muted" }, "The state is empty. What agents and tools write to it is shown here.") : copiedTree(shown, { depth: 3, label: "State" }));
  }

  edit() {
    const { session } = this;
    if (!session) return;
    const check = (/** @type {unknown} */ value) => (typeof value === "object" && value !== null && !Array.isArray(value) ? null : "The state is a JSON object.");
    jsonForm(this.body, "The state, sent with your next message", session.editedState ?? session.talk.state ?? {}, "Keep it", check, (value) => {
      session.editedState = value;
      replace(this.body);
      this.at = this.changes.length;
      this.draw();
    });
    const cancel = h("button", { type: "button", class: "button", onclick: () => (replace(this.body), (this.drawn = ""), this.draw()) }, "Cancel");
    this.body.querySelector("form")?.append(cancel);
  }

  discard() {
    if (this.session) this.session.editedState = undefined;
    this.draw();
  }
}

/** @param {Map<string, string>} marks */
function summary(marks) {
  const count = (/** @type {string} */ kind) => [...marks].filter(([path, mark]) => mark === kind && !path.endsWith("/*")).length;
  const said = ["added", "changed", "removed"].map((kind) => [count(kind), kind]).filter(([many]) => many).map(([many, kind]) => `${many} ${kind}`);
  return said.length > 0 ? `${said.join(", ")}.` : "Written again as it was.";
}
