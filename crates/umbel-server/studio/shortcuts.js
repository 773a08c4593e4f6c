// Keys for those who do not want to reach for the mouse.

import { h } from "./dom.js";

const OFF = "umbel-studio-keys-off";

/** Whether somebody is writing, so that letters are letters. @param {EventTarget | null} target */
function isWriting(target) {
	if (!(target instanceof HTMLElement)) return false;
	return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName) || (target instanceof HTMLInputElement && !["checkbox", "radio", "range", "button"].includes(target.type));
}

/** Listens for the keys. `?` lists them. @param {Shortcut[]} shortcuts */
export function listenForKeys(shortcuts) {
	/** @type {Shortcut[]} */
	const all = [...shortcuts, { key: "?", label: "Show these keys", run: () => showKeys(all) }];
	document.addEventListener("keydown", (event) => {
		if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
		if (event.key === "Escape" && isWriting(event.target) && !document.querySelector("dialog[open]")) {
			/** @type {HTMLElement} */ (event.target).blur();
			return;
		}
		if (isWriting(event.target) || document.querySelector("dialog[open]")) return;
		if (localStorage.getItem(OFF) && event.key !== "Escape") return;
		const found = all.find((one) => one.key === event.key && (one.when?.() ?? true));
		if (!found) return;
		event.preventDefault();
		found.run();
	});
	return () => showKeys(all);
}

/** @param {Shortcut[]} shortcuts */
function showKeys(shortcuts) {
	const rows = shortcuts.map(({ key, label }) => h("tr", null, h("td", null, h("kbd", null, key === "Escape" ? "Esc" : key)), h("td", null, label)));
	const toggle = h("input", { type: "checkbox", checked: !localStorage.getItem(OFF), onchange: () => (toggle.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")) });
	const dialog = h("dialog.dialog", { "aria-labelledby": "keys-title", testid: "shortcuts", onclose: () => dialog.remove() },
		h("form", { method: "dialog" },
			h("h2", { id: "keys-title" }, "Keys"),
			h("table.keys", null, h("tbody", null, rows)),
			h("label.field-check", null, toggle, "Single keys are on"),
			h("div.dialog-buttons", null, h("button.button.primary", { type: "submit" }, "Close"))));
	document.body.append(dialog);
	dialog.showModal();
}
