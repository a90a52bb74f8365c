// A language is one more file of the shape of en.ts, and one more line here.
import { en } from "./en";

export type Texts = typeof en;
const known: Record<string, Texts> = { en };
export const language = navigator.languages.find((tag) => known[tag.split("-")[0] ?? ""]) ?? "en";

/** Letters that turn the direction of what follows: a name must not turn the sentence around it. */
const turns = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const tame = (value: unknown): unknown =>
  typeof value === "string" ? value.replace(turns, "") : Array.isArray(value) ? value.map(tame) : value;

/** The texts, with every name that goes into a sentence tamed. */
function guarded<T>(texts: T): T {
  if (typeof texts === "function") return ((...values: unknown[]) => texts(...values.map(tame))) as T;
  if (Array.isArray(texts) || typeof texts !== "object" || texts === null) return texts;
  return Object.fromEntries(Object.entries(texts).map(([key, value]) => [key, guarded(value)])) as T;
}

export const t: Texts = guarded(known[language.split("-")[0] ?? "en"] ?? en);
