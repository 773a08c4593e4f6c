// Any JSON value as a tree that opens and closes. What is closed is not drawn.

import { h, iconButton, copy } from "./dom.js";

/** How many entries are shown at once; the rest by a button. */
const PAGE = 100;
/** Longer text is cut until somebody wants to see it. */
const LONG = 400;

/** @param {unknown} value @param {TreeOptions} [options] @returns {HTMLElement} */
export function tree(value, options = {}) {
	const top = h("div.tree", { role: "group", label: options.label ?? "JSON" });
	if (typeof value === "object" && value !== null) {
		top.append(entries(value, "", options.depth ?? 2, options));
	} else {
		top.append(leaf(value));
	}
	return top;
}

/** A tree with a button to copy the value. @param {unknown} value @param {TreeOptions} [options] */
export function copiedTree(value, options) {
	const button = iconButton("copy", "Copy as JSON", () => void copy(JSON.stringify(value, null, 2), "Copied as JSON."));
	return h("div.copied", null, button, tree(value, options));
}

/** @param {object} value @param {string} path @param {number} depth @param {TreeOptions} options */
function entries(value, path, depth, options) {
	const list = h("ul");
	const all = Array.isArray(value) ? value.map((one, at) => /** @type {[string, unknown]} */ ([String(at), one])) : Object.entries(value);
	const more = (/** @type {number} */ from) => {
		for (const [key, one] of all.slice(from, from + PAGE)) list.append(entry(key, one, `${path}/${key}`, depth, options));
		const left = all.length - from - PAGE;
		if (left > 0) {
			const next = h("li", null, h("button.link", { onclick: () => (next.remove(), more(from + PAGE)) }, `${left} more`));
			list.append(next);
		}
	};
	more(0);
	return list;
}

/** @param {string} key @param {unknown} value @param {string} path @param {number} depth @param {TreeOptions} options */
function entry(key, value, path, depth, options) {
	const mark = options.marks?.(path);
	const item = h("li", { class: mark ? `diff-${mark}` : null });
	const name = h("span.tree-key", null, key);
	const tag = mark ? h("span.diff-tag", null, mark) : null;
	if (typeof value !== "object" || value === null) {
		item.append(h("div.tree-line", null, name, h("span.tree-colon", null, ": "), leaf(value), tag));
		return item;
	}
	const size = Object.keys(value).length;
	const isList = Array.isArray(value);
	const hint = isList ? `[${size}]` : `{${size}}`;
	const brief = h("span.tree-hint");
	const details = h("details", null, h("summary", null, name, tag, brief));
	const show = () => {
		brief.textContent = details.open ? "" : ` ${hint} ${preview(value)}`;
		if (details.open && details.childElementCount === 1) details.append(entries(value, path, depth - 1, options));
	};
	details.addEventListener("toggle", show);
	if (size > 0 && (depth > 1 || options.marks?.(`${path}/*`))) {
		details.open = true;
	}
	show();
	item.append(details);
	return item;
}

/** @param {object} value */
function preview(value) {
	const text = JSON.stringify(value);
	return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}

/** @param {unknown} value */
function leaf(value) {
	if (typeof value !== "string") return h("span", { class: `tree-${value === null ? "null" : typeof value}` }, String(value));
	const text = h("span.tree-string", null);
	text.textContent = JSON.stringify(value.length > LONG ? value.slice(0, LONG) : value);
	if (value.length <= LONG) return text;
	const all = h("button.link", { onclick: () => ((text.textContent = JSON.stringify(value)), all.remove()) }, `… ${value.length - LONG} more`);
	return h("span", null, text, all);
}
