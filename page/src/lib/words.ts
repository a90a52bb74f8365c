// Numbers and times in the reader's language.
import { language } from "../texts";

const whole = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat(language);
const signed = new Intl.NumberFormat(language, { signDisplay: "always", maximumFractionDigits: 1 });

export const percent = (share: number) => whole.format(share);
export const percent1 = (share: number) => tenth.format(share);
/** A chance: never "100 %" or "0 %", which nobody can promise. */
export const chance = (p: number) => (p > 0.994 ? `>${whole.format(0.99)}` : p < 0.006 ? `<${whole.format(0.01)}` : whole.format(p));
export const points = (difference: number) => signed.format(100 * difference);
export const number = (n: number) => plain.format(n);

const clock = new Intl.DateTimeFormat(language, { timeStyle: "short" });
const date = new Intl.DateTimeFormat(language, { dateStyle: "full" });
const both = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
export const time = (at: string) => clock.format(new Date(at));
export const day = (at: string) => date.format(new Date(at));
export const moment = (at: string) => both.format(new Date(at));

/** Colours of classes go by their place in the list. */
export const colour = (place: number) => (place < 0 ? "c0" : `c${(place % 9) + 1}`);
