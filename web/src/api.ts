import { signal } from "@preact/signals";

const KEY = "headrace.api-key";

/** Set while the server refuses the key that the page has, or that it has none. */
export const needsKey = signal<"missing" | "wrong" | null>(null);
/** Whether the last call reached the server. */
export const isReachable = signal(true);
/** Counts the keys that were entered; what reads it runs again with the new one. */
export const keyVersion = signal(0);

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

export function apiKey(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** The key stays in this tab's session only. */
export function setApiKey(key: string): void {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    return;
  }
  needsKey.value = null;
  keyVersion.value += 1;
}

/** A response with a good status. Throws ApiError, and AbortError where the signal says so. */
export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    isReachable.value = false;
    throw new ApiError("The server cannot be reached. Is it still running?", 0, "unreachable");
  }
  isReachable.value = true;
  if (response.ok) return response;
  if (response.status === 401) needsKey.value = apiKey() ? "wrong" : "missing";
  throw await errorOf(response);
}

async function errorOf(response: Response): Promise<ApiError> {
  try {
    const { error } = await response.json();
    return new ApiError(String(error.message), response.status, error.code);
  } catch {
    return new ApiError(`The server answered ${response.status}.`, response.status);
  }
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await call(path, { signal })).json();
}

export async function postJson(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** The data of each server-sent event, without the last `[DONE]`. */
export async function* events(response: Response): AsyncGenerator<any> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop()!;
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      const data = block.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

export interface Model {
  id: string;
  max_model_len: number;
  default_sampling_params?: { temperature?: number };
}

export const models = signal<Model[]>([]);

/** What an answer gets where neither the conversation nor the checkpoint says otherwise: at 1 small models ramble. */
const CALM = 0.2;

export function defaultTemperature(model: string | undefined): number {
  const found = models.value.find(({ id }) => id === model) ?? models.value[0];
  return found?.default_sampling_params?.temperature ?? CALM;
}

export async function loadModels(signal?: AbortSignal): Promise<void> {
  models.value = (await getJson<{ data: Model[] }>("/v1/models", signal)).data;
}
