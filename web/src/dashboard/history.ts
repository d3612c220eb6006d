import { signal } from "@preact/signals";
import { call } from "../api";
import { hitRate, parse, quantile, rateOf, type Sample } from "./metrics";

export const PERIOD_MS = 2_000;
const MOST = 450;
/** Percentiles are of the requests that ended in the last minute. */
const WINDOW_S = 60;

export const samples = signal<Sample[]>([]);

export async function refresh(abort: AbortSignal): Promise<void> {
  const text = await (await call("/metrics", { signal: abort })).text();
  samples.value = [...samples.value, parse(text, Date.now() / 1000)].slice(-MOST);
}

/** The sample that stood one window before the given one, or the first. */
function windowStart(all: Sample[], index: number): Sample | undefined {
  const fromS = all[index]!.atS - WINDOW_S;
  let at = index;
  while (at > 0 && all[at]!.atS > fromS) at -= 1;
  return at === index ? undefined : all[at];
}

export type Reading = (all: Sample[], index: number) => number | null;

export const gauge =
  (name: string): Reading =>
  (all, index) =>
    all[index]!.values.get(name) ?? null;

export const perSecond =
  (name: string): Reading =>
  (all, index) =>
    rateOf(name, all[index - 1], all[index]!);

export const windowed =
  (name: string, share: number): Reading =>
  (all, index) =>
    quantile(name, share, windowStart(all, index), all[index]!);

export const hits: Reading = (all, index) => hitRate(windowStart(all, index), all[index]!);

export function column(reading: Reading, all: Sample[]): (number | null)[] {
  return all.map((_, index) => reading(all, index));
}

export function latest(reading: Reading, all: Sample[]): number | null {
  return all.length ? reading(all, all.length - 1) : null;
}
