// An AG-UI agent whose streams survive a lost connection, a reload of the page and a restart of the server.
//
// The official HttpAgent reads a stream once. This one remembers the id of the last frame. If the connection breaks before
// the run is over, it asks for the rest; `connectAgent()` shows a thread as it is and follows the run that it has.

import { HttpAgent } from "@ag-ui/client";
import { EventType } from "@ag-ui/core";
import type { BaseEvent, Message, RunAgentInput } from "@ag-ui/core";
import { Observable } from "rxjs";

/** How often it asks again before it gives up, and how long it waits before the first time; twice as long each time. */
const ATTEMPTS = 6;
const PAUSE_MS = 250;

interface Thread {
  messages: Message[];
  state: unknown;
  runningRunId?: string | null;
  /** The cursor of the page of messages before this one. */
  previous?: string | null;
}

/** What the server says that cannot be helped by asking again. */
class Refused extends Error {
  constructor(
    readonly status: number,
    readonly payload: string,
  ) {
    super(`HTTP ${status}: ${payload}`);
  }
}

export class ResumableHttpAgent extends HttpAgent {
  /** Begins a run, and asks for the rest of it whenever the connection breaks. */
  override run(input: RunAgentInput): Observable<BaseEvent> {
    return this.events((signal, emit) => this.follow(input, this.url, this.requestInit(input), signal, emit));
  }

  /** Shows the thread, and follows the run that it has under way. `connectAgent()` calls this. */
  protected override connect(input: RunAgentInput): Observable<BaseEvent> {
    return this.events(async (signal, emit) => {
      const now = await this.thread(input.threadId, undefined, signal);
      const run = now?.runningRunId ?? undefined;
      if (!run) {
        const { threadId, runId } = input;
        emit({ type: EventType.RUN_STARTED, threadId, runId, protocolVersion: "1.0" } as BaseEvent);
        if (now) {
          emit({ type: EventType.MESSAGES_SNAPSHOT, messages: now.messages } as BaseEvent);
          emit({ type: EventType.STATE_SNAPSHOT, snapshot: now.state } as BaseEvent);
        }
        emit({ type: EventType.RUN_FINISHED, threadId, runId } as BaseEvent);
        return;
      }
      // The stream tells the run from its beginning, so only what was there before is shown at once.
      const before = await this.thread(input.threadId, run, signal);
      const followed = { ...input, runId: run };
      await this.follow(followed, this.eventsUrl(followed), this.getInit(), signal, (event) => {
        emit(event);
        if (event.type === EventType.RUN_STARTED) {
          emit({ type: EventType.MESSAGES_SNAPSHOT, messages: before?.messages ?? [] } as BaseEvent);
        }
      });
    });
  }

  /** Reads a run to its end, over as many connections as it takes. */
  private async follow(
    input: RunAgentInput,
    url: string,
    init: RequestInit,
    signal: AbortSignal,
    emit: (event: BaseEvent) => void,
  ): Promise<void> {
    let last: string | undefined;
    let failures = 0;
    for (;;) {
      try {
        for await (const frame of frames(await this.open(url, init, signal))) {
          last = frame.id ?? last;
          failures = 0;
          if (isLeft(frame.event)) {
            break;
          }
          emit(frame.event);
          if (frame.event.type === EventType.RUN_FINISHED || frame.event.type === EventType.RUN_ERROR) {
            return;
          }
        }
      } catch (error) {
        if (signal.aborted || error instanceof Refused) {
          throw error;
        }
      }
      failures += 1;
      if (failures > ATTEMPTS) {
        throw new Error("the connection is lost, and the run could not be taken up again");
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * 2 ** (failures - 1)));
      // Without a frame nobody knows whether the run began: the same request begins it or attaches to it.
      if (last !== undefined) {
        url = this.eventsUrl(input);
        init = this.getInit(last);
      }
    }
  }

  private async open(url: string, init: RequestInit, signal: AbortSignal): Promise<Response> {
    const response = await this.fetch(url, { ...init, signal });
    if (!response.ok) {
      // What is wrong with the server for a moment is worth another try, and what is wrong with the request is not.
      const text = await response.text();
      throw response.status >= 500 ? new Error(text) : new Refused(response.status, text);
    }
    return response;
  }

  /** A thread with all its messages, which come in pages, newest page first. */
  private async thread(id: string, before: string | undefined, signal: AbortSignal): Promise<Thread | undefined> {
    const newest = await this.threadPage(id, { before }, signal);
    if (newest === undefined) {
      return undefined;
    }
    const pages = [newest.messages];
    for (let until = newest.previous; until; ) {
      const page = await this.threadPage(id, { before, until }, signal);
      pages.unshift(page?.messages ?? []);
      until = page?.previous;
    }
    return { ...newest, messages: pages.flat() };
  }

  private async threadPage(
    id: string,
    query: Record<string, string | undefined>,
    signal: AbortSignal,
  ): Promise<Thread | undefined> {
    const given = Object.entries(query).filter((entry): entry is [string, string] => entry[1] !== undefined);
    const url = `${this.base()}/threads/${encodeURIComponent(id)}?${new URLSearchParams(given)}`;
    const response = await this.fetch(url, { headers: this.headers, signal });
    if (response.status === 404) {
      return undefined;
    }
    if (!response.ok) {
      throw new Refused(response.status, await response.text());
    }
    return (await response.json()) as Thread;
  }

  private base(): string {
    return this.url.replace(/\/+$/, "");
  }

  private eventsUrl(input: RunAgentInput): string {
    const [run, thread] = [input.runId, input.threadId].map(encodeURIComponent);
    return `${this.base()}/runs/${run}/events?thread=${thread}`;
  }

  private getInit(last?: string): RequestInit {
    const headers: Record<string, string> = { ...this.headers, Accept: "text/event-stream" };
    if (last !== undefined) {
      headers["Last-Event-ID"] = last;
    }
    return { method: "GET", headers };
  }

  private events(
    work: (signal: AbortSignal, emit: (event: BaseEvent) => void) => Promise<void>,
  ): Observable<BaseEvent> {
    return new Observable((subscriber) => {
      const own = new AbortController();
      const signal = AbortSignal.any([own.signal, this.abortController.signal]);
      work(signal, (event) => subscriber.next(event)).then(
        () => subscriber.complete(),
        (error) => subscriber.error(error),
      );
      return () => own.abort();
    });
  }
}

/** Whether a server stops that only told of a run: the run goes on elsewhere, and so does its stream. */
function isLeft(event: BaseEvent): boolean {
  return event.type === EventType.RUN_ERROR && (event as { code?: string }).code === "SHUTTING_DOWN";
}

/** The frames of a stream. What stands behind the last whole one is dropped: it comes again. */
async function* frames(response: Response): AsyncGenerator<{ id?: string; event: BaseEvent }> {
  if (!response.body) {
    return;
  }
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      text += decoder.decode(value, { stream: true });
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const field = (name: string) => lines.find((line) => line.startsWith(name))?.slice(name.length);
        const data = field("data: ");
        if (data !== undefined) {
          yield { id: field("id: "), event: JSON.parse(data) as BaseEvent };
        }
      }
    }
  } finally {
    // Whoever stops reading hangs up.
    await reader.cancel().catch(() => undefined);
  }
}
