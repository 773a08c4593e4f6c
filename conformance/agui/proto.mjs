// Events in protobuf, decoded by the official package and compared with the same events in JSON. See README.md
import { isDeepStrictEqual } from "node:util";
import { decode } from "@ag-ui/proto";
import { lines, report } from "./lines.mjs";

/** What protobuf cannot tell apart: lists that are empty and lists that are not there. */
function plain(event) {
  const copy = structuredClone(event);
  for (const key of ["tools", "context", "resume"]) if (copy.input && !copy.input[key]) copy.input[key] = [];
  return copy;
}

const wrong = [];
let count = 0;
for (const { at, form } of lines(process.argv.slice(2), ".proto.jsonl")) {
  count += 1;
  const frame = Buffer.from(form.frame, "hex");
  try {
    if (frame.readUInt32BE(0) !== frame.length - 4) throw new Error("the length of the frame is wrong");
    const event = plain(decode(new Uint8Array(frame.subarray(4))));
    const expected = plain(form.event);
    if (!isDeepStrictEqual(event, expected)) {
      throw new Error(`decoded as ${JSON.stringify(event)}, expected ${JSON.stringify(expected)}`);
    }
  } catch (error) {
    wrong.push(`${at}: ${form.event.type}: ${error.message}`);
  }
}
report("frames", count, wrong);
