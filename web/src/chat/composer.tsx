import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../ui/icon";

interface Props {
  conversationId: string;
  isBusy: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
}

const drafts = new Map<string, string>();

/** Enter sends, Shift+Enter begins a line, Escape stops the answer. What was not sent stays with its conversation. */
export function Composer({ conversationId, isBusy, onSend, onStop }: Props) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(drafts.get(conversationId) ?? "");
  useEffect(() => {
    setText(drafts.get(conversationId) ?? "");
    if (matchMedia("(hover: hover)").matches) area.current!.focus();
  }, [conversationId]);
  useLayoutEffect(() => {
    area.current!.style.height = "auto";
    area.current!.style.height = `${Math.min(area.current!.scrollHeight, 220)}px`;
  }, [text]);
  const change = (value: string) => {
    drafts.set(conversationId, value);
    setText(value);
  };
  const send = () => {
    if (isBusy || !text.trim()) return;
    change("");
    onSend(text.trim());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape" && isBusy) onStop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        id="prompt"
        rows={1}
        value={text}
        aria-label="Message"
        placeholder="Ask something"
        onInput={(event) => change(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {isBusy ? (
        <button type="button" class="send stop" aria-label="Stop" title="Stop (Esc)" onClick={onStop}>
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!text.trim()}>
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}
