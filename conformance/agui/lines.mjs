// What tests wrote down: lines of JSON, in files or in folders of files.
import fs from "node:fs";
import path from "node:path";

/** Every line of every file whose name ends so, with where it stands. */
export function* lines(arguments_, ending, except) {
  for (const argument of arguments_) {
    const isFolder = fs.statSync(argument).isDirectory();
    const names = isFolder ? fs.readdirSync(argument).sort().map((name) => path.join(argument, name)) : [argument];
    for (const name of names) {
      if (!name.endsWith(ending) || (except && name.endsWith(except))) continue;
      const text = fs.readFileSync(name, "utf8").split("\n");
      for (const [index, line] of text.entries()) if (line) yield { at: `${name}:${index + 1}`, form: JSON.parse(line) };
    }
  }
}

/** Says how many there were, and the first of those that are wrong. */
export function report(what, count, wrong) {
  for (const line of wrong.slice(0, 10)) console.log(line);
  console.log(`${count} ${what}, ${wrong.length} wrong`);
  if (count === 0) console.log("nothing was checked: is there anything in the folder?");
  process.exit(wrong.length || count === 0 ? 1 : 0);
}
