// A proxy between browser and server, whose connections can be cut.

import { connect, createServer } from "node:net";

/** Listens on a port of its own and passes everything on to the address. */
export async function startProxy(address) {
  const { hostname, port } = new URL(address);
  const pairs = new Set();
  let isDown = false;
  /** How many more bytes the server may send before the connection that carries them is cut. */
  let left = Infinity;

  const server = createServer((browser) => {
    if (isDown) {
      browser.destroy();
      return;
    }
    const upstream = connect(Number(port), hostname);
    const pair = { browser, upstream };
    pairs.add(pair);
    const close = () => {
      pairs.delete(pair);
      browser.destroy();
      upstream.destroy();
    };
    browser.on("error", close).on("close", close);
    upstream.on("error", close).on("close", close);
    browser.on("data", (bytes) => upstream.write(bytes));
    upstream.on("data", (bytes) => {
      left -= bytes.length;
      browser.write(bytes);
      if (left < 0) {
        left = Infinity;
        proxy.cuts += 1;
        browser.end(close);
      }
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

  const proxy = {
    address: `http://127.0.0.1:${server.address().port}`,
    /** How many connections were cut. */
    cuts: 0,
    /** Cuts a connection once the server has sent so many bytes from now on. */
    cutAfter(bytes) {
      left = bytes;
    },
    /** Cuts all connections and takes no new ones, until `up`. */
    down() {
      isDown = true;
      for (const { browser, upstream } of pairs) {
        browser.destroy();
        upstream.destroy();
      }
    },
    up() {
      isDown = false;
    },
    stop() {
      proxy.down();
      server.close();
    },
  };
  return proxy;
}
