import { signal } from "@preact/signals";
import { call, getJson, isReachable, needsKey } from "../api";
import { count, seconds } from "../format";
import { href, subject } from "../route";
import { say } from "../ui/toast";
import { usePoll } from "../ui/poll";
import { isBad, type Line } from "./data";
import { LifeView } from "./life";

const PERIOD_MS = 1_000;
const FILTERS = { all: "All", open: "Open", finished: "Finished", failed: "Failed" } as const;
type Filter = keyof typeof FILTERS;

const lines = signal<Line[] | null>(null);
const filter = signal<Filter>("all");
const wanted = signal("");

async function refresh(abort: AbortSignal): Promise<void> {
  lines.value = (await getJson<{ data: Line[] }>("/v1/requests", abort)).data;
}

export async function abortRequest(id: string): Promise<void> {
  try {
    await call(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
    say("The request was aborted");
  } catch (error) {
    say((error as Error).message);
  }
}

export function RequestsView() {
  const id = subject.value;
  return id ? <LifeView id={id} /> : <List />;
}

function isShown(line: Line): boolean {
  if (wanted.value && !line.id.includes(wanted.value)) return false;
  switch (filter.value) {
    case "open":
      return line.status !== "finished";
    case "finished":
      return line.status === "finished";
    case "failed":
      return isBad(line.finish_reason);
    default:
      return true;
  }
}

function List() {
  usePoll(refresh, PERIOD_MS);
  const shown = (lines.value ?? []).filter(isShown);
  const numOpen = (lines.value ?? []).filter((line) => line.status !== "finished").length;
  return (
    <section class="page" aria-label="Requests">
      <header class="view-head">
        <h1>Requests</h1>
        <span class="chip">{numOpen} open</span>
      </header>
      <div class="page-body" tabIndex={0}>
        <div class="filters">
          <div class="segmented" role="group" aria-label="Which requests">
            {(Object.keys(FILTERS) as Filter[]).map((name) => (
              <button type="button" aria-pressed={filter.value === name} onClick={() => (filter.value = name)}>
                {FILTERS[name]}
              </button>
            ))}
          </div>
          <input
            type="search"
            aria-label="Find by id"
            placeholder="Find by id"
            value={wanted.value}
            onInput={(event) => (wanted.value = event.currentTarget.value.trim())}
          />
        </div>
        {!isReachable.value && <p class="banner bad">The server cannot be reached; this is what it said last.</p>}
        {shown.length > 0 ? <Table shown={shown} /> : <p class="nothing">{emptyText()}</p>}
      </div>
    </section>
  );
}

function emptyText(): string {
  if (needsKey.value) return "The server wants an API key before it tells.";
  if (lines.value === null) return isReachable.value ? "Asking the server…" : "Nothing is known yet.";
  return lines.value.length ? "No request is like that." : "No request yet. Say something in the chat.";
}

function Table({ shown }: { shown: Line[] }) {
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label="List of requests">
      <table class="requests">
        <thead>
          <tr>
            <th scope="col">Request</th>
            <th scope="col">State</th>
            <th scope="col" class="number">
              Prompt
            </th>
            <th scope="col" class="number">
              Cached
            </th>
            <th scope="col" class="number">
              Output
            </th>
            <th scope="col" class="number">
              Queued
            </th>
            <th scope="col" class="number">
              First token
            </th>
            <th scope="col" class="number">
              Took
            </th>
            <th scope="col">
              <span class="off-screen">Abort</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((line) => (
            <Row key={line.id} line={line} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ line }: { line: Line }) {
  return (
    <tr>
      <th scope="row">
        <a class="mono" href={href("requests", line.id)} title={line.id}>
          {shortId(line.id)}
        </a>
        <small>{line.kind === "embed" ? "embedding" : line.n > 1 ? `${line.n} choices` : ""}</small>
      </th>
      <td data-label="State">
        <State status={line.status} reason={line.finish_reason} />
      </td>
      <td class="number" data-label="Prompt">
        {count(line.num_prompt_tokens)}
      </td>
      <td class="number" data-label="Cached">
        {count(line.num_cached_tokens)}
      </td>
      <td class="number" data-label="Output">
        {count(line.num_output_tokens)}
      </td>
      <td class="number" data-label="Queued">
        {seconds(line.queue_s)}
      </td>
      <td class="number" data-label="First token">
        {seconds(line.time_to_first_token_s)}
      </td>
      <td class="number" data-label="Took">
        {seconds(line.took_s)}
      </td>
      <td class="action">
        {line.status !== "finished" && (
          <button type="button" class="quiet danger" aria-label={`Abort ${shortId(line.id)}`} onClick={() => void abortRequest(line.id)}>
            Abort
          </button>
        )}
      </td>
    </tr>
  );
}

/** An id's protocol and its first letters. */
export function shortId(id: string): string {
  return id.length > 22 ? `${id.slice(0, 18)}…` : id;
}

export function State({ status, reason }: { status: string; reason: string | null }) {
  const name = status === "finished" ? (reason ?? "finished") : status;
  const kind = status !== "finished" ? status : isBad(reason) ? "bad" : reason === "abort" ? "aborted" : "good";
  return <span class={`state ${kind}`}>{name.replaceAll("_", " ")}</span>;
}
