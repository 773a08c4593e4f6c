// The types that the studio's modules share. They are for checking alone: browsers never load this file.

type AgentInfo = { path: string; name: string; description?: string; suggestions?: string[] };
type Offer = { agents: AgentInfo[]; version: string; inspect: boolean };
type ThreadInfo = { threadId: string; updatedAt: number; title?: string | null; running?: boolean; waiting?: boolean };
type Thread = { threadId: string; messages: Message[]; state: any; interrupts: Interrupt[]; runningRunId?: string | null };
type LogEntry = { index: number; runId: string; event: Record<string, any> };
type LogPage = { threadId: string; total: number; initialState: Record<string, any>; events: LogEntry[]; next: number | null };
type RunInfo = { runId: string; startedAt: number; outcome: string };
type Step = { step: number; agent: string; messageId: string; timestamp: number; toolCalls: string[] };
/** What a model was asked. */
type Asked = Record<string, any>;
type Until = { messageId?: string; eventId?: string; before?: boolean };

type Span = {
  id: string;
  parent: string | null;
  kind: string;
  name: string;
  start: number;
  end: number | null;
  usage?: { input?: number; output?: number; cached?: number; thoughts?: number };
  cost?: { amount: number; currency: string };
  error?: string;
  attributes?: Record<string, any>;
};
type Trace = { threadId: string; runId: string; source: "recorded" | "log"; startedAt: number; spans: Span[] };
type SpanRow = { span: Span; depth: number };

type AguiEvent = { type: string } & Record<string, any>;
type Frame = { id?: string; event: AguiEvent };
type ToolCall = { id: string; type: "function"; function: { name: string; arguments: string } };
type Message = {
  id: string;
  role: string;
  content?: any;
  toolCalls?: ToolCall[];
  toolCallId?: string;
  error?: string;
  name?: string;
  subagentRunId?: string;
  activityType?: string;
};
type Interrupt = {
  id: string;
  reason: string;
  message?: string;
  toolCallId?: string;
  responseSchema?: Record<string, any>;
  expiresAt?: string;
  metadata?: Record<string, any>;
};
type Decision = { status: "resolved" | "cancelled"; payload?: any };
/** How a person signs in at a service: where, for what, and where they come back to. */
type SignIn = { link: string; host: string; state: string; back: string; scopes: string[] };
type Settle = (answer: Decision) => void;
type Subagent = {
  id: string;
  name: string;
  description?: string;
  isParallel: boolean;
  status: "running" | "finished" | "suspended" | "failed";
};
type Run = {
  runId: string;
  status: "running" | "finished" | "interrupted" | "cancelled" | "failed";
  error?: { message: string; code?: string };
  result?: any;
  usage?: Record<string, any>[];
};

/** A conversation as it is now. */
type Conversation = {
  messages: Message[];
  state: any;
  /** The run that is under way, or the last one. */
  run: Run | null;
  /** Questions that wait for a person. */
  interrupts: Interrupt[];
  /** Calls that wait for this client. */
  pending: string[];
  subagents: Map<string, Subagent>;
  /** Steps that are under way. */
  steps: string[];
  /** The ids of messages and calls that are being written. */
  open: Set<string>;
  /** The ids of messages that changed since somebody looked. */
  dirty: Set<string>;
  /** Whether messages came, went or moved since somebody looked. */
  isReordered: boolean;
  conflicts: { key: string; sent: any; kept: any }[];
};
type WireEntry = { at: number; id?: string; runId: string; event: AguiEvent };
type Topic = "talk" | "connection" | "log" | "runs" | "selection" | "ended" | "wire";
type CallState = "writing" | "running" | "waiting" | "done" | "failed" | "open";

type Child = Node | string | number | null | undefined | false | Child[];
/** Attributes, properties and listeners of an element. */
type Props = {
  onclick?: (event: MouseEvent) => void;
  onkeydown?: (event: KeyboardEvent) => void;
  onsubmit?: (event: SubmitEvent) => void;
  oncancel?: (event: Event) => void;
  [name: string]: any;
};
type Inline = { type: string; text?: string; children?: Inline[]; href?: string };
type Block = {
  type: string;
  raw: string;
  level?: number;
  inlines?: Inline[];
  blocks?: Block[];
  items?: Block[][];
  start?: number;
  lang?: string;
  text?: string;
  head?: Inline[][];
  rows?: Inline[][][];
};
/** A block, and the line behind it. */
type ReadBlock = [Omit<Block, "raw">, number];
/** Where a link leads; `null` is nowhere. */
type Resolve = (href: string) => string | null;
type Mark = "added" | "changed" | "removed" | undefined;
type TreeOptions = { depth?: number; marks?: (path: string) => Mark; label?: string };

type Turn = { element: HTMLElement; update: (message: Message) => void };
type ChatActions = {
  onFork: (until: Until) => void;
  onRerun: (messageId: string, text: string) => void;
  onSend: (text: string) => void;
  onInspect: (eventId: string) => void;
};
type SessionsActions = {
  onAgent: (agent: AgentInfo) => void;
  onOpen: (threadId: string) => void;
  onNew: () => void;
  onDeleted: (agent: AgentInfo, threadId: string) => void;
  onListed: (agent: AgentInfo, thread: ThreadInfo) => void;
  live: () => Iterable<Session>;
  link: (threadId: string) => string;
};
type InspectorActions = {
  onPane: (pane: string, detail: string) => void;
  link: (pane: string, detail: string) => string;
  onFork: (until: Until) => void;
  onReveal: (eventId: string) => void;
};
/** What a pane is: it is shown with what the address says behind its name, and hears of the session that is open. */
type View = {
  element: HTMLElement;
  attach?: (session: Session) => void;
  activate: (detail: string) => void;
  deactivate?: () => void;
};
type EventRow = {
  at: number;
  id: string;
  author: string;
  kind: string;
  text: string;
  time: string;
  label: string;
  json: unknown;
  inLog: boolean;
  words: string;
};
type Brief = { kind: string; text: string };
type State = Record<string, any>;
/** What one event made of the state. */
type Change = { place: number; eventId: string; author: string; before: State; after: State };
type AgentNode = { name: string; kind: string; parent: string | null; tools: { name: string }[]; transfersTo: string[] } & Record<string, any>;
type Box = { agent: AgentNode; x: number; y: number; width: number; height: number; tools: string[] };
type Edge = { from: Box; to: Box; kind: string; arrowAt?: boolean; arrowBack?: boolean };
type Route = { agent: string; thread: string; pane: string; detail: string };
type Shortcut = { key: string; label: string; run: () => void; when?: () => boolean };

type Session = import("./studio/session.js").Session;
type Api = import("./studio/api.js").Api;
