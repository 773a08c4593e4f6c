// A small Markdown reader. It makes a tree of plain objects, and the tree becomes elements: data is never read as markup.

import { h } from "./dom.js";

/** How deep lists and quotes may stand in each other. */
const DEPTH = 12;

/** @param {string} text @param {number} [depth] @returns {Block[]} */
export function parse(text, depth = 0) {
	const lines = text.replace(/\r\n?/g, "\n").split("\n");
	/** @type {Block[]} */
	const blocks = [];
	let at = 0;
	while (at < lines.length) {
		const line = lines[at] ?? "";
		if (line.trim() === "") {
			at += 1;
			continue;
		}
		const from = at;
		const [block, next] = readBlock(lines, at, depth);
		at = next;
		blocks.push({ ...block, raw: lines.slice(from, at).join("\n") });
	}
	return blocks;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Omit<Block, "raw">, number]} */
function readBlock(lines, at, depth) {
	const line = lines[at] ?? "";
	// No two parts of a pattern may take the same signs: a long line would be tried in every way there is to share them.
	const fence = /^ {0,3}(`{3,}|~{3,}(?!~))([^`]*)$/.exec(line);
	if (fence) return readCode(lines, at, fence[1] ?? "```", (fence[2] ?? "").trim());
	const heading = /^ {0,3}(#{1,6})\s(.*)$/.exec(line);
	if (heading) return [{ type: "heading", level: (heading[1] ?? "").length, inlines: inlines(title(heading[2] ?? "")) }, at + 1];
	if (/^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) return [{ type: "rule" }, at + 1];
	if (/^ {0,3}>/.test(line) && depth < DEPTH) {
		let end = at;
		while (end < lines.length && /^ {0,3}>/.test(lines[end] ?? "")) end += 1;
		const inside = lines.slice(at, end).map((one) => one.replace(/^ {0,3}> ?/, ""));
		return [{ type: "quote", blocks: parse(inside.join("\n"), depth + 1) }, end];
	}
	if (isTable(lines, at)) return readTable(lines, at);
	const item = listItem(line);
	if (item && depth < DEPTH) return readList(lines, at, item.ordered, depth);
	let end = at + 1;
	while (end < lines.length && !endsParagraph(lines, end)) end += 1;
	return [{ type: "paragraph", inlines: inlines(lines.slice(at, end).join("\n")) }, end];
}

/** What a heading says, without the signs that may close it. @param {string} text */
function title(text) {
	const said = text.trim();
	let end = said.length;
	while (said[end - 1] === "#") end -= 1;
	return end === 0 || /\s/.test(said[end - 1] ?? "") ? said.slice(0, end).trimEnd() : said;
}

/** @param {string[]} lines @param {number} at */
function endsParagraph(lines, at) {
	const line = lines[at] ?? "";
	return line.trim() === "" || /^ {0,3}(#{1,6}\s|`{3,}|~{3,}|>)/.test(line) || listItem(line) !== null || isTable(lines, at);
}

/** A fence that is never closed goes to the end: text may still be on its way. @param {string[]} lines @param {number} at @param {string} mark @param {string} lang @returns {[Omit<Block, "raw">, number]} */
function readCode(lines, at, mark, lang) {
	let end = at + 1;
	const closes = (/** @type {string} */ line) => line.trim().startsWith(mark) && /^[`~]+$/.test(line.trim());
	while (end < lines.length && !closes(lines[end] ?? "")) end += 1;
	return [{ type: "code", lang, text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

/** @param {string} line */
function listItem(line) {
	const found = /^( *)([-*+]|(\d{1,9})[.)])(\s+)(?=\S)/.exec(line);
	if (!found) return null;
	return { indent: (found[1] ?? "").length, width: found[0].length, ordered: found[3] !== undefined, start: Number(found[3] ?? 1) };
}

/** @param {string[]} lines @param {number} at @param {boolean} ordered @param {number} depth @returns {[Omit<Block, "raw">, number]} */
function readList(lines, at, ordered, depth) {
	const first = listItem(lines[at] ?? "");
	const indent = first?.indent ?? 0;
	/** @type {Block[][]} */
	const items = [];
	let end = at;
	while (end < lines.length) {
		const item = listItem(lines[end] ?? "");
		if (!item || item.indent > indent + 1 || item.indent < indent || item.ordered !== ordered) break;
		const inside = [(lines[end] ?? "").slice(item.width)];
		end += 1;
		while (end < lines.length && belongsToItem(lines, end, indent)) {
			inside.push((lines[end] ?? "").replace(new RegExp(`^ {0,${item.width}}`), ""));
			end += 1;
		}
		items.push(parse(inside.join("\n"), depth + 1));
		// Blank lines may stand between items.
		const next = nextFilled(lines, end);
		const following = listItem(lines[next] ?? "");
		if (next > end && following && following.indent === indent && following.ordered === ordered) end = next;
	}
	return [{ type: "list", start: ordered ? (first?.start ?? 1) : undefined, items }, end];
}

/** For each line, which one is the next that says something, itself included. @type {WeakMap<string[], number[]>} */
const filled = new WeakMap();

/** The next line that says something, from that one on; found once for all lines, since many may be empty. @param {string[]} lines @param {number} at @returns {number} */
function nextFilled(lines, at) {
	let known = filled.get(lines);
	if (!known) {
		known = new Array(lines.length);
		let next = lines.length;
		for (let place = lines.length - 1; place >= 0; place -= 1) {
			if ((lines[place] ?? "").trim() !== "") next = place;
			known[place] = next;
		}
		filled.set(lines, known);
	}
	return known[at] ?? lines.length;
}

/** @param {string[]} lines @param {number} at @param {number} indent */
function belongsToItem(lines, at, indent) {
	const line = lines[at] ?? "";
	const deep = /^ */.exec(line)?.[0].length ?? 0;
	if (line.trim() === "") {
		const next = lines[nextFilled(lines, at)];
		return next !== undefined && (/^ */.exec(next)?.[0].length ?? 0) > indent + 1;
	}
	if (deep > indent + 1) return true;
	return listItem(line) === null && !endsParagraph(lines, at) && (lines[at - 1] ?? "").trim() !== "";
}

/** @param {string[]} lines @param {number} at */
function isTable(lines, at) {
	const under = (lines[at + 1] ?? "").trim();
	return (lines[at] ?? "").includes("|") && under.includes("|") && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/.test(under);
}

/** @param {string[]} lines @param {number} at @returns {[Omit<Block, "raw">, number]} */
function readTable(lines, at) {
	const head = cells(lines[at] ?? "");
	let end = at + 2;
	const rows = [];
	while (end < lines.length && (lines[end] ?? "").includes("|")) {
		const row = cells(lines[end] ?? "");
		rows.push(head.map((_, place) => row[place] ?? []));
		end += 1;
	}
	return [{ type: "table", head, rows }, end];
}

/** The cells of a row; a bar behind a backslash or in code does not end one. @param {string} line @returns {Inline[][]} */
function cells(line) {
	const parts = [""];
	let inCode = false;
	const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
	for (let at = 0; at < text.length; at += 1) {
		const sign = text[at] ?? "";
		if (sign === "\\" && text[at + 1] === "|") {
			parts[parts.length - 1] += "|";
			at += 1;
		} else if (sign === "|" && !inCode) {
			parts.push("");
		} else {
			if (sign === "`") inCode = !inCode;
			parts[parts.length - 1] += sign;
		}
	}
	return parts.map((part) => inlines(part.trim()));
}

/** What can begin something inside a line, longest first. */
const MARKS = [
	{ type: "code", pattern: /^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/ },
	{ type: "image", pattern: /^!\[([^\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)/ },
	{ type: "link", pattern: /^\[((?:[^[\]]|\[[^\]]*\])*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)/ },
	{ type: "strong", pattern: /^\*\*(?=\S)([\s\S]*?\S)\*\*/ },
	{ type: "strong", pattern: /^__(?=\S)([\s\S]*?\S)__(?!\w)/ },
	{ type: "del", pattern: /^~~(?=\S)([\s\S]*?\S)~~/ },
	{ type: "em", pattern: /^\*(?=\S)([^*]*?[^\s*])\*(?!\*)/ },
	{ type: "em", pattern: /^_(?=\S)([^_]*?[^\s_])_(?!\w)/ },
	{ type: "auto", pattern: /^<?(https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"])>?/ },
];

/** @param {string} text @param {number} [depth] @returns {Inline[]} */
export function inlines(text, depth = 0) {
	/** @type {Inline[]} */
	const out = [];
	let plain = "";
	const flush = () => {
		if (plain) out.push({ type: "text", text: plain });
		plain = "";
	};
	for (let at = 0; at < text.length; ) {
		const sign = text[at] ?? "";
		if (sign === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
			plain += text[at + 1];
			at += 2;
			continue;
		}
		const found = "`![*_~<h".includes(sign) && depth < DEPTH ? readMark(text, at, depth) : null;
		if (found) {
			flush();
			out.push(found.inline);
			at += found.length;
		} else {
			plain += sign;
			at += 1;
		}
	}
	flush();
	return out;
}

/** @param {string} text @param {number} at @param {number} depth @returns {{ inline: Inline, length: number } | null} */
function readMark(text, at, depth) {
	const sign = text[at] ?? "";
	// In the middle of a word, an underscore is one, and so is an address that goes on.
	if ((sign === "_" || sign === "h") && /\w/.test(text[at - 1] ?? "")) return null;
	const rest = text.slice(at, at + 4000);
	for (const { type, pattern } of MARKS) {
		const found = pattern.exec(rest);
		if (!found) continue;
		const [whole, first = "", second = ""] = found;
		const length = whole.length;
		if (type === "code") return { inline: { type, text: second.replace(/\n/g, " ").replace(/^ (.+) $/, "$1") }, length };
		if (type === "auto") return { inline: { type: "link", href: first, children: [{ type: "text", text: first }] }, length };
		if (type === "image") return { inline: { type: "link", href: second, children: [{ type: "text", text: first || second }] }, length };
		if (type === "link") return { inline: { type, href: second, children: inlines(first, depth + 1) }, length };
		return { inline: { type, children: inlines(first, depth + 1) }, length };
	}
	return null;
}

/** Where a link may lead: the web, mail, places of this page, and names. Anything else is shown as text. @param {string} href */
export function isSafe(href) {
	return /^(https?:|mailto:|#)/i.test(href) || !href.includes(":");
}

/** @type {Resolve} */
const outside = (href) => (/^(https?:|mailto:)/i.test(href) ? href : null);

/** @param {Inline[]} list @param {Resolve} resolve @returns {(Node | string)[]} */
function drawInlines(list, resolve) {
	return list.map((inline) => {
		const inside = () => drawInlines(inline.children ?? [], resolve);
		switch (inline.type) {
			case "code":
				return h("code", null, inline.text);
			case "strong":
				return h("strong", null, inside());
			case "em":
				return h("em", null, inside());
			case "del":
				return h("del", null, inside());
			case "link": {
				const href = resolve(inline.href ?? "");
				if (href === null || !isSafe(href)) return h("span", null, inside());
				const isOutside = /^https?:/i.test(href);
				return h("a", { href, target: isOutside ? "_blank" : null, rel: isOutside ? "noopener noreferrer" : null }, inside());
			}
			default:
				return inline.text ?? "";
		}
	});
}

/** @param {Block} block @param {Resolve} resolve @returns {HTMLElement} */
function drawBlock(block, resolve) {
	const text = () => drawInlines(block.inlines ?? [], resolve);
	switch (block.type) {
		case "heading": {
			// The page has headings of its own above these.
			const level = /** @type {"h3" | "h4" | "h5" | "h6"} */ (`h${Math.min(6, (block.level ?? 1) + 2)}`);
			return h(level, { "data-anchor": slug(block.inlines ?? []), class: `md-h${block.level}` }, text());
		}
		case "rule":
			return h("hr");
		case "quote":
			return h("blockquote", null, block.blocks?.map((one) => drawBlock(one, resolve)));
		case "code":
			return h("pre", { tabindex: "0", "data-lang": block.lang || null }, h("code", null, block.text));
		case "list": {
			const items = block.items?.map((item) => h("li", null, item.map((one) => drawItem(one, resolve))));
			return block.start === undefined ? h("ul", null, items) : h("ol", { start: block.start }, items);
		}
		case "table":
			return h("div.md-table", { tabindex: "0" },
				h("table", null,
					h("thead", null, h("tr", null, block.head?.map((cell) => h("th", { scope: "col" }, drawInlines(cell, resolve))))),
					h("tbody", null, block.rows?.map((row) => h("tr", null, row.map((cell) => h("td", null, drawInlines(cell, resolve))))))));
		default:
			return h("p", null, text());
	}
}

/** Text in an item needs no paragraph of its own. @param {Block} block @param {Resolve} resolve */
function drawItem(block, resolve) {
	return block.type === "paragraph" ? drawInlines(block.inlines ?? [], resolve) : drawBlock(block, resolve);
}

/** @param {Inline[]} list @returns {string} */
function plainText(list) {
	return list.map((inline) => inline.text ?? plainText(inline.children ?? [])).join("");
}

/** The name of a heading in an address. @param {Inline[]} list */
export function slug(list) {
	return plainText(list).toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, "").trim().replace(/\s+/g, "-");
}

/** What is shown in an element, block by block. @type {WeakMap<Element, string[]>} */
const shown = new WeakMap();

/**
 * Shows Markdown in an element. Blocks that stand there already are left alone, so that text may grow at little cost and
 * whoever has marked some of it keeps the mark.
 * @param {Element} element @param {string} text @param {Resolve} [resolve]
 */
export function render(element, text, resolve = outside) {
	const blocks = parse(text);
	const before = shown.get(element) ?? [];
	let same = 0;
	while (same < blocks.length && same < before.length && blocks[same]?.raw === before[same]) same += 1;
	while (element.childElementCount > same) element.lastElementChild?.remove();
	for (const block of blocks.slice(same)) element.append(drawBlock(block, resolve));
	shown.set(element, blocks.map((block) => block.raw));
}
