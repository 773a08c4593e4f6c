// Signing in at a service: what a question says about it, and how the page that people are sent back to reaches the one that asked.

/** How a channel begins that the two talk on. The state follows: who does not know it hears nothing. */
const CHANNEL = "umbel-signed-in ";

/** How a person signs in, if they do: at an address of the web, and no other. @param {Interrupt} asked @returns {SignIn | null} */
export function signInOf(asked) {
	const { authUri: link } = asked.metadata?.payload?.exchangedAuthCredential?.oauth2 ?? {};
	if (typeof link !== "string" || !/^https?:\/\//i.test(link) || !URL.canParse(link)) return null;
	const { href, host, searchParams } = new URL(link);
	const said = (/** @type {string} */ name) => searchParams.get(name) ?? "";
	return { link: href, host, state: said("state"), back: said("redirect_uri"), scopes: said("scope").split(" ").filter(Boolean) };
}

/** Listens for those who come back, as long as a question is open. */
export class Returns {
	/** @param {(state: string, address: string) => void} onReturn */
	constructor(onReturn) {
		this.onReturn = onReturn;
		/** @type {Map<string, BroadcastChannel>} by state */
		this.channels = new Map();
	}

	/** Listens for who answers one of these, and for nobody else. @param {Interrupt[]} open */
	listenFor(open) {
		const states = new Set(open.map((asked) => signInOf(asked)?.state).filter((state) => state !== undefined && state !== ""));
		for (const [state, channel] of this.channels) {
			if (states.has(state)) continue;
			channel.close();
			this.channels.delete(state);
		}
		for (const state of states) if (state && !this.channels.has(state)) this.channels.set(state, this.listen(state));
	}

	/** @param {string} state */
	listen(state) {
		// The same question may stand in several tabs, and one of them answers it.
		const own = Math.random();
		const channel = new BroadcastChannel(CHANNEL + state);
		channel.onmessage = ({ data }) => {
			if (data?.to === own && typeof data.address === "string") {
				channel.postMessage({ taken: own });
				this.onReturn(state, data.address);
			} else if (data?.isBack) channel.postMessage({ here: own });
		};
		return channel;
	}
}

/**
 * Hands the address that a person was sent to over to a tab that asked for it; calls back once it is taken. What it gives tries
 * again: a tab may just be loaded anew.
 * @param {string} address @param {() => void} onTaken
 */
export function handOver(address, onTaken) {
	const channel = new BroadcastChannel(CHANNEL + (new URL(address).searchParams.get("state") ?? ""));
	/** @type {number | undefined} */
	let to;
	let calls = 0;
	channel.onmessage = ({ data }) => {
		if (to === undefined && typeof data?.here === "number") channel.postMessage({ to: (to = data.here), address });
		else if (to !== undefined && data?.taken === to) {
			channel.close();
			onTaken();
		}
	};
	const call = () => {
		// A tab that is busy takes its time; one that is gone never answers.
		if (++calls % 5 === 0) to = undefined;
		channel.postMessage({ isBack: true });
	};
	call();
	return call;
}
