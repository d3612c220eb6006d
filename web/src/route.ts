import { computed, signal } from "@preact/signals";

export type View = "chat" | "requests" | "dashboard";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

const parts = computed(() => hash.value.replace(/^#\/?/, "").split("/"));

export const view = computed<View>(() => {
  const name = parts.value[0];
  return name === "requests" || name === "dashboard" ? name : "chat";
});

/** What stands behind the view's name: a conversation's or a request's id. */
export const subject = computed<string | null>(() => {
  const rest = parts.value.slice(1).join("/");
  return rest ? decodeURIComponent(rest) : null;
});

export function href(name: View, id?: string | null): string {
  return id ? `#/${name}/${encodeURIComponent(id)}` : `#/${name}`;
}

export function go(name: View, id?: string | null): void {
  location.hash = href(name, id);
  hash.value = location.hash;
}
