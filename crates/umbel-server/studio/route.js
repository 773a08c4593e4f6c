// Where one is, as the part of the address behind `#`: the agent, the thread, the pane, and what it shows.

/** @param {string} hash @returns {Route} */
export function readRoute(hash) {
	const [agent = "", thread = "", pane = "", detail = ""] = hash.replace(/^#?\/?/, "").split("/").map(decode);
	return { agent, thread, pane, detail };
}

/** @param {Route} route */
export function writeRoute({ agent, thread, pane, detail }) {
	const parts = [agent, thread, pane, detail];
	while (parts.at(-1) === "") parts.pop();
	return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** @param {string} part */
function decode(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}
