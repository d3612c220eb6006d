import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";

const KEY = "headrace.theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme {
  const found = read(KEY);
  return found === "light" || found === "dark" ? found : "auto";
}

export const theme = signal<Theme>(stored());
export const isDark = signal(false);

function apply(): void {
  isDark.value = theme.value === "dark" || (theme.value === "auto" && prefersDark.matches);
  document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
}

prefersDark.addEventListener("change", apply);
effect(apply);
effect(() => write(KEY, theme.value));

export function nextTheme(): void {
  theme.value = { auto: "light", light: "dark", dark: "auto" }[theme.value] as Theme;
}

/** localStorage may be forbidden; then choices last as long as the page. */
export function read(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function write(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    return;
  }
}
