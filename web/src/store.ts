import { computed, signal } from "@preact/signals";
import { read, write } from "./theme";
import { newConversation, newId, type Conversation, type End, type Sampling, type Turn } from "./tree";

const DATABASE = "headrace";
const STORE = "conversations";
const DEFAULTS = "headrace.defaults";
const FORMAT = "headrace-conversations";
const ENDS: End[] = ["stop", "length", "stopped", "error"];

export const conversations = signal<Conversation[]>([]);
export const isLoaded = signal(false);
/** False where the browser keeps nothing: then conversations last as long as the page. */
export const isKept = signal(true);
export const byTime = computed(() => [...conversations.value].sort((a, b) => b.changedAt - a.changedAt));

let database: IDBDatabase | null = null;

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function open(): Promise<IDBDatabase> {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return settled(request);
}

/** Reads what was kept. What was said meanwhile, for a browser may take seconds to open its store, stays and is kept. */
export async function load(): Promise<void> {
  try {
    database = await open();
    const kept: Conversation[] = await settled(database.transaction(STORE).objectStore(STORE).getAll());
    const begun = conversations.value;
    conversations.value = [...kept.filter(({ id }) => !find(id)), ...begun];
    keep((store) => begun.forEach((conversation) => store.put(conversation)));
  } catch {
    isKept.value = false;
  }
  isLoaded.value = true;
}

function keep(write: (store: IDBObjectStore) => void): void {
  if (!database) return;
  try {
    const transaction = database.transaction(STORE, "readwrite");
    transaction.onabort = () => (isKept.value = false);
    write(transaction.objectStore(STORE));
  } catch {
    isKept.value = false;
  }
}

export function find(id: string | null): Conversation | undefined {
  return conversations.value.find((conversation) => conversation.id === id);
}

/** Puts a conversation in or replaces it. */
export function save(conversation: Conversation): void {
  const others = conversations.value.filter((other) => other.id !== conversation.id);
  conversations.value = [...others, conversation];
  keep((store) => store.put(conversation));
}

export function remove(id: string): void {
  conversations.value = conversations.value.filter((conversation) => conversation.id !== id);
  keep((store) => store.delete(id));
}

export function removeAll(): void {
  conversations.value = [];
  keep((store) => store.clear());
}

interface Defaults {
  system: string;
  sampling: Sampling;
}

export function defaults(): Defaults {
  try {
    return { system: "", sampling: {}, ...JSON.parse(read(DEFAULTS) ?? "{}") };
  } catch {
    return { system: "", sampling: {} };
  }
}

/** What new conversations begin with. */
export function setDefaults(values: Defaults): void {
  write(DEFAULTS, JSON.stringify(values));
}

export function exported(which: Conversation[]): Blob {
  const text = JSON.stringify({ format: FORMAT, version: 1, conversations: which }, null, 2);
  return new Blob([text], { type: "application/json" });
}

/** Reads what `exported` wrote; gives the number of conversations. Ids are made anew, so nothing is overwritten. */
export function importText(text: string): number {
  const found = JSON.parse(text);
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) {
    throw new Error("This file holds no exported conversations.");
  }
  const made = found.conversations.map(readConversation);
  for (const conversation of made) save(conversation);
  return made.length;
}

function readConversation(given: any): Conversation {
  const turns: Record<string, Turn> = {};
  for (const told of Object.values<any>(given.turns ?? {})) {
    const turn = readTurn(told);
    turns[turn.id] = turn;
  }
  for (const turn of Object.values(turns)) checkParents(turn, turns);
  const base = newConversation(String(given.system ?? ""), readSampling(given.sampling ?? {}));
  const leaf = given.leaf in turns ? given.leaf : null;
  return { ...base, id: newId(), title: String(given.title ?? ""), turns, leaf };
}

/** A file may hold anything: what is not of the kind that the page shows is left out. */
function readTurn(told: any): Turn {
  const text = (value: unknown) => (typeof value === "string" ? value : undefined);
  const id = text(told?.id);
  if (!id || text(told.text) === undefined) throw new Error("A turn of this file is broken.");
  return {
    id,
    parent: text(told.parent) ?? null,
    role: told.role === "user" ? "user" : "assistant",
    text: told.text,
    thinking: text(told.thinking),
    at: Number(told.at) || 0,
    model: text(told.model),
    end: ENDS.find((end) => end === told.end),
    error: text(told.error),
    requestId: text(told.requestId),
    stats: typeof told.stats === "object" && told.stats !== null ? told.stats : undefined,
  };
}

function readSampling(told: any): Sampling {
  const { stop, ...others } = told;
  const numbers = Object.entries(others).filter(([, value]) => typeof value === "number");
  const stops = Array.isArray(stop) ? { stop: stop.map(String) } : {};
  return { ...Object.fromEntries(numbers), ...stops };
}

function checkParents(turn: Turn, turns: Record<string, Turn>): void {
  const seen = new Set<string>();
  for (let at: Turn | undefined = turn; at; at = at.parent ? turns[at.parent] : undefined) {
    if (seen.has(at.id) || (at.parent && !(at.parent in turns))) throw new Error("The turns of this file form no tree.");
    seen.add(at.id);
  }
}
