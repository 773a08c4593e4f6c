// The panes on the right, one of which is shown.

import { Events } from "./events.js";
import { GraphPane } from "./graph.js";
import { h, icon, replace } from "./dom.js";
import { Prompt } from "./prompt.js";
import { StatePane } from "./state.js";
import { TracePane } from "./trace.js";

export class Inspector {
	/** @param {Api} api @param {InspectorActions} actions */
	constructor(api, actions) {
		this.actions = actions;
		this.inspect = false;
		/** @type {Session | null} */
		this.session = null;
		this.current = "events";
		/** @type {{ name: string, label: string, icon: string, view: View | null }[]} */
		this.panes = [
			{ name: "events", label: "Events", icon: "list", view: new Events(actions) },
			{ name: "trace", label: "Trace", icon: "trace", view: new TracePane(api, actions) },
			{ name: "state", label: "State", icon: "state", view: new StatePane(actions) },
			{ name: "graph", label: "Graph", icon: "graph", view: new GraphPane(api) },
			{ name: "prompt", label: "Prompt", icon: "prompt", view: new Prompt(api) },
			{ name: "docs", label: "Docs", icon: "docs", view: null },
		];
		this.tabs = h("div.tabs", { role: "tablist", label: "Inspector", onkeydown: (event) => this.key(event) },
			this.panes.map(({ name, label, icon: image }) =>
				h("button", { role: "tab", id: `tab-${name}`, label, "aria-controls": "pane", "aria-selected": "false", testid: `tab-${name}`, onclick: () => actions.onPane(name, "") }, icon(image), h("span", null, label))));
		this.panel = h("div.panel", { role: "tabpanel", id: "pane", tabindex: "-1" });
		this.element = h("div.inspector", { testid: "inspector" }, this.tabs, this.panel);
	}

	/** @param {Offer} offer @param {View} docs */
	offer(offer, docs) {
		this.inspect = offer.inspect;
		for (const pane of this.panes) if (pane.name === "docs") pane.view = docs;
	}

	/** @param {Session} session */
	attach(session) {
		this.session = session;
		for (const { view } of this.panes) view?.attach?.(session);
	}

	/** @param {string} name @param {string} detail */
	show(name, detail) {
		const pane = this.panes.find((one) => one.name === (name || this.current)) ?? this.panes[0];
		if (!pane?.view) return;
		const before = this.panes.find((one) => one.name === this.current);
		if (before !== pane) before?.view?.deactivate?.();
		this.current = pane.name;
		for (const tab of this.tabs.children) {
			const isIt = tab.id === `tab-${pane.name}`;
			tab.setAttribute("aria-selected", String(isIt));
			tab.setAttribute("tabindex", isIt ? "0" : "-1");
		}
		this.panel.setAttribute("aria-labelledby", `tab-${pane.name}`);
		this.panel.dataset.pane = pane.name;
		const isClosed = !this.inspect && pane.name !== "docs" && pane.name !== "events" && pane.name !== "state";
		const element = isClosed ? closed(pane.label) : pane.view.element;
		if (this.panel.firstElementChild !== element) replace(this.panel, element);
		if (!isClosed) pane.view.activate(detail);
	}

	focus() {
		/** @type {HTMLElement | null} */ (this.tabs.querySelector('[aria-selected="true"]'))?.focus();
	}

	/** @param {KeyboardEvent} event */
	key(event) {
		const at = this.panes.findIndex((one) => one.name === this.current);
		/** @type {Record<string, number>} */
		const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.panes.length - 1 };
		const place = places[event.key];
		if (place === undefined) return;
		event.preventDefault();
		const pane = this.panes[(place + this.panes.length) % this.panes.length];
		if (!pane) return;
		this.show(pane.name, "");
		this.actions.onPane(pane.name, "");
		this.focus();
	}
}

/** Why there is nothing to see, and what to do about it. @param {string} label */
export function closed(label) {
	return h("div.empty", { testid: "inspect-off" },
		h("h3", null, `${label} is switched off`),
		h("p", null, "This server keeps logs, prompts and traces to itself: with tokens they are off by default, since they are not every user's business."),
		h("p", null, "Switch them on with ", h("code", null, "Server::inspect(true)"), " where the server is built, then reload this page."));
}
