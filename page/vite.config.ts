import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Names without a hash: what is shipped is compared with what the source builds, and a change reads as a change.
// The service sends an ETag, so a browser that has the file asks only whether it is still the same.
export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: process.env.WDAE_PAGE_OUT ?? "../src/wdae/serve/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
  server: { proxy: { "/api": process.env.WDAE_SERVICE ?? "http://127.0.0.1:8000" } },
});
