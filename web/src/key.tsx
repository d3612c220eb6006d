import { useState } from "preact/hooks";
import { needsKey, setApiKey } from "./api";
import { Dialog } from "./ui/dialog";

/** Asks for the key when the server does. It stays in this tab. */
export function Key() {
  const [key, setKey] = useState("");
  const isWrong = needsKey.value === "wrong";
  const submit = (event: Event) => {
    event.preventDefault();
    setApiKey(key.trim());
    setKey("");
  };
  return (
    <Dialog title="API key" isOpen={needsKey.value !== null} onClose={() => (needsKey.value = null)}>
      <form class="panel" onSubmit={submit}>
        <p>This server answers only those who have its key. The key stays in this tab and is forgotten with it.</p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autoComplete="off"
            required
            autofocus
            value={key}
            aria-invalid={isWrong}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
          {isWrong && <small class="bad-text">The server does not accept this key.</small>}
        </label>
        <div class="row end">
          <button type="submit" class="primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
