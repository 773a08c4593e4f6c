// The state of a session at each event, and what one event made of it. No page is needed for it.

/** The events that changed the state, with what it was before and after. @param {State} initial @param {LogEntry[]} log @returns {Change[]} */
export function changes(initial, log) {
	/** @type {Change[]} */
	const found = [];
	let before = initial;
	log.forEach(({ event }, place) => {
		const delta = event.actions?.stateDelta;
		if (!delta || Object.keys(delta).length === 0) return;
		const after = { ...before };
		for (const [key, value] of Object.entries(delta)) {
			if (value === null) delete after[key];
			else after[key] = value;
		}
		found.push({ place, eventId: event.id, author: event.author ?? "", before, after });
		before = after;
	});
	return found;
}

/** The last change up to a place in the log; -1 is before all. @param {Change[]} all @param {number} place */
export function changeAt(all, place) {
	return all.findLastIndex((change) => change.place <= place);
}

/**
 * What differs, by path: `/a/b` is added, changed or removed. `/a/*` says that something below `/a` does.
 * @param {any} before @param {any} after @param {string} [path] @param {Map<string, "added" | "changed" | "removed">} [marks]
 */
export function diff(before, after, path = "", marks = new Map()) {
	if (same(before, after)) return marks;
	if (!isTree(before) || !isTree(after) || Array.isArray(before) !== Array.isArray(after)) {
		marks.set(path, "changed");
	} else {
		for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
			const inside = `${path}/${key}`;
			if (!Object.hasOwn(before, key)) marks.set(inside, "added");
			else if (!Object.hasOwn(after, key)) marks.set(inside, "removed");
			else diff(before[key], after[key], inside, marks);
		}
	}
	for (let at = path; at !== ""; at = at.slice(0, at.lastIndexOf("/"))) marks.set(`${at}/*`, "changed");
	return marks;
}

/** The state after a change, with what was removed still in it, so that it can be shown. @param {any} before @param {any} after @returns {any} */
export function withRemoved(before, after) {
	if (!isTree(before) || !isTree(after) || Array.isArray(before) !== Array.isArray(after)) return after;
	if (Array.isArray(after) && Array.isArray(before)) return [...after.map((one, at) => (at < before.length ? withRemoved(before[at], one) : one)), ...before.slice(after.length)];
	/** @type {Record<string, any>[]} */
	const [old = {}, merged = {}] = [before, { ...after }];
	for (const key of Object.keys(old)) merged[key] = Object.hasOwn(merged, key) ? withRemoved(old[key], merged[key]) : old[key];
	return merged;
}

/** @param {any} value @returns {value is Record<string, any>} */
function isTree(value) {
	return typeof value === "object" && value !== null;
}

/** @param {any} a @param {any} b @returns {boolean} */
function same(a, b) {
	if (a === b) return true;
	if (!isTree(a) || !isTree(b) || Array.isArray(a) !== Array.isArray(b)) return false;
	const keys = Object.keys(a);
	return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}
