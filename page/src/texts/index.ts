// A language is one more file of the shape of en.ts, and one more line here.
import { en } from "./en";

export type Texts = typeof en;
const known: Record<string, Texts> = { en };
export const language = navigator.languages.find((tag) => known[tag.split("-")[0] ?? ""]) ?? "en";
export const t: Texts = known[language.split("-")[0] ?? "en"] ?? en;
