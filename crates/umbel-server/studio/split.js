// A bar between two columns that can be dragged, or moved with the arrow keys.

import { h } from "./dom.js";

/**
 * @param {{ label: string, variable: string, store: string, min: number, max: () => number, initial: number, isRight: boolean }} options
 */
export function splitter({ label, variable, store, min, max, initial, isRight }) {
	let width = Number(localStorage.getItem(store)) || initial;
	const bar = h("div.splitter", { role: "separator", tabindex: "0", "aria-orientation": "vertical", label: label });
	const set = (/** @type {number} */ wanted) => {
		width = Math.round(Math.max(min, Math.min(max(), wanted)));
		document.documentElement.style.setProperty(variable, `${width}px`);
		bar.setAttribute("aria-valuemin", String(min));
		bar.setAttribute("aria-valuemax", String(max()));
		bar.setAttribute("aria-valuenow", String(width));
	};
	const keep = () => localStorage.setItem(store, String(width));
	bar.addEventListener("pointerdown", (event) => {
		bar.setPointerCapture(event.pointerId);
		const from = event.clientX;
		const before = width;
		const move = (/** @type {PointerEvent} */ moved) => set(before + (isRight ? from - moved.clientX : moved.clientX - from));
		bar.addEventListener("pointermove", move);
		bar.addEventListener("lostpointercapture", () => (bar.removeEventListener("pointermove", move), keep()), { once: true });
	});
	bar.addEventListener("keydown", (event) => {
		const step = event.key === "ArrowLeft" ? -24 : event.key === "ArrowRight" ? 24 : 0;
		if (step === 0) return;
		event.preventDefault();
		set(width + (isRight ? -step : step));
		keep();
	});
	bar.addEventListener("dblclick", () => (set(initial), keep()));
	window.addEventListener("resize", () => set(width));
	set(width);
	return bar;
}
