// Streams of events: frames are cut out of the text, and a stream that breaks is taken up again where it was.

/** How often a stream is asked for again before a person has to say so, and the first and the longest pause. */
const ATTEMPTS = 12;
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 8000;

/**
 * Cuts Server-Sent Events into frames, however the text is cut into pieces. What stands behind the last whole frame is
 * kept for the next piece, and is lost with the connection: the server says it again.
 */
export class FrameCutter {
	constructor() {
		this.rest = "";
	}

	/** @param {string} text @returns {Frame[]} */
	push(text) {
		this.rest += text;
		const frames = [];
		for (;;) {
			const end = /\r\n\r\n|\n\n|\r\r/.exec(this.rest);
			if (!end) return frames;
			const frame = readFrame(this.rest.slice(0, end.index));
			this.rest = this.rest.slice(end.index + end[0].length);
			if (frame) frames.push(frame);
		}
	}
}

/** A frame without data, such as a comment that keeps the connection alive, is none. @param {string} text @returns {Frame | null} */
function readFrame(text) {
	/** @type {string | undefined} */
	let id;
	const data = [];
	for (const line of text.split(/\r\n|\n|\r/)) {
		const colon = line.indexOf(":");
		const name = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
		if (name === "id") id = value;
		else if (name === "data") data.push(value);
	}
	if (data.length === 0) return null;
	const event = JSON.parse(data.join("\n"));
	return id === undefined ? { event } : { id, event };
}

/** How long to wait before the next try. @param {number} failures */
export function pauseAfter(failures) {
	return Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1));
}

/** Whether the run is over by that event. @param {AguiEvent} event */
function isLast(event) {
	return event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
}

/** Whether only the server stops that told of the run: it goes on elsewhere. @param {AguiEvent} event */
function isLeft(event) {
	return event.type === "RUN_ERROR" && event.code === "SHUTTING_DOWN";
}

/**
 * Reads a run to its end, over as many connections as it takes.
 * @param {{
 *   begin: () => Promise<Response>,
 *   resume: (last: string) => Promise<Response>,
 *   onFrame: (frame: Frame) => void,
 *   onConnection: (state: "live" | "reconnecting", failures: number) => void,
 *   signal: AbortSignal,
 *   attempts?: number,
 *   wait?: (ms: number, signal: AbortSignal) => Promise<void>,
 * }} how
 */
export async function readRun({ begin, resume, onFrame, onConnection, signal, attempts = ATTEMPTS, wait = pause }) {
	/** @type {string | undefined} */
	let last;
	let failures = 0;
	for (;;) {
		try {
			// Without a frame nobody knows whether the run began: the same request begins it or attaches to it.
			const response = last === undefined ? await begin() : await resume(last);
			onConnection("live", 0);
			for await (const frame of frames(response)) {
				if (signal.aborted) return;
				last = frame.id ?? last;
				failures = 0;
				if (isLeft(frame.event)) break;
				onFrame(frame);
				if (isLast(frame.event)) return;
			}
		} catch (error) {
			// What is wrong with the request does not get better by asking again.
			const status = /** @type {{ status?: number }} */ (error).status ?? 0;
			if (signal.aborted || (status >= 400 && status < 500 && status !== 429)) throw error;
		}
		if (signal.aborted) return;
		failures += 1;
		if (failures > attempts) throw new Error("The connection is lost, and the run could not be taken up again.");
		onConnection("reconnecting", failures);
		await wait(pauseAfter(failures), signal);
	}
}

/** @param {Response} response @returns {AsyncGenerator<Frame>} */
async function* frames(response) {
	if (!response.body) return;
	const reader = response.body.getReader();
	const decoder = new TextDecoder();
	const cutter = new FrameCutter();
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done) return;
			yield* cutter.push(decoder.decode(value, { stream: true }));
		}
	} finally {
		// Whoever stops reading hangs up.
		await reader.cancel().catch(() => undefined);
	}
}

/** Waits, but no longer than until the machine is online again or nobody wants to know. @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
	return new Promise((resolve) => {
		const done = () => {
			clearTimeout(timer);
			window.removeEventListener("online", done);
			signal.removeEventListener("abort", done);
			resolve();
		};
		const timer = setTimeout(done, ms);
		window.addEventListener("online", done);
		signal.addEventListener("abort", done);
	});
}
