import { useRef, useState } from "preact/hooks";
import { ago } from "../format";
import { go, href, subject, view } from "../route";
import { byTime, conversations, exported, find, importText, remove, removeAll, save } from "../store";
import type { Conversation } from "../tree";
import { download } from "../ui/copy";
import { IconButton } from "../ui/icon";
import { say } from "../ui/toast";
import { isAnswering, stop } from "./answer";

/** Conversations by the time of their last change, found by their words. */
export function ConversationList() {
  const [wanted, setWanted] = useState("");
  const shown = byTime.value.filter((conversation) => holds(conversation, wanted.trim().toLowerCase()));
  return (
    <div class="conversations">
      {conversations.value.length > 5 && (
        <input
          type="search"
          aria-label="Find conversations"
          placeholder="Find"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      )}
      <ul aria-label="Conversations">
        {shown.map((conversation) => (
          <Entry key={conversation.id} conversation={conversation} />
        ))}
      </ul>
      {!shown.length && wanted && <p class="note">Nothing found.</p>}
    </div>
  );
}

function holds(conversation: Conversation, wanted: string): boolean {
  if (!wanted || conversation.title.toLowerCase().includes(wanted)) return true;
  return Object.values(conversation.turns).some((turn) => turn.text.toLowerCase().includes(wanted));
}

function Entry({ conversation }: { conversation: Conversation }) {
  const [isNaming, setNaming] = useState(false);
  const isCurrent = view.value === "chat" && subject.value === conversation.id;
  const title = conversation.title || "New conversation";
  if (isNaming) return <Naming conversation={conversation} onDone={() => setNaming(false)} />;
  return (
    <li data-current={isCurrent}>
      <a href={href("chat", conversation.id)} aria-current={isCurrent ? "page" : undefined} title={ago(conversation.changedAt)}>
        {isAnswering(conversation.id) && <span class="dot" aria-label="answering" />}
        {title}
      </a>
      <div class="entry-actions">
        <IconButton icon="edit" label={`Rename ${title}`} onClick={() => setNaming(true)} />
        <IconButton icon="download" label={`Export ${title}`} onClick={() => exportThese([conversation])} />
        <IconButton icon="trash" label={`Delete ${title}`} onClick={() => discard(conversation)} />
      </div>
    </li>
  );
}

function Naming({ conversation, onDone }: { conversation: Conversation; onDone: () => void }) {
  const keep = (title: string) => {
    if (title.trim()) save({ ...conversation, title: title.trim() });
    onDone();
  };
  return (
    <li>
      <input
        type="text"
        aria-label="Name of the conversation"
        defaultValue={conversation.title}
        ref={(element) => element?.focus()}
        onBlur={(event) => keep(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") event.currentTarget.blur();
          if (event.key === "Escape") onDone();
        }}
      />
    </li>
  );
}

function discard(conversation: Conversation): void {
  if (!confirm(`Delete “${conversation.title || "New conversation"}”?`)) return;
  const isCurrent = subject.value === conversation.id;
  stop(conversation.id);
  remove(conversation.id);
  if (isCurrent) go("chat");
}

function exportThese(which: Conversation[]): void {
  download(exported(which), `headrace-${new Date().toISOString().slice(0, 10)}.json`);
}

/** Import, export and removal of all conversations. */
export function Keeping() {
  const input = useRef<HTMLInputElement>(null);
  const take = async (file: File | undefined) => {
    if (!file) return;
    try {
      say(`Imported: ${importText(await file.text())}`);
    } catch (error) {
      say(error instanceof SyntaxError ? "This file is no JSON." : (error as Error).message);
    }
    input.current!.value = "";
  };
  const none = !conversations.value.length;
  return (
    <>
      <input
        ref={input}
        class="off-screen"
        type="file"
        accept="application/json,.json"
        tabIndex={-1}
        aria-label="File of conversations"
        onChange={(event) => void take(event.currentTarget.files?.[0])}
      />
      <IconButton icon="upload" label="Import conversations" onClick={() => input.current!.click()} />
      <IconButton icon="download" label="Export all conversations" disabled={none} onClick={() => exportThese(byTime.value)} />
      <IconButton icon="trash" label="Delete all conversations" disabled={none} onClick={discardAll} />
    </>
  );
}

function discardAll(): void {
  if (!confirm(`Delete all ${conversations.value.length} conversations?`)) return;
  for (const conversation of conversations.value) stop(conversation.id);
  removeAll();
  if (find(subject.value) === undefined) go("chat");
}
