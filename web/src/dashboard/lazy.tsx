import { signal } from "@preact/signals";
import type { ComponentType } from "preact";

const loaded = signal<ComponentType | null>(null);

/** The dashboard with its charts is loaded when it is first asked for. */
export function Dashboard() {
  if (!loaded.value) void import("./view").then((module) => (loaded.value = module.default));
  const View = loaded.value;
  return View ? <View /> : <section class="page" aria-label="Dashboard" aria-busy="true" />;
}
