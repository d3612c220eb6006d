import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { isReachable, models } from "../api";
import { plural } from "../format";
import { go, subject } from "../route";
import { defaults, find, isKept, isLoaded, save } from "../store";
import { branchAt, newConversation, children, pathOf, showing, type Conversation, type Turn } from "../tree";
import { Icon, IconButton } from "../ui/icon";
import { announcement, answer, ask, chosenModel, isAnswering, stop } from "./answer";
import { Composer } from "./composer";
import { Message, type Actions } from "./message";
import { Panel } from "./panel";

const IDEAS = [
  "Explain how a water mill works, in three sentences.",
  "Write a Python function that finds the median of a list.",
  "What is the derivative of $x^2 \\sin x$?",
];

/** The conversation that the next first message begins. It is not kept before something is said. */
const draft = signal(begun());

function begun(): Conversation {
  return { ...newConversation(), ...defaults() };
}

function keepSettings(conversation: Conversation): void {
  if (find(conversation.id)) {
    save(conversation);
    draft.value = begun();
  } else {
    draft.value = conversation;
  }
}

export function ChatView() {
  const conversation = find(subject.value) ?? draft.value;
  const isBusy = isAnswering(conversation.id);
  const path = pathOf(conversation);
  const send = (text: string) => {
    const parent = conversation.leaf;
    void ask(conversation, text, parent);
    if (conversation.id === draft.value.id) draft.value = begun();
    go("chat", conversation.id);
  };
  return (
    <section class="chat" aria-label="Chat">
      <Head conversation={conversation} />
      {path.length ? (
        <Messages conversation={conversation} path={path} isBusy={isBusy} />
      ) : (
        <Empty onIdea={send} isMissing={isLoaded.value && subject.value !== null && !find(subject.value)} />
      )}
      <div class="chat-foot">
        {!isReachable.value && <p class="banner bad">The server cannot be reached. What you write stays here.</p>}
        {!isKept.value && <p class="banner">This browser keeps nothing: conversations end with this page.</p>}
        <Composer conversationId={conversation.id} isBusy={isBusy} onSend={send} onStop={() => stop(conversation.id)} />
        <p class="hint">Enter sends, Shift+Enter begins a line, Esc stops. Models make mistakes.</p>
      </div>
      <p class="off-screen" role="status" aria-live="polite">
        {announcement.value}
      </p>
    </section>
  );
}

function Head({ conversation }: { conversation: Conversation }) {
  const [isOpen, setOpen] = useState(false);
  const changed = Object.keys(conversation.sampling).length + (conversation.system.trim() ? 1 : 0);
  return (
    <header class="view-head">
      <h1>{conversation.title || "New conversation"}</h1>
      {models.value.length > 1 ? (
        <select aria-label="Model" onChange={(event) => (chosenModel.value = event.currentTarget.value)}>
          {models.value.map((model) => (
            <option value={model.id}>{model.id}</option>
          ))}
        </select>
      ) : (
        models.value[0] && (
          <span class="chip" title={`up to ${plural(models.value[0].max_model_len, "token")}`}>
            {models.value[0].id}
          </span>
        )
      )}
      <div class="badge-holder">
        <IconButton icon="tune" label="System prompt and sampling" onClick={() => setOpen(true)} />
        {changed > 0 && <span class="badge">{changed}</span>}
      </div>
      <Panel conversation={conversation} isOpen={isOpen} onKeep={keepSettings} onClose={() => setOpen(false)} />
    </header>
  );
}

function Empty({ onIdea, isMissing }: { onIdea: (text: string) => void; isMissing: boolean }) {
  return (
    <div class="empty">
      <h2>{isMissing ? "This conversation is not in this browser." : "What would you like to know?"}</h2>
      <p>Conversations stay in this browser. They go nowhere but to the server that this page came from.</p>
      <div class="ideas">
        {IDEAS.map((idea) => (
          <button type="button" onClick={() => onIdea(idea)}>
            {idea.replaceAll("$", "").replace("x^2 \\sin x", "x² sin x")}
          </button>
        ))}
      </div>
    </div>
  );
}

/** Actions are made once for each conversation, and look it up when they act: messages are not drawn again for them. */
function actionsOf(id: string): Actions {
  const here = () => find(id)!;
  return {
    edit: (turn, text) => void ask(here(), text, turn.parent),
    again: (turn) => void answer(here(), turn.parent!),
    show: (turnId) => save(showing(here(), turnId)),
    branch: (turn) => {
      const made = branchAt(here(), turn.id);
      save(made);
      go("chat", made.id);
    },
  };
}

function Messages({ conversation, path, isBusy }: { conversation: Conversation; path: Turn[]; isBusy: boolean }) {
  const actions = useMemo(() => actionsOf(conversation.id), [conversation.id]);
  const beside = useMemo(() => children(conversation), [conversation]);
  const frame = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const top = useRef(0);
  const [isAway, setAway] = useState(false);
  const toEnd = () => frame.current?.scrollTo({ top: frame.current.scrollHeight });
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = frame.current!;
    const isNear = scrollHeight - scrollTop - clientHeight < 60;
    // Only a scroll upwards leaves the end: what grows below may be ahead of the scroll that follows it.
    if (isNear || scrollTop < top.current) isAtEnd.current = isNear;
    top.current = scrollTop;
    setAway(!isAtEnd.current);
  };
  useEffect(() => {
    isAtEnd.current = true;
    toEnd();
  }, [conversation.id, path.length]);
  useEffect(() => {
    const observer = new ResizeObserver(() => isAtEnd.current && toEnd());
    observer.observe(content.current!);
    return () => observer.disconnect();
  }, []);
  return (
    <div class="messages-frame">
      <div class="messages" ref={frame} onScroll={onScroll} role="log" aria-live="off" aria-label="Messages" tabIndex={0}>
        <div ref={content}>
          {path.map((turn) => (
            <Message
              key={turn.id}
              turn={turn}
              beside={beside
                .get(turn.parent)!
                .map((other) => other.id)
                .join(" ")}
              isBusy={isBusy}
              actions={actions}
            />
          ))}
        </div>
      </div>
      {isAway && (
        <button type="button" class="to-end" aria-label="To the end" title="To the end" onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}
