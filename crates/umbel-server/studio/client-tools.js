// The tools that this page brings along: agents may call them, and they run here.

import { toast } from "./dom.js";
import { setTheme } from "./theme.js";

/** What agents are told of them. */
export const CLIENT_TOOLS = [
	{
		name: "set_theme",
		description: "Makes the page that the person looks at light or dark.",
		parameters: { type: "object", properties: { theme: { type: "string", enum: ["light", "dark"] } }, required: ["theme"] },
	},
	{
		name: "get_local_time",
		description: "The date, the time and the time zone where the person is.",
		parameters: { type: "object", properties: {} },
	},
	{
		name: "notify",
		description: "Shows the person a short note.",
		parameters: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
	},
];

/** @type {Record<string, (args: Record<string, any>) => unknown>} */
const TOOLS = {
	set_theme: ({ theme }) => {
		if (theme !== "light" && theme !== "dark") return { error: "`theme` is `light` or `dark`" };
		setTheme(theme);
		return { theme };
	},
	get_local_time: () => {
		const now = new Date();
		return { local: now.toString(), utc: now.toISOString(), zone: Intl.DateTimeFormat().resolvedOptions().timeZone };
	},
	notify: ({ text }) => {
		if (typeof text !== "string" || text === "") return { error: "`text` is missing" };
		toast(text, { kind: "from-agent" });
		return { shown: true };
	},
};

/** @param {string} name */
export function knows(name) {
	return Object.hasOwn(TOOLS, name);
}

/** Runs a tool and gives what the agent is told, errors included. @param {ToolCall} call @returns {string} */
export function runClientTool(call) {
	try {
		const args = call.function.arguments ? JSON.parse(call.function.arguments) : {};
		return JSON.stringify(TOOLS[call.function.name]?.(args) ?? null);
	} catch {
		return JSON.stringify({ error: "the arguments are not JSON" });
	}
}
