// Checks the types of the studio's modules, which are told in comments.
//
// node types.mjs FOLDER: prints what is wrong; the exit code is 1 if anything is.

import { readdirSync } from "node:fs";
import { join, relative } from "node:path";
import ts from "typescript";

const [folder] = process.argv.slice(2);
const modules = readdirSync(folder, { recursive: true })
  .filter((name) => name.endsWith(".js"))
  .map((name) => join(folder, name));
const options = {
  allowJs: true,
  checkJs: true,
  strict: true,
  noEmit: true,
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
  lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"],
  types: [],
};
const wrong = ts.getPreEmitDiagnostics(ts.createProgram(modules, options)).map((one) => {
  const line = one.file ? one.file.getLineAndCharacterOfPosition(one.start ?? 0).line + 1 : 0;
  const name = one.file ? relative(folder, one.file.fileName) : "";
  return `${name}:${line}: ${ts.flattenDiagnosticMessageText(one.messageText, "\n")}`;
});
for (const one of wrong) {
  console.log(one);
}
console.log(`${modules.length} modules, ${wrong.length} mistakes in their types`);
process.exit(wrong.length ? 1 : 0);
