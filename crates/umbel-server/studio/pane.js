// What all panes that look at a session have in common.

/** @implements {View} */
export class Pane {
	/** @param {HTMLElement} element @param {Topic[]} topics what it wants to hear of while it is shown */
	constructor(element, topics) {
		this.element = element;
		this.topics = topics;
		/** @type {Session | null} */
		this.session = null;
		this.isActive = false;
		this.unlisten = () => {};
	}

	/** @param {Session} session */
	attach(session) {
		this.unlisten();
		this.session = session;
		const ends = this.topics.map((topic) => session.on(topic, () => this.isActive && this.heard(topic)));
		this.unlisten = () => ends.forEach((end) => end());
		this.reset();
		if (this.isActive) this.activate("");
	}

	/** Another session is shown. */
	reset() {}

	/** @param {Topic} _topic */
	heard(_topic) {}

	/** @param {string} _detail */
	activate(_detail) {
		this.isActive = true;
	}

	deactivate() {
		this.isActive = false;
	}

	/** The run of the event that all panes look at. */
	get selectedRun() {
		const { session } = this;
		const place = session?.selected ? session.places.get(session.selected) : undefined;
		return place === undefined ? undefined : session?.log[place]?.runId;
	}
}
