/** Prometheus's text as numbers, and what two moments of it say. */

export interface Histogram {
  /** Upper bounds, the last one infinite, with the counts up to them. */
  buckets: [number, number][];
  sum: number;
  count: number;
}

export interface Sample {
  atS: number;
  values: Map<string, number>;
  histograms: Map<string, Histogram>;
  /** Of `vllm:request_success_total`, by reason. */
  ends: Map<string, number>;
}

const LINE = /^([\w:]+)(?:\{(.*)\})? (\S+)/;

export function parse(text: string, atS: number): Sample {
  const sample: Sample = { atS, values: new Map(), histograms: new Map(), ends: new Map() };
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const found = LINE.exec(line);
    if (found) put(sample, found[1]!, found[2] ?? "", Number(found[3]!.replace("+Inf", "Infinity")));
  }
  return sample;
}

function put(sample: Sample, name: string, labels: string, value: number): void {
  const part = /^(.*)_(bucket|sum|count)$/.exec(name);
  const bound = /(?:^|,)le="([^"]*)"/.exec(labels)?.[1];
  if (part && (part[2] !== "bucket" || bound)) {
    const histogram = sample.histograms.get(part[1]!) ?? { buckets: [], sum: 0, count: 0 };
    if (part[2] === "bucket") histogram.buckets.push([bound === "+Inf" ? Infinity : Number(bound), value]);
    else histogram[part[2] as "sum" | "count"] = value;
    sample.histograms.set(part[1]!, histogram);
    return;
  }
  const reason = /finished_reason="([^"]*)"/.exec(labels)?.[1];
  if (reason && name === "vllm:request_success_total") sample.ends.set(reason, value);
  sample.values.set(name, (sample.values.get(name) ?? 0) + value);
}

export function rateOf(name: string, before: Sample | undefined, now: Sample): number | null {
  if (!before || now.atS <= before.atS) return null;
  const grown = (now.values.get(name) ?? 0) - (before.values.get(name) ?? 0);
  return grown < 0 ? null : grown / (now.atS - before.atS);
}

/** The share of hits among what was looked up between two moments; null where nothing was. */
export function hitRate(before: Sample | undefined, now: Sample): number | null {
  const grown = (name: string) => (now.values.get(name) ?? 0) - (before?.values.get(name) ?? 0);
  const queries = grown("vllm:prefix_cache_queries_total");
  return queries > 0 ? grown("vllm:prefix_cache_hits_total") / queries : null;
}

/** A quantile of what was counted between two moments, linear within its bucket, as Prometheus computes it. */
export function quantile(name: string, share: number, before: Sample | undefined, now: Sample): number | null {
  const latest = now.histograms.get(name);
  if (!latest) return null;
  const earlier = before?.histograms.get(name);
  const counts = latest.buckets.map(([, number], index) => number - (earlier?.buckets[index]?.[1] ?? 0));
  const total = counts.at(-1) ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  const at = counts.findIndex((number) => number >= rank);
  const lower = at > 0 ? latest.buckets[at - 1]![0] : 0;
  const upper = latest.buckets[at]![0];
  if (!Number.isFinite(upper)) return lower;
  const below = at > 0 ? counts[at - 1]! : 0;
  const within = counts[at]! - below;
  return within > 0 ? lower + ((upper - lower) * (rank - below)) / within : upper;
}
