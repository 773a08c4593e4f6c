// Signing in at a service, and coming back.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Returns, handOver, signInOf } from "../../../crates/umbel-server/studio/sign-in.js";

const asked = (authUri, id = "q") => ({ id, reason: "umbel:credential", metadata: { payload: { exchangedAuthCredential: { oauth2: { authUri } } } } });

test("people sign in at addresses of the web, and at no others", () => {
  assert.equal(signInOf(asked("https://login.example/authorize?state=a b")).link, "https://login.example/authorize?state=a%20b");
  for (const link of ["javascript:alert(1)", " https://login.example", "https://", "data:text/html,x", 5, undefined]) assert.equal(signInOf(asked(link)), null);
  assert.equal(signInOf({ id: "q", reason: "umbel:credential" }), null);
});

test("what is shown of a sign-in is what its address says, with the host that a browser goes to", () => {
  const link = "https://login.example@other.example:8443/a?redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fstudio%2Fsigned-in&scope=a+b&state=s";
  const { host, state, back, scopes } = signInOf(asked(link));
  assert.deepEqual([host, state, back, scopes], ["other.example:8443", "s", "http://127.0.0.1:1/studio/signed-in", ["a", "b"]]);
  assert.deepEqual(signInOf(asked("https://login.example/")).scopes, []);
  assert.match(signInOf(asked("https://lоgin.example/")).host, /^xn--/);
});

/** Somebody who waits for answers to these questions, and what came. */
function waits(...open) {
  const came = [];
  const returns = new Returns((state, address) => came.push([state, address]));
  returns.listenFor(open);
  return { returns, came };
}

/** All channels: a page that nobody hears waits as long as it is open. */
const channels = [];
globalThis.BroadcastChannel = class extends BroadcastChannel {
  constructor(name) {
    super(name);
    channels.push(this);
  }
};
after(() => channels.forEach((channel) => channel.close()));

/** Comes back with these parameters, and notes them when somebody took them. */
const takes = (taken, query) => new Promise((resolve) => handOver(`http://127.0.0.1/studio/signed-in?${query}`, () => resolve(taken.push(query))));

test("who comes back too early is heard when they call again", async () => {
  let again;
  const taken = new Promise((resolve) => (again = handOver("http://127.0.0.1/studio/signed-in?code=c&state=early", resolve)));
  const { came } = waits(asked("https://login.example/?state=early"));
  again();
  await taken;
  assert.equal(came.length, 1);
});

test("who comes back is heard by one of those who asked for that state, once, and by nobody else", async () => {
  const question = (state, id) => asked(`https://login.example/?state=${state}`, id);
  const [first, second, other] = [waits(question("s"), question("s", "q2")), waits(question("s")), waits(question("t"), question("", "q3"))];
  const taken = [];
  for (const query of ["code=c&state=u", "code=c&state="]) void takes(taken, query);
  await takes(taken, "code=c&state=s");
  assert.deepEqual([...first.came, ...second.came], [["s", "http://127.0.0.1/studio/signed-in?code=c&state=s"]]);
  // A question that is decided is listened for no more.
  for (const { returns } of [first, second]) returns.listenFor([question("v")]);
  void takes(taken, "code=d&state=s");
  await takes(taken, "code=e&state=t");
  assert.deepEqual(taken, ["code=c&state=s", "code=e&state=t"]);
  assert.deepEqual(other.came, [["t", "http://127.0.0.1/studio/signed-in?code=e&state=t"]]);
  assert.equal(first.came.length + second.came.length, 1);
});
