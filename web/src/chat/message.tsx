import { useComputed } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, rate, seconds } from "../format";
import { Markdown } from "../markdown/view";
import { href } from "../route";
import { copyText } from "../ui/copy";
import { Icon, IconButton } from "../ui/icon";
import { memo } from "../ui/memo";
import type { Turn } from "../tree";
import { live } from "./answer";

export interface Actions {
  edit: (turn: Turn, text: string) => void;
  again: (turn: Turn) => void;
  branch: (turn: Turn) => void;
  show: (turnId: string) => void;
}

interface Props {
  turn: Turn;
  /** Ids of this turn and of those beside it, joined: a text, so that an unchanged message is not drawn again. */
  beside: string;
  isBusy: boolean;
  actions: Actions;
}

export const Message = memo((props: Props) => {
  const [isEditing, setEditing] = useState(false);
  const { turn, actions } = props;
  const name = turn.role === "user" ? "You" : "Model";
  return (
    <article class={`message ${turn.role}`} aria-label={name} data-turn={turn.id}>
      {isEditing ? (
        <Editor
          text={turn.text}
          onDone={(text) => {
            setEditing(false);
            if (text !== null) actions.edit(turn, text);
          }}
        />
      ) : (
        <>
          {turn.role === "user" ? <p class="said">{turn.text}</p> : <Answer turn={turn} onAgain={() => actions.again(turn)} />}
          <Footer {...props} onEdit={() => setEditing(true)} />
        </>
      )}
    </article>
  );
});

function Answer({ turn, onAgain }: { turn: Turn; onAgain: () => void }) {
  const growing = useComputed(() => live.value[turn.id]).value;
  const { text, thinking } = splitThinking(growing?.text ?? turn.text, growing?.thinking ?? turn.thinking ?? "");
  const isInterrupted = !growing && !turn.end;
  return (
    <>
      {thinking && (
        <details class="thinking">
          <summary>{growing && !text ? "Thinking…" : "Thoughts"}</summary>
          <Markdown text={thinking} isGrowing={!!growing && !text} />
        </details>
      )}
      {text ? <Markdown text={text} isGrowing={!!growing} /> : growing && !thinking && <Waiting />}
      {!growing && turn.end === "stop" && !text && !thinking && <p class="note">The model said nothing.</p>}
      {turn.end === "length" && <p class="note">The answer was cut: it reached its limit of tokens.</p>}
      {(turn.end === "stopped" || isInterrupted) && <p class="note">Stopped.</p>}
      {turn.warnings?.map((warning) => <p class="note">{warning}</p>)}
      {turn.end === "error" && (
        <div class="failure" role="alert">
          <Icon name="warn" />
          <p>{turn.error}</p>
          <button type="button" onClick={onAgain}>
            Try again
          </button>
        </div>
      )}
    </>
  );
}

/** Models that think aloud put it between <think> tags at the beginning. */
function splitThinking(text: string, thinking: string): { text: string; thinking: string } {
  if (!text.startsWith("<think>")) return { text, thinking };
  const end = text.indexOf("</think>");
  if (end < 0) return { text: "", thinking: text.slice(7).trim() };
  return { text: text.slice(end + 8).trimStart(), thinking: text.slice(7, end).trim() };
}

function Waiting() {
  return (
    <p class="dots" role="img" aria-label="Waiting for the first token">
      <span /> <span /> <span />
    </p>
  );
}

function Footer({ turn, beside, isBusy, actions, onEdit }: Props & { onEdit: () => void }) {
  const isOpen = useComputed(() => turn.id in live.value).value;
  if (isOpen) return null;
  return (
    <footer class="message-foot">
      <Siblings turn={turn} beside={beside.split(" ")} isBusy={isBusy} onShow={actions.show} />
      {turn.stats && <Speed turn={turn} />}
      <div class="message-actions">
        <IconButton icon="copy" label="Copy message" onClick={() => void copyText(turn.text, "Message copied")} />
        {turn.role === "user" ? (
          <IconButton icon="edit" label="Edit message" disabled={isBusy} onClick={onEdit} />
        ) : (
          <IconButton icon="again" label="Answer again" disabled={isBusy} onClick={() => actions.again(turn)} />
        )}
        <IconButton icon="branch" label="Continue in a new conversation" disabled={isBusy} onClick={() => actions.branch(turn)} />
      </div>
    </footer>
  );
}

function Siblings(props: { turn: Turn; beside: string[]; isBusy: boolean; onShow: (turnId: string) => void }) {
  const { turn, beside, isBusy, onShow } = props;
  if (beside.length < 2) return null;
  const at = beside.indexOf(turn.id);
  const step = (by: number) => onShow(beside[at + by]!);
  return (
    <div class="siblings" role="group" aria-label="Versions">
      <IconButton icon="left" label="Earlier version" disabled={isBusy || at === 0} onClick={() => step(-1)} />
      <span aria-label={`Version ${at + 1} of ${beside.length}`}>{`${at + 1}/${beside.length}`}</span>
      <IconButton icon="right" label="Later version" disabled={isBusy || at === beside.length - 1} onClick={() => step(1)} />
    </div>
  );
}

function Speed({ turn }: { turn: Turn }) {
  const { stats } = turn;
  const cached = stats!.cachedTokens ? `, ${count(stats!.cachedTokens)} of them cached` : "";
  const title = `${count(stats!.promptTokens)} prompt tokens${cached}; ${seconds(stats!.tookS)} in all`;
  return (
    <p class="speed" title={title}>
      {stats!.tokensPerS !== null && <span>{rate(stats!.tokensPerS)} tok/s</span>}
      <span>first token {seconds(stats!.firstTokenS)}</span>
      <span>{count(stats!.outputTokens)} tokens</span>
      {turn.requestId && <a href={href("requests", turn.requestId)}>life</a>}
    </p>
  );
}

function Editor({ text, onDone }: { text: string; onDone: (text: string | null) => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    area.current!.focus();
    area.current!.setSelectionRange(text.length, text.length);
  }, []);
  const send = () => {
    const value = area.current!.value.trim();
    onDone(value && value !== text ? value : null);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        aria-label="Edit message"
        rows={Math.min(12, text.split("\n").length + 1)}
        defaultValue={text}
        onKeyDown={(event) => {
          if (event.key === "Escape") onDone(null);
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      <div class="row end">
        <button type="button" class="quiet" onClick={() => onDone(null)}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Send
        </button>
      </div>
    </form>
  );
}
