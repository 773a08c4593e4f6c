// Sessions for the studio to show, as the JSON lines that stores take in.
//
// node fixture.mjs FILE: writes them. `long` has 5,000 events; `tour` has one of everything that a pane shows;
// `hostile` tries to make the page do things.

import { writeFileSync } from "node:fs";

const CITIES = ["Paris", "Rome", "Oslo", "Lisbon", "Vienna", "Prague", "Dublin", "Athens"];
const BEGAN = 1_700_000_000;
const EVENTS = 5_000;

/** The log of a session in the making. */
class Log {
  constructor(id) {
    this.lines = [];
    this.id = id;
    this.time = BEGAN;
    this.count = 0;
    this.runs = 0;
  }

  /** A run of the guide's: what was said, what came of it, and how it ended. */
  run(text, ...steps) {
    this.runs += 1;
    this.invocation = `e-${this.id}-${this.runs}`;
    const agui = { run: `${this.id}-run-${this.runs}`, digest: this.runs.toString(16), messages: [[`${this.id}-m${this.runs}`, 1]] };
    this.event("user", { role: "user", parts: [{ text }] }, { customMetadata: { agui } });
    this.record({ step: "started", fingerprint: 1 });
    for (const step of steps) {
      step(this);
    }
    this.record({ step: "ended", outcome: { kind: "finished" } });
  }

  event(author, content, more = {}) {
    this.count += 1;
    this.time += 0.25;
    const id = `${this.id}-${String(this.count).padStart(6, "0")}`;
    const head = { id, invocationId: this.invocation, author, timestamp: this.time };
    this.lines.push({ line: "event", event: { ...head, content, ...more } });
  }

  record(record) {
    this.lines.push({ line: "record", record });
  }

  session() {
    const about = { app: "demo", user: "local", id: this.id, updatedAt: this.time };
    return [{ line: "session", ...about }, ...this.lines];
  }
}

const usage = (input, output) => ({ usageMetadata: { promptTokenCount: input, candidatesTokenCount: output, totalTokenCount: input + output } });

/** The guide says something, perhaps after a thought. */
const say = (text, thought) => (log) => {
  const parts = [...(thought ? [{ text: thought, thought: true }] : []), { text }];
  log.event("guide", { role: "model", parts }, usage(200, 20));
};

/** The guide calls a tool of its own, which may write the state. */
const call = (name, args, response, stateDelta) => (log) => {
  const id = `adk-${log.id}-call-${log.count}`;
  log.event("guide", { role: "model", parts: [{ functionCall: { id, name, args } }] }, usage(150, 10));
  log.record({ step: "callsStarted", calls: [id] });
  const actions = stateDelta ? { actions: { stateDelta } } : {};
  log.event("guide", { role: "user", parts: [{ functionResponse: { id, name, response } }] }, actions);
};

function tour() {
  const log = new Log("tour");
  log.run(
    "weather in Paris",
    call("get_weather", { city: "Paris" }, { city: "Paris", celsius: 21, sky: "sunny" }),
    say("**Paris**: sunny, 21 °C."),
  );
  log.run(
    "pack an umbrella",
    call("pack", { items: ["umbrella"] }, { packing_list: ["umbrella"] }, { packing_list: ["umbrella"] }),
    say("On your packing list: umbrella."),
  );
  log.run(
    "pack a map",
    call("pack", { items: ["map"] }, { packing_list: ["umbrella", "map"] }, { packing_list: ["umbrella", "map"], city: "Oslo" }),
    say("On your packing list: umbrella · map."),
  );
  log.run("where should I go?", say("Go to Lisbon.", "Somewhere mild, by the sea."));
  return log.session();
}

/** What a page must not be taken in by. */
function hostile() {
  const log = new Log("hostile");
  const words = [
    "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>",
    "![a picture](http://elsewhere.invalid/a.png)",
    "[click](javascript:document.title='taken') and [here](data:text/html,taken) and [there](http://elsewhere.invalid/)",
  ].join("\n\n");
  log.run(words, call("<b>tool</b>", { "<i>": words }, { "<i>": words }, { "<i>": words }), say(words, words));
  return log.session();
}

function long() {
  const log = new Log("long");
  while (log.count < EVENTS) {
    const city = CITIES[log.runs % CITIES.length];
    const celsius = 5 + (log.runs % 25);
    log.run(
      `weather in ${city}, for the ${log.runs + 1}. time`,
      call("get_weather", { city }, { city, celsius, sky: "sunny" }, { last_city: city, asked: log.runs + 1 }),
      say(`${city}: sunny, ${celsius} °C.`),
    );
  }
  return log.session();
}

const lines = [{ line: "umbel", format: 1 }, ...tour(), ...hostile(), ...long()];
writeFileSync(process.argv[2], lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
