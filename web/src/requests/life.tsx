import { useState } from "preact/hooks";
import { call, getJson } from "../api";
import { count, plural, seconds } from "../format";
import { href } from "../route";
import { Icon } from "../ui/icon";
import { usePoll } from "../ui/poll";
import { queuedS, whyEnded, type Choice, type Life, type Step } from "./data";
import { abortRequest, State } from "./view";
import { Waterfall } from "./waterfall";

const PERIOD_MS = 700;

interface Found {
  lives: Life[];
  steps: Step[];
  error: string | null;
}

/** The whole life of the requests that have an id: mostly one. Asked for until it has ended. */
export function LifeView({ id }: { id: string }) {
  const [found, setFound] = useState<Found | null>(null);
  usePoll(
    async (abort) => {
      if (found?.lives.length && found.lives.every((life) => life.status === "finished")) return;
      setFound(await look(id, abort));
    },
    PERIOD_MS,
    id,
  );
  return (
    <section class="page" aria-label="Request">
      <header class="view-head">
        <a class="icon-button" href={href("requests")} aria-label="All requests" title="All requests">
          <Icon name="left" />
        </a>
        <h1 class="mono">{id}</h1>
      </header>
      <div class="page-body" tabIndex={0}>
        {found?.error && <p class="nothing">{found.error}</p>}
        {found?.lives.map((life) => <OneLife life={life} steps={found.steps} />)}
        {!found && <p class="nothing">Asking the server…</p>}
      </div>
    </section>
  );
}

async function look(id: string, abort: AbortSignal): Promise<Found> {
  try {
    const [lives, steps] = await Promise.all([
      livesOf(id, abort),
      getJson<{ data: Step[] }>("/v1/steps", abort),
    ]);
    return { lives, steps: steps.data, error: null };
  } catch (error) {
    if (abort.aborted) throw error;
    return { lives: [], steps: [], error: (error as Error).message };
  }
}

async function livesOf(id: string, abort: AbortSignal): Promise<Life[]> {
  const text = await (await call(`/v1/requests/${encodeURIComponent(id)}`, { signal: abort })).text();
  return JSON.parse(text.replace(/"seed":(\d+)/g, '"seed":"$1"')).data;
}

function OneLife({ life, steps }: { life: Life; steps: Step[] }) {
  const isOpen = life.status !== "finished";
  return (
    <>
      <div class="life-head">
        <State status={life.status} reason={life.finish_reason} />
        <p>{isOpen ? `for ${seconds(life.took_s)} so far` : whyItEnded(life.choices[0])}</p>
        {isOpen && (
          <button type="button" class="danger" onClick={() => void abortRequest(life.id)}>
            Abort
          </button>
        )}
      </div>
      <dl class="facts">
        <Fact name="Prompt" value={plural(life.num_prompt_tokens, "token")} note={`${count(life.num_cached_tokens)} cached`} />
        <Fact name="Output" value={plural(life.num_output_tokens, "token")} note={`at most ${count(life.max_tokens)}`} />
        <Fact name="Queued" value={seconds(queuedS(life))} />
        <Fact name="First token" value={seconds(life.time_to_first_token_s)} />
        <Fact name="In all" value={seconds(life.took_s)} />
        <Fact name="Decode" value={decodeRate(life)} />
      </dl>
      {life.choices.map((choice) => (
        <section class="card" aria-label={`Choice ${choice.index}`}>
          {life.choices.length > 1 && (
            <h2>
              Choice {choice.index} <State status={choice.status} reason={choice.finish_reason} />
            </h2>
          )}
          <Waterfall life={life} choice={choice} steps={steps} />
          <Moves choice={choice} />
        </section>
      ))}
    </>
  );
}

function whyItEnded(choice: Choice | undefined): string {
  if (!choice?.finish_reason) return "";
  const stop = choice.stop_reason === null ? "" : ` Stopped at ${JSON.stringify(choice.stop_reason)}.`;
  const detail = choice.finish_detail ? ` ${choice.finish_detail}.` : "";
  return whyEnded(choice.finish_reason) + stop + detail;
}

function decodeRate(life: Life): string {
  const decodeS = life.took_s - (life.time_to_first_token_s ?? life.took_s);
  const tokens = life.num_output_tokens - life.n;
  return decodeS > 0 && tokens > 0 ? `${(tokens / decodeS).toFixed(1)} tok/s` : "–";
}

function Fact({ name, value, note }: { name: string; value: string; note?: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value} {note && <small>{note}</small>}
      </dd>
    </div>
  );
}

/** Every change of status in words: the waterfall for those who do not see it, and for those who want the code path. */
function Moves({ choice }: { choice: Choice }) {
  return (
    <details class="moves" open={choice.timeline.length <= 6}>
      <summary>
        {plural(choice.timeline.length, "change")} of status
        {choice.num_preemptions > 0 && `, preempted ${plural(choice.num_preemptions, "time")}`}
      </summary>
      <ol>
        {choice.timeline.map((move) => (
          <li>
            <span class="mono number">+{seconds(move.at_s)}</span>
            <span>
              {move.from ?? "new"} → {move.to}
            </span>
            <span class="mono quiet-text">{move.where}</span>
          </li>
        ))}
      </ol>
      {choice.seed !== null && <p class="note">Draws were keyed by seed {choice.seed}.</p>}
      {choice.gates.length > 0 && <p class="note">It waits for: {choice.gates.join(", ")}.</p>}
    </details>
  );
}
