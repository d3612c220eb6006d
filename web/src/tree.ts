/** Conversations as trees: an edit or another answer is a new branch beside the old one, and nothing is lost. */

export type Role = "user" | "assistant";
export type End = "stop" | "length" | "stopped" | "error";

export interface Stats {
  promptTokens: number;
  cachedTokens: number;
  outputTokens: number;
  firstTokenS: number;
  /** Tokens after the first by the seconds after it; of an answer that came at once, all by all. */
  tokensPerS: number | null;
  tookS: number;
}

export interface Turn {
  id: string;
  parent: string | null;
  role: Role;
  text: string;
  thinking?: string;
  at: number;
  model?: string;
  end?: End;
  error?: string;
  requestId?: string;
  warnings?: string[];
  stats?: Stats;
}

/** Empty fields leave the choice to the server. */
export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  stop?: string[];
}

export interface Conversation {
  id: string;
  title: string;
  createdAt: number;
  changedAt: number;
  turns: Record<string, Turn>;
  leaf: string | null;
  system: string;
  sampling: Sampling;
}

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system = "", sampling: Sampling = {}): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", createdAt: now, changedAt: now, turns: {}, leaf: null, system, sampling };
}

/** From the first turn to the leaf that is shown. */
export function pathOf(conversation: Conversation, leaf = conversation.leaf): Turn[] {
  const path: Turn[] = [];
  for (let id = leaf; id; id = conversation.turns[id]!.parent) path.push(conversation.turns[id]!);
  return path.reverse();
}

/** For each parent (null: none) its children, the oldest first. */
export function children(conversation: Conversation): Map<string | null, Turn[]> {
  const found = new Map<string | null, Turn[]>();
  for (const turn of Object.values(conversation.turns).sort((a, b) => a.at - b.at)) {
    const beside = found.get(turn.parent);
    if (beside) beside.push(turn);
    else found.set(turn.parent, [turn]);
  }
  return found;
}

/** The turn is put in or replaced. A new one becomes the leaf. */
export function withTurn(conversation: Conversation, turn: Turn): Conversation {
  const isNew = !(turn.id in conversation.turns);
  const title = conversation.title || (turn.role === "user" ? titleOf(turn.text) : "");
  return {
    ...conversation,
    title,
    changedAt: Date.now(),
    turns: { ...conversation.turns, [turn.id]: turn },
    leaf: isNew ? turn.id : conversation.leaf,
  };
}

/** Shows the branch of a turn, down to its latest leaf. */
export function showing(conversation: Conversation, turnId: string): Conversation {
  let leaf = turnId;
  for (;;) {
    const children = Object.values(conversation.turns).filter((turn) => turn.parent === leaf);
    if (!children.length) return { ...conversation, leaf };
    leaf = children.reduce((latest, turn) => (turn.at >= latest.at ? turn : latest)).id;
  }
}

/** A conversation of its own with everything up to a turn. */
export function branchAt(conversation: Conversation, turnId: string): Conversation {
  const path = pathOf(conversation, turnId);
  return {
    ...newConversation(conversation.system, conversation.sampling),
    title: `${conversation.title} (branch)`,
    turns: Object.fromEntries(path.map((turn) => [turn.id, turn])),
    leaf: turnId,
  };
}

function titleOf(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 57)}…` : line;
}
