// What is new in a prompt since the one before. No page is needed for it.

/** @param {unknown} a @param {unknown} b */
function same(a, b) {
	return JSON.stringify(a) === JSON.stringify(b);
}

/**
 * How many messages of a prompt the one before it had too, from the first on, and what else differs.
 * @param {Asked | null} before @param {Asked} now
 */
export function compare(before, now) {
	const contents = now.contents ?? [];
	let kept = 0;
	while (before && kept < contents.length && same(before.contents?.[kept], contents[kept])) kept += 1;
	const known = new Map((before?.tools ?? []).map((/** @type {any} */ tool) => [tool.name, tool]));
	const tools = (now.tools ?? []).filter((/** @type {any} */ tool) => before && !same(known.get(tool.name), tool)).map((/** @type {any} */ tool) => tool.name);
	const names = new Set((now.tools ?? []).map((/** @type {any} */ tool) => tool.name));
	return {
		isFirst: before === null,
		kept,
		dropped: before ? Math.max(0, (before.contents?.length ?? 0) - kept) : 0,
		instruction: before !== null && !same(before.instruction, now.instruction),
		tools: new Set(tools),
		goneTools: [...known.keys()].filter((name) => !names.has(name)),
		config: before !== null && !same(before.config, now.config),
	};
}

/** The lines of a text, with those that the one before did not have marked. @param {string} before @param {string} now @returns {{ text: string, isNew: boolean }[]} */
export function newLines(before, now) {
	const known = new Set(before.split("\n"));
	return now.split("\n").map((text) => ({ text, isNew: !known.has(text) }));
}
