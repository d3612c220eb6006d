import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { isReachable, loadModels, models } from "./api";
import { ConversationList, Keeping } from "./chat/list";
import { ChatView } from "./chat/view";
import { Dashboard } from "./dashboard/lazy";
import { Key } from "./key";
import { RequestsView } from "./requests/view";
import { go, href, subject, view, type View } from "./route";
import { nextTheme, theme } from "./theme";
import { Icon, IconButton, type IconName } from "./ui/icon";
import { usePoll } from "./ui/poll";
import { Toast } from "./ui/toast";

const VIEWS: [View, string, IconName][] = [
  ["chat", "Chat", "chat"],
  ["requests", "Requests", "list"],
  ["dashboard", "Dashboard", "chart"],
];
const THEMES = { auto: ["auto", "Colours: as the system"], light: ["sun", "Colours: light"], dark: ["moon", "Colours: dark"] } as const;

/** Whether the side bar lies over a narrow page. */
const isSideOpen = signal(false);

/** Until they are known, and again while the server cannot be reached. */
async function askForModels(abort: AbortSignal): Promise<void> {
  if (!models.value.length || !isReachable.value) await loadModels(abort);
}

export function App() {
  usePoll(askForModels, 3_000);
  useEffect(() => {
    isSideOpen.value = false;
    document.title = `${VIEWS.find(([name]) => name === view.value)![1]} · Headrace`;
  }, [view.value, subject.value]);
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        To the content
      </a>
      <div class="shell" data-side={isSideOpen.value}>
        <Side />
        <div class="veil" onClick={() => (isSideOpen.value = false)} />
        <main id="main" tabIndex={-1}>
          <IconButton icon="menu" label="Menu" class="menu" onClick={() => (isSideOpen.value = true)} />
          {view.value === "chat" && <ChatView />}
          {view.value === "requests" && <RequestsView />}
          {view.value === "dashboard" && <Dashboard />}
        </main>
      </div>
      <Key />
      <Toast />
    </>
  );
}

function Side() {
  return (
    <nav class="side" aria-label="Views and conversations">
      <div class="side-head">
        <a class="brand" href={href("chat")}>
          <img src="/favicon.svg" alt="" width="26" height="26" />
          Headrace
        </a>
        <IconButton icon="close" label="Close menu" class="side-close" onClick={() => (isSideOpen.value = false)} />
      </div>
      <ul class="views">
        {VIEWS.map(([name, label, icon]) => (
          <li>
            <a href={href(name)} aria-current={view.value === name ? "page" : undefined}>
              <Icon name={icon} />
              {label}
            </a>
          </li>
        ))}
      </ul>
      <button type="button" class="new" onClick={begin} title="Ctrl+Shift+O">
        <Icon name="plus" />
        New conversation
      </button>
      <ConversationList />
      <div class="side-foot">
        <Keeping />
        <span class="spring" />
        <IconButton icon={THEMES[theme.value][0]} label={THEMES[theme.value][1]} onClick={nextTheme} />
      </div>
    </nav>
  );
}

function begin(): void {
  go("chat");
  isSideOpen.value = false;
  document.getElementById("prompt")?.focus();
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")!.focus();
}

/** Ctrl+Shift+O begins a conversation, / goes to the message, Escape closes the side bar. */
function onKey(event: KeyboardEvent): void {
  const isTyping = (event.target as HTMLElement).matches("input, textarea, select");
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    begin();
  } else if (event.key === "/" && !isTyping && view.value === "chat") {
    event.preventDefault();
    document.getElementById("prompt")?.focus();
  } else if (event.key === "Escape") {
    isSideOpen.value = false;
  }
}
