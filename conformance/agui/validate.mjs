// Events that tests wrote down, held against the schemas and the rules of order of AG-UI 1.0. See README.md
import { verifyEvents } from "@ag-ui/client";
import { EventSchema } from "@ag-ui/core/schemas";
import { from } from "rxjs";
import { lines, report } from "./lines.mjs";

const wrong = [];
let count = 0;

function check(at, event) {
  count += 1;
  const { success, error } = EventSchema.safeParse(event);
  const short = JSON.stringify(event).slice(0, 300);
  if (!success) {
    const why = error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`).join("; ");
    wrong.push(`${at}: ${short}: ${why}`);
  } else if (unknown(event)) {
    wrong.push(`${at}: ${short}: ${unknown(event)} is not known to the protocol`);
  }
}

/** A field that no schema has: the client takes it away and complains. */
function unknown(event) {
  const schema = EventSchema.options.find((option) => option.shape.type.value === event.type);
  return Object.keys(event).find((key) => !(key in schema.shape));
}

function checkOrder(at, events) {
  from(events).pipe(verifyEvents()).subscribe({ error: (error) => wrong.push(`${at}: ${error.message}`) });
}

for (const { at, form } of lines(process.argv.slice(2), ".jsonl", ".proto.jsonl")) {
  if (Array.isArray(form)) {
    form.forEach((event, index) => check(`${at}[${index}]`, event));
    checkOrder(at, form);
  } else {
    check(at, form);
  }
}
report("events", count, wrong);
