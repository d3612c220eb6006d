/** Markdown of a model as safe HTML: its own HTML stays text, math waits in data attributes, pictures become links. */
import DOMPurify from "dompurify";
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens, type TokensList } from "marked";

const BLOCK_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])/;
/** A dollar opens math only before a character that is no space, and closes it only before no digit: prices stay text. */
const INLINE_MATH = /^(?:\$(?![\s$])((?:\\.|[^\\\n$])+?)(?<!\s)\$(?!\d)|\\\(([^\n]+?)\\\))/;

function escaped(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

function mathElement(tex: string, isDisplay: boolean, tag: "div" | "span"): string {
  return `<${tag} class="math" data-tex="${escaped(tex)}" data-display="${isDisplay}">${escaped(tex)}</${tag}>`;
}

const blockMath: TokenizerAndRendererExtension = {
  name: "blockMath",
  level: "block",
  start: (src) => src.match(/\$\$|\\\[/)?.index,
  tokenizer(src) {
    const found = BLOCK_MATH.exec(src);
    if (found) return { type: "blockMath", raw: found[0], text: (found[1] ?? found[2])!.trim() };
  },
  renderer: (token) => mathElement(token.text, true, "div"),
};

const inlineMath: TokenizerAndRendererExtension = {
  name: "inlineMath",
  level: "inline",
  start: (src) => src.match(/\$|\\\(|\\\[/)?.index,
  tokenizer(src) {
    const display = BLOCK_MATH.exec(src);
    if (display) return { type: "inlineMath", raw: display[0], text: (display[1] ?? display[2])!.trim(), display: true };
    const found = INLINE_MATH.exec(src);
    if (found) return { type: "inlineMath", raw: found[0], text: (found[1] ?? found[2])!, display: false };
  },
  renderer: (token) => mathElement(token.text, token.display, "span"),
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [blockMath, inlineMath],
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => escaped(text),
    image: ({ href, text }: Tokens.Image) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    code({ text, lang }: Tokens.Code) {
      const language = escaped((lang ?? "").trim().split(/\s+/)[0]!.toLowerCase());
      const name = `<span>${language || "text"}</span>`;
      const copy = `<button type="button" class="quiet" data-copy>Copy</button>`;
      return `<div class="code"><div class="code-head">${name}${copy}</div><pre tabindex="0"><code data-language="${language}">${escaped(text)}</code></pre></div>`;
    },
  },
});

const purifier = DOMPurify(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "INPUT") node.setAttribute("aria-label", node.hasAttribute("checked") ? "done" : "open");
  // What scrolls sideways must be reached by keyboard.
  if (node.tagName === "TABLE" || node.getAttribute("data-display") === "true") node.setAttribute("tabindex", "0");
});

const ALLOWED = {
  ALLOWED_TAGS:
    "a blockquote br button code del div em h1 h2 h3 h4 h5 h6 hr input li ol p pre span strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: "href title target rel class type checked disabled start align tabindex data-tex data-display data-language data-copy".split(" "),
  /** DOMPurify asks this of every value: a scheme that is one of these, or none. */
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
};

export interface Block {
  key: string;
  html: string;
}

const known = new Map<string, string>();
const MOST_KNOWN = 2_000;

/** The top-level blocks of a text. While a text grows only its last blocks change; the others are found again. */
export function blocksOf(text: string): Block[] {
  const tokens = marked.lexer(text);
  const links = tokens.links;
  const hasLinks = Object.keys(links).length > 0;
  return tokens
    .filter((token) => token.type !== "space" && token.type !== "def")
    .map((token, index) => ({ key: String(index), html: htmlOf(token, links, hasLinks) }));
}

function htmlOf(token: Token, links: TokensList["links"], hasLinks: boolean): string {
  const found = hasLinks ? undefined : known.get(token.raw);
  if (found !== undefined) return found;
  const html = purifier.sanitize(marked.parser(Object.assign([token], { links }) as any), ALLOWED);
  if (known.size >= MOST_KNOWN) known.clear();
  if (!hasLinks) known.set(token.raw, html);
  return html;
}
