// Markdown becomes a tree, and nothing in it becomes markup.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inlines, isSafe, parse, slug } from "../../../crates/umbel-server/studio/markdown.js";

const kinds = (text) => parse(text).map((block) => block.type);
const plain = (list) => list.map((one) => one.text ?? plain(one.children ?? [])).join("");

test("blocks are told apart", () => {
  assert.deepEqual(kinds("# A\n\ntext\nmore\n\n- a\n- b\n\n1. c\n\n> q\n\n---\n\n```rust\nlet x;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
    ["heading", "paragraph", "list", "list", "quote", "rule", "code", "table"]);
});

test("code keeps what is in it, also while it is still being written", () => {
  const [block] = parse("```js\n# no heading\n\n- no list");
  assert.deepEqual([block.type, block.lang, block.text], ["code", "js", "# no heading\n\n- no list"]);
});

test("lists nest and number", () => {
  const [list] = parse("3. a\n   - b\n   - c\n4. d");
  assert.equal(list.start, 3);
  assert.deepEqual(list.items.map((item) => item.map((block) => block.type)), [["paragraph", "list"], ["paragraph"]]);
  assert.equal(parse("- a\n\n- b").length, 1);
});

test("tables have cells, and a bar in code or behind a backslash ends none", () => {
  const [table] = parse("| a | b |\n|---|:-:|\n| `x|y` | p\\|q |\n| only |");
  assert.deepEqual(table.rows.map((row) => row.map(plain)), [["x|y", "p|q"], ["only", ""]]);
});

test("marks inside lines are read", () => {
  const of = (text) => inlines(text).map((one) => [one.type, plain([one])]);
  assert.deepEqual(of("a **b** *c* `d` ~~e~~"), [["text", "a "], ["strong", "b"], ["text", " "], ["em", "c"], ["text", " "], ["code", "d"], ["text", " "], ["del", "e"]]);
  assert.deepEqual(of("snake_case_name and 2 * 3 * 4"), [["text", "snake_case_name and 2 * 3 * 4"]]);
  assert.deepEqual(of("\\*no\\*"), [["text", "*no*"]]);
  assert.deepEqual(of("**not closed"), [["text", "**not closed"]]);
  assert.deepEqual(of("``a ` b``"), [["code", "a ` b"]]);
});

test("links are read, with brackets and parentheses in them", () => {
  assert.deepEqual(inlines("[`a`](b.md#c)")[0], { type: "link", href: "b.md#c", children: [{ type: "code", text: "a" }] });
  assert.equal(inlines("[w](https://x.org/a_(b))")[0].href, "https://x.org/a_(b)");
  assert.equal(inlines("see https://x.org/a.")[1].href, "https://x.org/a");
});

test("markup is text", () => {
  const evil = '<img src=x onerror="alert(1)"><script>alert(1)</script>';
  assert.deepEqual(parse(evil), [{ type: "paragraph", inlines: [{ type: "text", text: evil }], raw: evil }]);
});

test("links that run something lead nowhere", () => {
  for (const href of ["javascript:alert(1)", "JAVASCRIPT:x", "data:text/html,x", "vbscript:x", "file:///etc", "java\nscript:x", " javascript:x", "crate::run"]) assert.ok(!isSafe(href), href);
  for (const href of ["https://x.org", "mailto:a@b", "#a", "b.md", "../c"]) assert.ok(isSafe(href), href);
});

test("headings have names", () => {
  assert.equal(slug(parse("# Streams that are `taken up` again!")[0].inlines), "streams-that-are-taken-up-again");
});

test("signs that close a heading are not part of it", () => {
  assert.deepEqual(["# a ##", "#  a  # ", "# C#", "# #", "# a # b"].map((text) => plain(parse(text)[0].inlines)), ["a", "a", "C#", "", "a # b"]);
});

test("no line is long enough to hold the page up", () => {
  const blank = " ".repeat(20_000);
  for (const line of [`# a${blank}b`, `#${blank}#${blank}b`, `a|b\n${blank}-${blank}|${blank}b`, `\`\`\`${blank}\``, `${"~".repeat(20_000)}\``, `-${blank}-${blank}b`]) {
    const began = performance.now();
    parse(line);
    assert.ok(performance.now() - began < 500, line.replaceAll(/(.)\1{9,}/g, "$1…"));
  }
});

test("text that is four times as long takes about four times as long", () => {
  const shapes = {
    items: "- a\n",
    "items with empty lines": "- a\n\n",
    "items with many empty lines": `- a\n${"\n".repeat(20)}`,
    "lists of two kinds": "- a\n\n1. b\n\n",
    "items in items": "- - - - - - - - - - a\n",
    "lines of items": "- a\n  b\n\n  c\n",
    "quotes with lists": "> - a\n>\n",
    "rows": "|a|\n|-|\n",
    "fences": "```\n",
  };
  const cpu = (/** @type {string} */ text) => {
    const began = process.cpuUsage();
    parse(text);
    const { user, system } = process.cpuUsage(began);
    return (user + system) / 1000;
  };
  for (const [name, shape] of Object.entries(shapes)) {
    const text = shape.repeat(Math.ceil(200_000 / shape.length));
    cpu(text.slice(0, 50_000));
    const [quarter, whole] = [cpu(text.slice(0, 50_000)), cpu(text)];
    // What takes no time at all cannot be compared.
    assert.ok(whole < 200 || whole < quarter * 10, `${name}: ${quarter} ms, ${whole} ms`);
  }
});

test("any text is read, fast and to its end", () => {
  const began = performance.now();
  for (const text of ["*".repeat(3000), "[".repeat(3000), "> ".repeat(500), "- ".repeat(500), "`".repeat(2001), "|".repeat(3000), `${"a_".repeat(2000)}`, "**a".repeat(800)]) assert.ok(parse(text).length > 0, text.slice(0, 5));
  assert.ok(performance.now() - began < 4000, "it takes too long");
});

test("what is known of text that grows stays the same", () => {
  const text = "# A\n\nsome words\n\n- a\n- b\n\nthe end";
  const whole = parse(text).map((block) => block.raw);
  for (let end = 1; end <= text.length; end += 1) {
    const now = parse(text.slice(0, end)).map((block) => block.raw);
    assert.deepEqual(now.slice(0, -1), whole.slice(0, now.length - 1));
  }
});
