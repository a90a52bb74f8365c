// Short names for what the service sends.
export type Role = "read" | "teach" | "admin";
export type About = {
  version: string; me: { name: string; role: Role }; csrf: string | null;
  limits: Record<string, number>;
};
export type ModelItem = { id: string; name: string; revision: number; base_classes: number; added: number };
export type Model = {
  id: string; name: string; revision: number; base_classes: number; added: unknown[];
  novel_share: number | null; backbone: unknown; starting: string;
};
export type Class = { id: string; name: string; kind: "added" | "base"; examples: number; cover: string | null };
export type Added = { picture: string; class: string; file: string };
export type Refused = { file: string; reason: string };
export type Taught = { revision: number; added: Added[]; refused: Refused[]; notes: string[] };
export type Example = { picture: string };
export type Chance = { class: string; kind: string; probability: number };
export type Near = { picture: string; class: string; cosine: number };
export type Prediction = {
  revision: number; prediction: string; unknown: boolean; probabilities: Chance[]; nearest: Near[];
};
export type Explanation = { sentences: string[] };
export type ClassInsight = {
  class: string; id: string; examples: number; expected: { now: number; more: number } | null;
  enough: string; confused_with: { class: string; share: number }[];
  strays: { picture: string; looks_like: string | null }[];
};
export type Insight = { classes: ClassInsight[]; most_needed: string | null };
export type MapPoint = { class: string; kind: "added" | "base"; x: number; y: number };
export type Changed = { picture?: string | null; label: string; before: string; now: string };
export type Cost = {
  base_before: number | null; base_now: number | null; pictures: number; changed_total: number;
  changed: Changed[]; confusions: { class: string; pictures: number }[];
};
export type Revision = { number: number; at: string; who: string; action: string; sentence: string };
export type NextPicture = { index: number; file: string; prediction: string; probability: number; unknown: boolean };
