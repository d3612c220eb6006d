import { useEffect } from "preact/hooks";
import { ApiError, keyVersion } from "../api";

/** Calls `work` now and again `periodMs` after it ended, while the page is seen. One that lacks the key waits for it. */
export function usePoll(work: (signal: AbortSignal) => Promise<void>, periodMs: number, what: unknown = null): void {
  const version = keyVersion.value;
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const turn = async () => {
      try {
        if (!document.hidden) await work(controller.signal);
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) return;
      }
      if (!controller.signal.aborted) timer = window.setTimeout(turn, periodMs);
    };
    void turn();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [what, version]);
}
