import { signal } from "@preact/signals";

const message = signal("");
let timer = 0;

/** Says something for three seconds, to screen readers too. */
export function say(text: string): void {
  message.value = text;
  clearTimeout(timer);
  timer = window.setTimeout(() => (message.value = ""), 3_000);
}

export function Toast() {
  return (
    <div class="toast" role="status" aria-live="polite" data-shown={message.value !== ""}>
      {message.value}
    </div>
  );
}
