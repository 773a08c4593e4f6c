// Light and dark: what the system says, until a person or an agent says otherwise.

const KEY = "umbel-studio-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
/** @type {Set<() => void>} */
const listeners = new Set();

/** @returns {"light" | "dark"} */
export function theme() {
	const chosen = localStorage.getItem(KEY);
	if (chosen === "light" || chosen === "dark") return chosen;
	return system.matches ? "dark" : "light";
}

/** @param {"light" | "dark"} name */
export function setTheme(name) {
	localStorage.setItem(KEY, name);
	show();
}

export function toggleTheme() {
	setTheme(theme() === "dark" ? "light" : "dark");
}

/** @param {() => void} listener */
export function onTheme(listener) {
	listeners.add(listener);
	listener();
}

function show() {
	document.documentElement.dataset.theme = theme();
	for (const listener of listeners) listener();
}

system.addEventListener("change", show);
show();
