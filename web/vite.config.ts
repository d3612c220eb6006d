import { defineConfig, type Plugin } from "vite";

/** Every browser that the page supports reads woff2: the other kinds of KaTeX's fonts would only fill the package. */
const onlyWoff2: Plugin = {
  name: "only-woff2",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("katex") || !id.includes(".css")) return;
    return code.replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\(["'](?:woff|truetype)["']\)/g, "");
  },
};

/** The server's policy allows files of its own only: nothing is inlined, neither fonts nor scripts. */
export default defineConfig({
  plugins: [onlyWoff2],
  build: {
    outDir: "../src/headrace/server/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: {
    proxy: Object.fromEntries(
      ["/v1", "/metrics", "/version", "/ready", "/tokenize"].map((path) => [path, "http://127.0.0.1:8000"]),
    ),
  },
});
