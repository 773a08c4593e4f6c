// The guide, as it came with the server.

import { h, replace, words } from "./dom.js";
import { render } from "./markdown.js";

export class Docs {
	/** @param {Api} api @param {{ link: (page: string) => string, onPage: (page: string) => void }} actions */
	constructor(api, actions) {
		this.api = api;
		this.actions = actions;
		/** @type {{ name: string, title: string }[]} */
		this.pages = [];
		this.shown = "";
		this.asked = 0;
		this.picker = h("select.field", { label: "Page", onchange: () => actions.onPage(this.picker.value) });
		this.body = h("article.md.doc", { tabindex: "0", label: "Page", testid: "doc" });
		this.element = h("div.pane.docs", null, h("div.pane-bar", null, this.picker), this.body);
	}

	/** @param {string} detail the page, and behind `~` the heading */
	async activate(detail) {
		this.asked += 1;
		const asked = this.asked;
		try {
			if (this.pages.length === 0) {
				this.pages = await this.api.docs();
				replace(this.picker, this.pages.map(({ name, title }) => h("option", { value: name }, title)));
			}
			const [wanted = "", anchor] = detail.split("~");
			const first = this.pages.find((page) => page.name === "tutorial") ?? this.pages[0];
			const name = wanted || this.shown || first?.name || "";
			const text = name !== this.shown ? await this.api.page(name) : null;
			// Somebody may want another page by now.
			if (asked !== this.asked) return;
			if (text !== null) this.draw(name, text);
			this.picker.value = name;
			const heading = anchor ? this.body.querySelector(`[data-anchor="${CSS.escape(anchor)}"]`) : null;
			if (heading) heading.scrollIntoView({ block: "start" });
		} catch (error) {
			if (asked !== this.asked) return;
			this.shown = "";
			replace(this.body, h("p", null, `The page could not be read: ${words(error)}`));
		}
	}

	/** @param {string} name @param {string} text */
	draw(name, text) {
		this.shown = name;
		this.body.replaceChildren();
		const page = h("div");
		render(page, readable(text), (href) => this.resolve(name, href));
		this.body.append(...page.childNodes);
		this.body.scrollTop = 0;
	}

	/** Links between pages stay here; those to the reference, which is not here, become text. @param {string} from @param {string} href */
	resolve(from, href) {
		if (/^(https?:|mailto:)/i.test(href)) return href;
		const guide = /^crate::guide::([\w:]+)(?:#(.*))?$/.exec(href);
		const [path = "", anchor = ""] = guide ? [guide[1]?.replace(/::/g, "/").replace(/_/g, "-"), guide[2]] : href.split("#");
		const name = guide ? path : path.replace(/\.md$/, "").replace(/^\.\//, "");
		const folder = from.includes("/") ? from.slice(0, from.lastIndexOf("/") + 1) : "";
		const wanted = [name === "" ? from : name, folder + name, name.replace(/^(\.\.\/)+/, "")];
		const found = wanted.find((one) => this.pages.some((page) => page.name === one));
		return found ? this.actions.link(anchor ? `${found}~${anchor}` : found) : null;
	}
}

/** Lines that only the compiler needs are left out of Rust examples, as they are in the reference. @param {string} text */
function readable(text) {
	// Names in brackets are links of the reference alone.
	return text.replace(/\[(`[^`\n]+`)\](?![(\[])/g, "$1").replace(/```rust\n([\s\S]*?)```/g, (_, code) => {
		const lines = code.split("\n").filter((/** @type {string} */ line) => !/^\s*#( |$)/.test(line));
		return `\`\`\`rust\n${lines.join("\n").replace(/^\n+/, "")}\`\`\``;
	});
}
