// Small helpers to build the page. Data only ever becomes text nodes and attributes, never markup.
/// <reference path="../studio.d.ts" />

const SVG = "http://www.w3.org/2000/svg";
/** What is set as a property, since the attribute of that name means only its first value. */
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate"]);

/** Names that are written often. @type {Record<string, string>} */
const SHORT = { label: "aria-label", testid: "data-testid" };

/**
 * An element, `tag.class.class`. Functions become listeners, `true` an empty attribute, and what is not there is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K | `${K}.${string}`} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
	const [name, ...classes] = tag.split(".");
	const element = document.createElement(/** @type {K} */ (name));
	if (name === "button") element.setAttribute("type", "button");
	fill(element, classes, props ?? {}, children);
	return element;
}

/**
 * The same for drawings.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K | `${K}.${string}`} tag @param {Props | null} [props] @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, props, ...children) {
	const [name, ...classes] = tag.split(".");
	const element = document.createElementNS(SVG, /** @type {K} */ (name));
	fill(element, classes, props ?? {}, children);
	return element;
}

/** @param {Element} element @param {string[]} classes @param {Props} props @param {Child[]} children */
function fill(element, classes, props, children) {
	if (classes.length > 0) element.classList.add(...classes);
	for (const [name, value] of Object.entries(props)) {
		if (value === undefined || value === null) continue;
		if (typeof value === "function") element.addEventListener(name.slice(2), value);
		else if (PROPERTIES.has(name)) /** @type {any} */ (element)[name] = value;
		else if (value !== false) element.setAttribute(SHORT[name] ?? name, value === true ? "" : String(value));
	}
	append(element, children);
}

/** @param {Element} element @param {Child} child */
export function append(element, child) {
	if (Array.isArray(child)) for (const one of child) append(element, one);
	else if (child instanceof Node) element.append(child);
	else if (child !== null && child !== undefined && child !== false) element.append(String(child));
}

/** Puts these in the place of what was there. @param {Element} element @param {...Child} children */
export function replace(element, ...children) {
	element.replaceChildren();
	append(element, children);
}

/** Strokes on a grid of 16 by 16. @type {Record<string, string>} */
const ICONS = {
	plus: "M8 3v10M3 8h10",
	search: "M7 12a5 5 0 1 0 0-10 5 5 0 0 0 0 10ZM11 11l3 3",
	send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
	stop: "M4.5 4.5h7v7h-7z",
	trash: "M3 4.5h10M6.5 4V2.5h3V4M4.5 4.5l.6 9h5.8l.6-9",
	copy: "M5.5 5.5h8v8h-8zM10.5 3V2.5h-8v8H3",
	fork: "M4.5 5.5v5M4.5 2.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3ZM4.5 10.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3ZM11.5 2.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3ZM11.5 5.5v1a2 2 0 0 1-2 2h-3a2 2 0 0 0-2 2",
	edit: "M10.5 3 13 5.5 5.5 13H3v-2.5z",
	right: "M6 4l4 4-4 4",
	left: "M10 4 6 8l4 4",
	arrow: "M3 8h10M9 4l4 4-4 4",
	sun: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
	moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
	check: "M3 8.5 6.5 12 13 4.5",
	cross: "M4 4l8 8M12 4l-8 8",
	clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 5v3.5l2 1.5",
	tool: "M9.8 6.2a3 3 0 0 1 3.9-3.5L12 4.5l.5 1.5 1.5.5 1.3-1.7a3 3 0 0 1-4 3.9L6 14 3 11z",
	thought: "M8 2a4.5 4.5 0 0 0-2.5 8.2V12h5v-1.8A4.5 4.5 0 0 0 8 2ZM6 14.2h4",
	warning: "M8 2.5 14.5 13.5h-13zM8 6.5v3.5M8 11.8v.2",
	chat: "M2.5 3.5h11v7.5H7L4 13.5V11H2.5z",
	list: "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.5M2.5 8h.5M2.5 12h.5",
	trace: "M2.5 4h6M5.5 8h6M9.5 12h4",
	state: "M6 2.5c-2 0-2 1-2 2.5S4 7.5 2.5 8C4 8.5 4 9.5 4 11s0 2.5 2 2.5M10 2.5c2 0 2 1 2 2.5s0 2.5 1.5 3c-1.5.5-1.5 1.5-1.5 3s0 2.5-2 2.5",
	graph: "M6 2.5h4v3H6zM2 10.5h4v3H2zM10 10.5h4v3h-4zM8 5.5V8M4 10.5V8h8v2.5",
	prompt: "M2.5 3h11v10h-11zM5 6.5 7 8 5 9.5M8.5 10h2.5",
	docs: "M3.5 2.5h6l3 3v8h-9zM9.5 2.5v3h3M5.5 8.5h5M5.5 11h5",
	help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM6.2 6.3C6.3 4.3 9.8 4.4 9.8 6.4c0 1.4-1.8 1.4-1.8 2.9M8 11.4v.2",
	panel: "M2.5 3h11v10h-11zM10 3v10",
	refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
	agent: "M8 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM3 13.5c.5-3 2.5-4 5-4s4.5 1 5 4",
	key: "M5.5 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 8h6M12 8v2.5",
	out: "M9 3h4v4M13 3 7.5 8.5M11 9.5V13H3V5h3.5",
	bell: "M4 11.5c1-1 1-2.5 1-4.5a3 3 0 0 1 6 0c0 2 0 3.5 1 4.5zM7 13.5h2",
};

/** @param {string} name */
export function icon(name) {
	const path = svg("path", { d: ICONS[name] ?? "" });
	return svg("svg.icon", { viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }, path);
}

/**
 * A button that shows an icon; the label is what it is called.
 * @param {string} name @param {string} label @param {(event: MouseEvent) => void} onclick @param {Props} [props]
 */
export function iconButton(name, label, onclick, props) {
	return h("button.icon-button", { label: label, title: label, onclick, ...props }, icon(name));
}

/** @type {Map<string, number>} */
const hues = new Map();

/** A colour for a name. The first eight names on a page have one of their own. @param {string} name */
export function hue(name) {
	if (!hues.has(name)) hues.set(name, hues.size % 8);
	return `hue-${hues.get(name)}`;
}

/** Calls back once before the next drawing, however often it was asked. @param {() => void} draw */
export function onFrame(draw) {
	let asked = false;
	return () => {
		if (asked) return;
		asked = true;
		const now = () => {
			if (!asked) return;
			asked = false;
			clearTimeout(late);
			draw();
		};
		// A page in the background is not drawn, and is to be right all the same.
		const late = setTimeout(now, 250);
		requestAnimationFrame(now);
	};
}

/** Says something to screen readers, when they have time. @param {string} text */
export function announce(text) {
	const region = document.getElementById("announcer");
	if (!region || !text) return;
	region.append(h("p", null, text));
	while (region.childElementCount > 6) region.firstElementChild?.remove();
}

/** Shows a short note that goes away. @param {string} text @param {{ kind?: string, action?: { label: string, run: () => void } }} [options] */
export function toast(text, options = {}) {
	const shelf = document.getElementById("toasts");
	if (!shelf) return;
	const note = h("div", { class: `toast ${options.kind ?? ""}`, testid: "toast" }, h("span", null, text));
	const close = () => note.remove();
	const { action } = options;
	if (action) {
		note.append(h("button.link", { onclick: () => (close(), action.run()) }, action.label));
	}
	note.append(iconButton("cross", "Close this note", close));
	shelf.append(note);
	while (shelf.childElementCount > 4) shelf.firstElementChild?.remove();
	setTimeout(close, 6000);
}

/** @param {string} text @param {string} [what] */
export async function copy(text, what = "Copied.") {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		// Pages that are not served from this machine or by TLS have no clipboard.
		const field = h("textarea.offscreen", { "aria-hidden": "true", value: text });
		document.body.append(field);
		field.select();
		document.execCommand("copy");
		field.remove();
	}
	toast(what);
}

/** A button that copies what it is given when it is pressed. @param {string} label @param {() => string} text */
export function copyButton(label, text) {
	return iconButton("copy", label, (event) => {
		event.stopPropagation();
		void copy(text());
	});
}

/**
 * Asks something in a dialog.
 * @param {{ title: string, body: Child, yes: string, no?: string, danger?: boolean }} question
 * @returns {Promise<boolean>}
 */
export function ask({ title, body, yes, no = "Cancel", danger = false }) {
	return new Promise((resolve) => {
		const dialog = h(
			"dialog",
			{ class: "dialog", "aria-labelledby": "dialog-title", onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
			h("form", { method: "dialog" },
				h("h2", { id: "dialog-title" }, title),
				h("div.dialog-body", null, body),
				h("div.dialog-buttons", null,
					h("button.button", { type: "submit", value: "no" }, no),
					h("button", { class: `button primary ${danger ? "danger" : ""}`, type: "submit", value: "yes" }, yes))));
		document.body.append(dialog);
		dialog.showModal();
	});
}

/** How long ago that was, in short. @param {number} seconds since 1970 */
export function ago(seconds) {
	const passed = Math.max(0, Date.now() / 1000 - seconds);
	if (passed < 60) return "now";
	if (passed < 3600) return `${Math.floor(passed / 60)} min`;
	if (passed < 86400) return `${Math.floor(passed / 3600)} h`;
	if (passed < 7 * 86400) return `${Math.floor(passed / 86400)} d`;
	return new Date(seconds * 1000).toLocaleDateString();
}

/** A span of time that people can read. @param {number} ms */
export function duration(ms) {
	if (ms === 0) return "0";
	if (ms < 1) return `${Math.round(ms * 1000)} µs`;
	if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
	if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
	return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

/** What an error says to people. @param {unknown} error */
export function words(error) {
	return error instanceof Error ? error.message : String(error);
}
