// A list of rows of one height, of which only those in sight are drawn.

import { h } from "./dom.js";

/** Rows that are drawn above and below what can be seen. */
const SPARE = 8;

/**
 * Which rows are to be drawn: from the first to just before the second.
 * @param {number} top @param {number} height @param {number} row @param {number} count @returns {[number, number]}
 */
export function visible(top, height, row, count) {
	const first = Math.max(0, Math.floor(top / row) - SPARE);
	const last = Math.min(count, Math.ceil((top + height) / row) + SPARE);
	return [Math.min(first, count), Math.max(last, 0)];
}

/** Where to scroll so that a row can be seen; `null` if it can. @param {number} at @param {number} top @param {number} height @param {number} row @returns {number | null} */
export function scrollFor(at, top, height, row) {
	if (at * row < top) return at * row;
	if ((at + 1) * row > top + height) return (at + 1) * row - height;
	return null;
}

/**
 * A list box. One row is the chosen one; the arrow keys choose another.
 * @template T
 */
export class WindowList {
	/**
	 * @param {{
	 *   label: string, row: number, draw: (item: T, at: number) => HTMLElement, onChoose: (item: T, at: number) => void,
	 *   testid?: string,
	 * }} options
	 */
	constructor({ label, row, draw, onChoose, testid }) {
		this.row = row;
		this.draw = draw;
		this.onChoose = onChoose;
		/** @type {T[]} */
		this.items = [];
		this.chosen = -1;
		this.id = `list-${Math.random().toString(36).slice(2, 8)}`;
		this.rows = h("div.window-rows", { role: "presentation" });
		this.element = h(
			"div",
			{ class: "window-list", role: "listbox", tabindex: "0", label: label, testid: testid, onscroll: () => this.paint(), onkeydown: (event) => this.key(event) },
			this.rows,
		);
		/** What is drawn now. @type {Map<number, HTMLElement>} */
		this.drawn = new Map();
		new ResizeObserver(() => this.paint()).observe(this.element);
	}

	/** Shows other items. Who looks at the end keeps looking at it. @param {T[]} items @param {boolean} [follows] */
	show(items, follows = false) {
		const { scrollTop, clientHeight, scrollHeight } = this.element;
		const atEnd = follows && clientHeight > 0 && scrollTop + clientHeight >= scrollHeight - 2 * this.row;
		this.items = items;
		if (this.chosen >= items.length) this.chosen = -1;
		this.rows.style.height = `${items.length * this.row}px`;
		this.clear();
		if (atEnd) this.element.scrollTop = this.element.scrollHeight;
		this.paint();
	}

	clear() {
		this.drawn.clear();
		this.rows.replaceChildren();
	}

	/** @param {number} at @param {boolean} [scrolls] */
	choose(at, scrolls = true) {
		this.drawn.get(this.chosen)?.setAttribute("aria-selected", "false");
		this.chosen = at;
		if (scrolls && at >= 0) {
			const to = scrollFor(at, this.element.scrollTop, this.element.clientHeight, this.row);
			if (to !== null) this.element.scrollTop = to;
		}
		this.paint();
		this.drawn.get(at)?.setAttribute("aria-selected", "true");
		if (at >= 0) this.element.setAttribute("aria-activedescendant", `${this.id}-${at}`);
		else this.element.removeAttribute("aria-activedescendant");
	}

	paint() {
		const [first, last] = visible(this.element.scrollTop, this.element.clientHeight, this.row, this.items.length);
		for (const [at, element] of this.drawn) {
			if (at >= first && at < last) continue;
			element.remove();
			this.drawn.delete(at);
		}
		for (let at = first; at < last; at += 1) {
			if (this.drawn.has(at)) continue;
			const item = /** @type {T} */ (this.items[at]);
			const element = this.draw(item, at);
			element.classList.add("window-row");
			element.style.transform = `translateY(${at * this.row}px)`;
			element.style.height = `${this.row}px`;
			element.id = `${this.id}-${at}`;
			element.setAttribute("role", "option");
			element.setAttribute("aria-selected", String(at === this.chosen));
			element.setAttribute("aria-setsize", String(this.items.length));
			element.setAttribute("aria-posinset", String(at + 1));
			element.addEventListener("click", () => this.pick(at));
			this.drawn.set(at, element);
			this.rows.append(element);
		}
	}

	/** @param {number} at */
	pick(at) {
		const item = this.items[at];
		if (item === undefined) return;
		this.choose(at);
		this.onChoose(item, at);
	}

	/** @param {KeyboardEvent} event */
	key(event) {
		const page = Math.max(1, Math.floor(this.element.clientHeight / this.row) - 1);
		/** @type {Record<string, number>} */
		const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
		const step = steps[event.key];
		if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
		event.preventDefault();
		const to = this.chosen < 0 && step === 1 ? 0 : this.chosen + step;
		this.pick(Math.max(0, Math.min(this.items.length - 1, to)));
	}
}
