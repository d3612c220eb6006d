import { isReachable, needsKey } from "../api";
import { count, percent, rate, seconds } from "../format";
import { usePoll } from "../ui/poll";
import { Chart } from "./chart";
import { gauge, hits, latest, perSecond, PERIOD_MS, refresh, samples, windowed, type Reading } from "./history";
import type { Sample } from "./metrics";

const RUNNING = gauge("vllm:num_requests_running");
const WAITING = gauge("vllm:num_requests_waiting");
const CACHE = gauge("vllm:kv_cache_usage_perc");
const GENERATED = perSecond("vllm:generation_tokens_total");
const PROMPTS = perSecond("vllm:prompt_tokens_total");
const LATENCIES: [string, string][] = [
  ["Queue", "vllm:request_queue_time_seconds"],
  ["First token", "vllm:time_to_first_token_seconds"],
  ["Between tokens", "vllm:inter_token_latency_seconds"],
  ["Whole request", "vllm:e2e_request_latency_seconds"],
];
const SHARES = [0.5, 0.9, 0.99];

export default function DashboardView() {
  usePoll(refresh, PERIOD_MS);
  const all = samples.value;
  return (
    <section class="page" aria-label="Dashboard">
      <header class="view-head">
        <h1>Dashboard</h1>
        <span class={`chip ${isReachable.value ? "live" : "bad"}`}>{isReachable.value ? "live" : "unreachable"}</span>
      </header>
      <div class="page-body" tabIndex={0}>
        {!isReachable.value && <p class="banner bad">The server cannot be reached; this is what it said last.</p>}
        {all.length ? <Board all={all} /> : <p class="nothing">{needsKey.value ? "The server wants an API key before it tells." : "Asking the server…"}</p>}
      </div>
    </section>
  );
}

function Board({ all }: { all: Sample[] }) {
  return (
    <>
      <dl class="tiles">
        <Tile name="Running" reading={RUNNING} format={count} all={all} />
        <Tile name="Waiting" reading={WAITING} format={count} all={all} />
        <Tile name="Generated" reading={GENERATED} format={rate} all={all} unit="tok/s" />
        <Tile name="Prompts" reading={PROMPTS} format={rate} all={all} unit="tok/s" />
        <Tile name="KV cache" reading={CACHE} format={percent} all={all} unit="used" />
        <Tile name="Prefix hits" reading={hits} format={percent} all={all} unit="last min" />
      </dl>
      <div class="charts">
        <Chart
          title="Tokens per second"
          format={rate}
          least={10}
          all={all}
          curves={[
            { label: "generated", reading: GENERATED, colour: "series-1" },
            { label: "prompt", reading: PROMPTS, colour: "series-2" },
          ]}
        />
        <Chart
          title="Sequences"
          format={count}
          least={4}
          all={all}
          curves={[
            { label: "running", reading: RUNNING, colour: "series-1" },
            { label: "waiting", reading: WAITING, colour: "series-3" },
          ]}
        />
        <Chart title="Time to first token" format={seconds} all={all} curves={percentiles("vllm:time_to_first_token_seconds")} />
        <Chart title="Between tokens" format={seconds} all={all} curves={percentiles("vllm:inter_token_latency_seconds")} />
        <Chart
          title="Shares"
          format={percent}
          most={1}
          all={all}
          curves={[
            { label: "KV cache used", reading: CACHE, colour: "series-1" },
            { label: "prefix hits", reading: hits, colour: "series-2" },
          ]}
        />
        <Latencies all={all} />
      </div>
      <Ends sample={all.at(-1)!} />
    </>
  );
}

function percentiles(name: string) {
  return [
    { label: "p50", reading: windowed(name, 0.5), colour: "series-1" },
    { label: "p99", reading: windowed(name, 0.99), colour: "series-3" },
  ];
}

interface TileProps {
  name: string;
  reading: Reading;
  format: (value: number | null) => string;
  all: Sample[];
  unit?: string;
}

function Tile({ name, reading, format, all, unit }: TileProps) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        {format(latest(reading, all))} {unit && <small>{unit}</small>}
      </dd>
    </div>
  );
}

function Latencies({ all }: { all: Sample[] }) {
  return (
    <section class="card" aria-label="Latency">
      <h2>Latency, requests of the last minute</h2>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">
              <span class="off-screen">Time</span>
            </th>
            {SHARES.map((share) => (
              <th scope="col" class="number">
                p{Math.round(share * 100)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {LATENCIES.map(([label, name]) => (
            <tr>
              <th scope="row">{label}</th>
              {SHARES.map((share) => (
                <td class="number">{seconds(latest(windowed(name, share), all))}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Ends({ sample }: { sample: Sample }) {
  const ends = [...sample.ends].filter(([, number]) => number > 0);
  const preempted = sample.values.get("vllm:num_preemptions_total") ?? 0;
  return (
    <section class="card" aria-label="Since the start">
      <h2>Since the start</h2>
      <dl class="facts">
        {ends.map(([reason, number]) => (
          <div>
            <dt>{reason.replaceAll("_", " ")}</dt>
            <dd>{count(number)}</dd>
          </div>
        ))}
        <div>
          <dt>preemptions</dt>
          <dd>{count(preempted)}</dd>
        </div>
        <div>
          <dt>generated tokens</dt>
          <dd>{count(sample.values.get("vllm:generation_tokens_total"))}</dd>
        </div>
      </dl>
    </section>
  );
}
