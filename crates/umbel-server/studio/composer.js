// Where people write.

import { h, icon, replace } from "./dom.js";

/** @typedef {import("./session.js").Session} Session */

export class Composer {
  /** @param {{ onSend: (text: string) => void, onStop: () => void }} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Session | null} */
    this.session = null;
    this.field = h("textarea", {
      class: "composer-field", rows: "1", placeholder: "Write a message", "aria-label": "Message", "data-testid": "composer",
      "aria-describedby": "composer-hint", enterkeyhint: "send", oninput: () => this.grow(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.button = h("button", { class: "send", "data-testid": "send" });
    this.hint = h("p", { class: "composer-hint", id: "composer-hint" });
    this.note = h("div", { class: "connection", role: "status", "data-testid": "connection" });
    this.element = h("form", { class: "composer", "aria-label": "Write a message", onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), this.submit()) },
      this.note, h("div", { class: "composer-box" }, this.field, this.button), this.hint);
    this.drawn = "";
    this.unlisten = () => {};
  }

  /** @param {Session} session */
  show(session) {
    this.session = session;
    this.unlisten();
    this.unlisten = session.listen(["talk", "connection"], () => this.draw());
    this.draw();
  }

  draw() {
    const session = this.session;
    if (!session) return;
    const asks = !session.isRunning && session.talk.interrupts.length > 0;
    const key = [session.threadId, session.isRunning, asks, session.connection].join(" ");
    if (key === this.drawn) return;
    this.drawn = key;
    const label = session.isRunning ? "Stop the run" : "Send";
    replace(this.button, icon(session.isRunning ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.classList.toggle("is-stop", session.isRunning);
    this.button.disabled = asks;
    this.button.type = session.isRunning ? "button" : "submit";
    this.button.onclick = session.isRunning ? () => this.actions.onStop() : null;
    this.hint.textContent = asks ? "Answer the open question first." : session.isRunning ? "The agent is at work. Esc stops it." : "Enter sends, Shift+Enter begins a new line. Press ? for all keys.";
    this.drawConnection(session);
  }

  /** @param {Session} session */
  drawConnection(session) {
    this.note.dataset.state = session.connection;
    if (session.connection === "reconnecting") replace(this.note, icon("refresh"), "The connection broke. Reconnecting…");
    else if (session.connection === "lost") {
      replace(this.note, icon("warning"), "The connection is lost. The run may go on without this page.",
        h("button", { type: "button", class: "link", onclick: () => void session.reconnect() }, "Try again"));
    } else replace(this.note);
  }

  submit() {
    const text = this.field.value.trim();
    const session = this.session;
    if (!text || !session || session.isRunning || session.isLoading || this.button.disabled) return;
    this.field.value = "";
    this.grow();
    this.actions.onSend(text);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "Escape" && this.session?.isRunning) {
      event.stopPropagation();
      this.actions.onStop();
    }
  }

  grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(220, this.field.scrollHeight)}px`;
  }

  focus() {
    this.field.focus();
  }
}
