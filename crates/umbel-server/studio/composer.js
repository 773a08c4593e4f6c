// Where people write.

import { h, icon, replace } from "./dom.js";

export class Composer {
	/** @param {{ onSend: (text: string) => void, onStop: () => void }} actions */
	constructor(actions) {
		this.actions = actions;
		/** @type {Session | null} */
		this.session = null;
		this.field = h("textarea", {
			class: "composer-field", rows: "1", placeholder: "Write a message", label: "Message", testid: "composer",
			"aria-describedby": "composer-hint", enterkeyhint: "send", oninput: () => ((this.waits = false), this.grow()), onkeydown: (event) => this.key(event),
		});
		this.button = h("button.send", { testid: "send" });
		this.hint = h("p.composer-hint", { id: "composer-hint" });
		this.note = h("div.connection", { role: "status", testid: "connection" });
		this.element = h("form.composer", { label: "Write a message", onsubmit: (event) => (event.preventDefault(), this.submit()) },
			this.note, h("div.composer-box", null, this.field, this.button), this.hint);
		this.drawn = "";
		/** Whether what is written is to be sent when the run is over. */
		this.waits = false;
		this.unlisten = () => {};
	}

	/** @param {Session} session */
	show(session) {
		this.session = session;
		this.waits = false;
		this.unlisten();
		this.unlisten = session.listen(["talk", "connection"], () => this.draw());
		this.draw();
	}

	draw() {
		const session = this.session;
		if (!session) return;
		const asks = !session.isRunning && session.talk.interrupts.length > 0;
		if (asks) this.waits = false;
		const key = [session.threadId, session.isRunning, asks, session.connection, this.waits].join(" ");
		if (this.waits && !session.isRunning && !session.isLoading) {
			this.submit();
			return;
		}
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
		this.hint.textContent = this.waits ? "This is sent when the agent is done." : asks ? "Answer the open question first." : session.isRunning ? "The agent is at work. Esc stops it." : "Enter sends, Shift+Enter begins a new line. Press ? for all keys.";
		this.drawConnection(session);
	}

	/** @param {Session} session */
	drawConnection(session) {
		this.note.dataset.state = session.connection;
		if (session.connection === "reconnecting") replace(this.note, icon("refresh"), "The connection broke. Reconnecting…");
		else if (session.connection === "lost") {
			replace(this.note, icon("warning"), "The connection is lost. The run may go on without this page.",
				h("button.link", { onclick: () => void session.reconnect() }, "Try again"));
		} else replace(this.note);
	}

	submit() {
		const text = this.field.value.trim();
		const session = this.session;
		if (!text || !session || this.button.disabled) return;
		this.waits = session.isRunning || session.isLoading;
		if (this.waits) {
			this.draw();
			return;
		}
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
