/** What /v1/requests tells, and what a life consists of. */

export interface Line {
  id: string;
  kind: "generate" | "embed";
  status: string;
  finish_reason: string | null;
  num_prompt_tokens: number;
  num_output_tokens: number;
  num_cached_tokens: number;
  n: number;
  age_s: number;
  took_s: number;
  queue_s: number | null;
  time_to_first_token_s: number | null;
}

export interface Move {
  at_s: number;
  from: string | null;
  to: string;
  where: string;
}

export interface Choice {
  index: number;
  status: string;
  finish_reason: string | null;
  stop_reason: string | number | null;
  finish_detail: string | null;
  num_tokens: number;
  num_preemptions: number;
  gates: string[];
  /** A text: seeds have 64 bits, numbers here only 53. */
  seed: string | null;
  timeline: Move[];
  prefill_chunks: Chunk[];
}

/** Positions of the prompt that one step computed. */
export interface Chunk {
  at_s: number;
  took_s: number;
  start: number;
  length: number;
}

export interface Life extends Line {
  priority: number;
  max_tokens: number;
  temperature: number | null;
  choices: Choice[];
}

export interface Step {
  step: number;
  began_s: number;
  num_segments: number;
  num_tokens: number;
  num_prefills: number;
  took_s: number | null;
}

export type Phase = "gates" | "queued" | "prefill" | "decode" | "preempted";

export interface Span {
  phase: Phase;
  startS: number;
  endS: number;
  /** Who began it. */
  where: string;
}

export const PHASES: Record<Phase, string> = {
  gates: "before a gate",
  queued: "queued",
  prefill: "prefill",
  decode: "decode",
  preempted: "preempted, waiting",
};

const ENDS: Record<string, string> = {
  stop: "It ended by itself, or at a stop text.",
  length: "It reached its limit of tokens.",
  abort: "It was aborted.",
  prompt_length_exceeded: "Its prompt was too long.",
  insufficient_system_resource: "The cache could not hold it.",
  media_failed: "An image could not be used.",
  grammar_failed: "Its grammar could not be used.",
  timeout: "It took too long.",
  error: "It failed.",
};

export function whyEnded(reason: string): string {
  return ENDS[reason] ?? reason;
}

export function isBad(reason: string | null): boolean {
  return reason !== null && !["stop", "length", "abort"].includes(reason);
}

/** A choice's life in phases up to `nowS` seconds after the arrival. A run becomes decode at the first token. */
export function spansOf(choice: Choice, firstTokenS: number | null, nowS: number): Span[] {
  const spans: Span[] = [];
  let hasRun = false;
  choice.timeline.forEach((move, index) => {
    const endS = choice.timeline[index + 1]?.at_s ?? nowS;
    const { where } = move;
    if (move.to === "finished") return;
    if (move.to === "blocked") spans.push({ phase: "gates", startS: move.at_s, endS, where });
    if (move.to === "waiting") spans.push({ phase: hasRun ? "preempted" : "queued", startS: move.at_s, endS, where });
    if (move.to !== "running") return;
    hasRun = true;
    const splitS = firstTokenS === null ? endS : Math.min(Math.max(firstTokenS, move.at_s), endS);
    if (splitS > move.at_s) spans.push({ phase: "prefill", startS: move.at_s, endS: splitS, where });
    if (endS > splitS) spans.push({ phase: "decode", startS: splitS, endS, where });
  });
  return spans;
}

/** Until the server tells it, as far as the timeline goes. */
export function queuedS(life: Life): number | null {
  const [choice] = life.choices;
  if (life.queue_s !== null || !choice) return life.queue_s;
  const first = spansOf(choice, null, life.took_s).find((span) => span.phase === "queued");
  return first ? first.endS - first.startS : null;
}

/** Steps of the engine within the life, as seconds after the arrival. */
export function stepsWithin(steps: Step[], ageS: number, endS: number): (Step & { atS: number })[] {
  return steps
    .map((step) => ({ ...step, atS: step.began_s + ageS }))
    .filter((step) => step.atS + (step.took_s ?? 0) >= 0 && step.atS <= endS);
}
