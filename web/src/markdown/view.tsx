import { memo } from "../ui/memo";
import { useLayoutEffect, useRef } from "preact/hooks";
import { copyText } from "../ui/copy";
import { blocksOf } from "./markdown";

/** A block of code that still grows is coloured up to this length; a longer one when it is complete. */
const MOST_LIVE_CHARS = 8_000;

export function Markdown({ text, isGrowing = false }: { text: string; isGrowing?: boolean }) {
  const blocks = blocksOf(text);
  return (
    <div class="markdown" onClick={copyCode}>
      {blocks.map((block, index) => (
        <BlockView key={block.key} html={block.html} isGrowing={isGrowing && index === blocks.length - 1} />
      ))}
    </div>
  );
}

const BlockView = memo(({ html, isGrowing }: { html: string; isGrowing: boolean }) => {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    element.current!.innerHTML = html;
    enrich(element.current!, isGrowing);
  }, [html, isGrowing]);
  return <div ref={element} />;
});

let highlighter: typeof import("./highlight") | null = null;
let mathematician: typeof import("./math") | null = null;

function enrich(root: HTMLElement, isGrowing: boolean): void {
  const codes = [...root.querySelectorAll<HTMLElement>("code[data-language]")].filter((code) => {
    return code.dataset.language && !(isGrowing && code.textContent!.length > MOST_LIVE_CHARS);
  });
  if (codes.length) void colour(codes);
  const formulas = [...root.querySelectorAll<HTMLElement>(".math")];
  if (formulas.length) void typeset(formulas);
}

async function colour(codes: HTMLElement[]): Promise<void> {
  if (!highlighter) highlighter = await import("./highlight");
  for (const code of codes) {
    const html = highlighter.highlighted(code.textContent ?? "", code.dataset.language!);
    if (html !== null) code.innerHTML = html;
  }
}

async function typeset(formulas: HTMLElement[]): Promise<void> {
  if (!mathematician) mathematician = await import("./math");
  for (const formula of formulas) mathematician.renderMath(formula);
}

function copyCode(event: MouseEvent): void {
  const button = (event.target as HTMLElement).closest<HTMLButtonElement>("[data-copy]");
  if (!button) return;
  const code = button.closest(".code")!.querySelector("code")!;
  void copyText(code.textContent ?? "", "Code copied");
}
