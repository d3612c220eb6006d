/** The answer that is being written: one at a time in each conversation, its text drawn once in a frame. */
import { signal } from "@preact/signals";
import { ApiError, defaultTemperature, events, models, postJson } from "../api";
import { find, save } from "../store";
import { newId, pathOf, withTurn, type Conversation, type End, type Stats, type Turn } from "../tree";

export interface Live {
  text: string;
  thinking: string;
}

/** What was drawn last of each open answer, by its turn. */
export const live = signal<Record<string, Live>>({});
/** Read out when an answer ends. */
export const announcement = signal("");
export const chosenModel = signal<string | null>(null);

/** Conversations with an open answer: changes when one begins or ends, not in every frame. */
const answering = signal<readonly string[]>([]);
const open = new Map<string, { conversation: string; controller: AbortController }>();
const SAVED_EVERY_MS = 2_000;

export function isAnswering(conversationId: string): boolean {
  return answering.value.includes(conversationId);
}

export function stop(conversationId: string): void {
  for (const { conversation, controller } of open.values()) {
    if (conversation === conversationId) controller.abort();
  }
}

function noteOpen(): void {
  answering.value = [...open.values()].map((each) => each.conversation);
}

/** Puts a user's turn under `parent` and lets the model answer it. */
export function ask(conversation: Conversation, text: string, parent: string | null): Promise<void> {
  const turn: Turn = { id: newId(), parent, role: "user", text, at: Date.now() };
  const asked = withTurn(conversation, turn);
  save(asked);
  return answer(asked, turn.id);
}

/** Lets the model answer a user's turn, beside the answers that it has. */
export async function answer(conversation: Conversation, parent: string): Promise<void> {
  const model = chosenModel.value ?? models.value[0]?.id;
  const turn: Turn = { id: newId(), parent, role: "assistant", text: "", at: Date.now(), model };
  const body = requestOf(conversation, parent, model);
  save(withTurn(conversation, turn));
  const controller = new AbortController();
  open.set(turn.id, { conversation: conversation.id, controller });
  noteOpen();
  const writing = new Writing(conversation.id, turn);
  try {
    await writing.read(await postJson("/v1/chat/completions", body, controller.signal));
  } catch (error) {
    writing.fail(error);
  }
  writing.close();
  open.delete(turn.id);
  noteOpen();
}

function requestOf(conversation: Conversation, parent: string, model: string | undefined): object {
  const said = pathOf(conversation, parent)
    .filter((turn) => turn.role === "user" || turn.text)
    .map((turn) => ({ role: turn.role, content: turn.text }));
  const head = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return {
    model,
    messages: [...head, ...said],
    stream: true,
    stream_options: { include_usage: true },
    temperature: defaultTemperature(model),
    ...conversation.sampling,
  };
}

/** One answer as its chunks come. The tree hears of it at its end and every two seconds, the screen in every frame. */
class Writing {
  private text = "";
  private thinking = "";
  private frame = 0;
  private end: End | undefined;
  private error: string | undefined;
  private readonly startedAt = performance.now();
  private firstAt: number | null = null;
  private lastAt = 0;
  private numChunks = 0;
  private usage: any = null;
  private savedAt = performance.now();

  constructor(
    private readonly conversation: string,
    private turn: Turn,
  ) {
    this.draw();
  }

  async read(response: Response): Promise<void> {
    for await (const chunk of events(response)) {
      if (chunk.error) throw new ApiError(chunk.error.message, response.status, chunk.error.code);
      this.turn = { ...this.turn, requestId: chunk.id, warnings: chunk.warnings ?? this.turn.warnings };
      this.usage = chunk.usage ?? this.usage;
      for (const choice of chunk.choices) this.take(choice);
    }
    if (!this.end) throw new ApiError("The connection ended before the answer did.", 0);
  }

  private take(choice: any): void {
    const { content, reasoning_content: reasoning } = choice.delta;
    if (content || reasoning) {
      this.lastAt = performance.now();
      this.firstAt ??= this.lastAt;
      this.numChunks += 1;
      this.text += content ?? "";
      this.thinking += reasoning ?? "";
      this.frame ||= requestAnimationFrame(() => this.draw());
    }
    if (choice.finish_reason) this.end = choice.finish_reason === "length" ? "length" : "stop";
  }

  fail(error: unknown): void {
    const wasStopped = error instanceof DOMException && error.name === "AbortError";
    this.end = wasStopped ? "stopped" : "error";
    if (!wasStopped) this.error = error instanceof Error ? error.message : String(error);
  }

  private draw(): void {
    this.frame = 0;
    const { turn, text, thinking } = this;
    live.value = { ...live.value, [turn.id]: { text, thinking } };
    if (performance.now() - this.savedAt > SAVED_EVERY_MS) this.save();
  }

  private save(): void {
    this.savedAt = performance.now();
    const conversation = find(this.conversation);
    if (!conversation || !(this.turn.id in conversation.turns)) return;
    const { text, thinking, end, error } = this;
    save(withTurn(conversation, { ...this.turn, text, thinking, end, error, stats: this.stats() }));
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    this.save();
    const { [this.turn.id]: _, ...others } = live.value;
    live.value = others;
    announcement.value = this.end === "error" ? `The answer failed: ${this.error}` : "The answer is complete.";
  }

  private stats(): Stats | undefined {
    if (this.firstAt === null) return undefined;
    const outputTokens = this.usage?.completion_tokens ?? this.numChunks;
    const tookS = (this.lastAt - this.startedAt) / 1000;
    const decodeS = (this.lastAt - this.firstAt) / 1000;
    return {
      promptTokens: this.usage?.prompt_tokens ?? 0,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      outputTokens,
      firstTokenS: (this.firstAt - this.startedAt) / 1000,
      tokensPerS: decodeS > 0 ? (outputTokens - 1) / decodeS : tookS > 0 ? outputTokens / tookS : null,
      tookS,
    };
  }
}
