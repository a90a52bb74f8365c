// What the page knows of the service, and everything that changes it.
import { SvelteSet } from "svelte/reactivity";
import { t } from "../texts";
import { Problem, type Sent, call, get, inModel, useToken } from "./api";
import { type Found, chunks, count } from "./files";
import type { About, Class, Classes, Job, Model, ModelItem, Models, Refused, Taught } from "./types";

export type Notice = { id: number; text: string; bad: boolean; undo?: { to: number; now: number } };
export type Waiting = { id: number; file: File; url: string };
export type Pending = { id: number; name: string; urls: string[]; done: number; total: number };

const AT_ONCE = 24; // pictures of one request: the first are known while the others travel
const SHOWN = 6_000; // ms that a notice stays
const LOOK = 4_000; // ms between looks for somebody else's changes
const REMEMBERED = "wdae-model";

let last = 0;
const nextId = () => ++last;

/** The taught classes of a model, all of them. */
async function added(model: string): Promise<Class[]> {
  const items: Class[] = [];
  for (;;) {
    const page = await get<Classes>(`${inModel(model, "classes")}?kind=added&limit=1000&offset=${items.length}`);
    items.push(...page.items);
    if (!page.items.length || items.length >= page.total) return items;
  }
}

class Store {
  about = $state.raw<About | null>(null);
  locked = $state(false); // the service asks for a key
  offline = $state(false);
  ready = $state(false);
  models = $state.raw<ModelItem[]>([]);
  model = $state.raw<Model | null>(null);
  classes = $state.raw<Class[]>([]);
  notices = $state<Notice[]>([]);
  said = $state("");
  refused = $state.raw<Refused[]>([]);
  pending = $state<Pending[]>([]);
  tray = $state.raw<Waiting[]>([]);
  readonly chosen = new SvelteSet<number>(); // pictures of the tray
  readonly selected = new SvelteSet<string>(); // pictures of classes

  get id(): string {
    return this.model?.id ?? "";
  }
  get revision(): number {
    return this.model?.revision ?? -1;
  }
  get mayTeach(): boolean {
    return this.about?.me.role === "teach" || this.about?.me.role === "admin";
  }
  get mayAdminister(): boolean {
    return this.about?.me.role === "admin";
  }
  place(name: string): number {
    return this.classes.findIndex((c) => c.name === name);
  }

  async start(): Promise<void> {
    try {
      const [about] = await Promise.all([get<About>("/about"), this.loadModels()]);
      this.about = about;
      useToken(about.csrf);
      this.locked = false;
      const kept = localStorage.getItem(REMEMBERED);
      const first = this.models.find((m) => m.id === kept) ?? this.models[0];
      if (first) await this.open(first.id);
      this.ready = true;
    } catch (error) {
      if (error instanceof Problem && (error.status === 401 || error.status === 403)) this.locked = true;
      else this.fail(error);
    }
  }

  async enter(key: string): Promise<void> {
    await call("POST", "/session", { json: { key } });
    await this.start();
  }

  async loadModels(): Promise<void> {
    this.models = (await get<Models>("/models")).items;
  }

  async open(id: string): Promise<void> {
    this.selected.clear();
    const [model, classes] = await Promise.all([get<Model>(inModel(id)), added(id)]);
    this.classes = classes;
    this.model = model;
    localStorage.setItem(REMEMBERED, id);
  }

  /** Ask for the model anew; what shows it follows its revision. */
  async refresh(): Promise<void> {
    if (!this.model) return;
    const now = await get<Model>(inModel(this.id));
    this.offline = false;
    if (now.revision === this.model.revision && now.name === this.model.name) return;
    this.classes = await added(now.id);
    this.model = now;
  }

  /** Look for changes of others as long as the page is seen. */
  watch(): () => void {
    const look = async () => {
      if (document.hidden || this.pending.length || !this.ready) return;
      try {
        if (this.offline && !this.model) await this.start();
        else await this.refresh();
      } catch (error) {
        this.offline = error instanceof Problem && (error.status === 0 || error.status === 503);
      }
    };
    const timer = setInterval(look, LOOK);
    return () => clearInterval(timer);
  }

  say(text: string): void {
    this.said = this.said === text ? `${text}\u00a0` : text; // said again, too
  }

  tell(text: string, undo?: Notice["undo"]): void {
    this.notice({ id: nextId(), text, bad: false, ...(undo ? { undo } : {}) });
  }

  fail(error: unknown): void {
    if (error instanceof Problem && error.status === 401) {
      this.locked = true; // the key was revoked, or the session has ended
    } else if (error instanceof Problem) {
      this.offline = error.status === 0 || error.status === 503;
      const text = error.message || (error.status === 0 ? t.errors.away : t.errors.unknown(error.status));
      this.notice({ id: nextId(), text: error.status === 412 ? t.errors.stale : text, bad: true });
    } else if (!(error instanceof DOMException && error.name === "AbortError")) {
      this.notice({ id: nextId(), text: String(error), bad: true });
    }
  }

  private notice(one: Notice): void {
    // One at a time, errors apart: only the last change can be taken back by its own button.
    this.notices = [...this.notices.filter((n) => n.bad && n.text !== one.text).slice(-2), one];
    this.say(one.text);
    setTimeout(() => this.dismiss(one.id), one.bad ? 2 * SHOWN : SHOWN);
  }

  dismiss(id: number): void {
    this.notices = this.notices.filter((n) => n.id !== id);
  }

  /** Run a change; afterwards the page shows the new revision and offers to take it back. */
  async change(text: string | null, work: () => Promise<unknown>): Promise<boolean> {
    const before = this.revision;
    try {
      await work();
      await this.refresh();
      if (text !== null) {
        const undo = { to: before, now: this.revision };
        this.tell(text, undo.now > before ? undo : undefined);
      }
      return true;
    } catch (error) {
      this.fail(error);
      await this.refresh().catch(() => undefined);
      return false;
    }
  }

  // Teaching

  /** What was dropped or chosen: folders name their pictures, loose ones wait in the tray, zips go as they are. */
  async take(found: Found, into?: string): Promise<void> {
    if (!count(found) && !found.zips.length) return this.tell(t.teach.nothingThere);
    if (into === undefined) this.wait(found.loose);
    else if (found.loose.length) await this.teach(found.loose, into);
    const named = [...found.named].map(([name, files]) => ({ name: into ?? name, files }));
    if (named.length) await this.teachMany(named);
    for (const zip of found.zips) await this.teachZip(zip);
  }

  wait(files: File[]): void {
    const fresh = files.map((file) => ({ id: nextId(), file, url: URL.createObjectURL(file) }));
    this.tray = [...this.tray, ...fresh];
    this.chosen.clear();
    for (const one of fresh) this.chosen.add(one.id);
    if (fresh.length) this.say(t.teach.waiting(this.tray.length));
  }

  /** Take pictures out of the tray; their files. */
  unwait(ids: Iterable<number>): File[] {
    const gone = new Set(ids);
    const files = this.tray.filter((w) => gone.has(w.id));
    for (const one of files) URL.revokeObjectURL(one.url);
    this.tray = this.tray.filter((w) => !gone.has(w.id));
    for (const id of gone) this.chosen.delete(id);
    return files.map((w) => w.file);
  }

  async teach(files: File[], name: string): Promise<void> {
    return this.teachMany([{ name, files }]);
  }

  async teachMany(named: { name: string; files: File[] }[]): Promise<void> {
    const before = this.revision;
    const taken = new Set<string>();
    let pictures = 0;
    let refused: Refused[] = [];
    const work = named
      .filter(({ files }) => files.length)
      .map(({ name, files }) => {
        const urls = files.slice(0, 12).map((file) => URL.createObjectURL(file));
        this.pending.push({ id: nextId(), name, urls, done: 0, total: files.length });
        return { name, files, shown: this.pending[this.pending.length - 1] as Pending };
      });
    for (const { name, files, shown } of work) {
      try {
        for (const some of chunks(files, AT_ONCE)) {
          const form = new FormData();
          form.append("class", name);
          for (const file of some) form.append("files", file, file.name);
          const taught = await call<Taught>("POST", inModel(this.id, "examples"), { form });
          for (const one of taught.added) taken.add(one.class);
          pictures += taught.added.length;
          refused = [...refused, ...taught.refused];
          shown.done += some.length;
          await this.refresh();
        }
      } catch (error) {
        this.fail(error);
        // A name that no class may have: the pictures wait for a better one.
        if (error instanceof Problem && error.status === 422) this.wait(files.slice(shown.done));
      }
      for (const url of shown.urls) URL.revokeObjectURL(url);
      this.pending = this.pending.filter((p) => p.id !== shown.id);
    }
    if (refused.length) this.refused = [...this.refused, ...refused];
    if (pictures) this.tell(t.teach.taught(pictures, [...taken]), { to: before, now: this.revision });
    if (refused.length) this.say(t.teach.refusedTitle(refused.length));
  }

  async teachZip(zip: File): Promise<void> {
    this.pending.push({ id: nextId(), name: zip.name, urls: [], done: 0, total: 0 });
    const shown = this.pending[this.pending.length - 1] as Pending;
    await this.change(t.teach.zipTaught(zip.name), async () => {
      const form = new FormData();
      form.append("kind", "import_zip");
      form.append("file", zip, zip.name);
      const job = await call<Job>("POST", inModel(this.id, "jobs"), { form });
      const end = await follow(job.id, (done, total) => Object.assign(shown, { done, total }));
      if (end.state !== "done") throw new Problem(422, end.message);
      const refused = end.result?.refused;
      if (Array.isArray(refused)) this.refused = [...this.refused, ...(refused as Refused[])];
    });
    this.pending = this.pending.filter((p) => p.id !== shown.id);
  }

  move(pictures: string[], to: string): Promise<boolean> {
    this.selected.clear();
    return this.change(t.teach.moved(pictures.length, to), () =>
      call("PATCH", inModel(this.id, "examples"), { json: { pictures, to } }),
    );
  }

  takeOut(pictures: string[], forever = false): Promise<boolean> {
    this.selected.clear();
    const text = forever ? t.teach.deleted(pictures.length) : t.teach.takenOut(pictures.length);
    return this.change(text, () => call("DELETE", inModel(this.id, "examples"), { json: { pictures, forever } }));
  }

  rename(one: Class, name: string): Promise<boolean> {
    return this.change(t.teach.renamed(one.name, name), () =>
      call("PATCH", inModel(this.id, "classes", one.id), { json: { name } }),
    );
  }

  merge(one: Class, into: Class): Promise<boolean> {
    return this.change(t.teach.merged(one.name, into.name), () =>
      call("POST", inModel(this.id, "classes", "merge"), { json: { from: [one.id], into: into.id } }),
    );
  }

  forget(one: Class, forever: boolean): Promise<boolean> {
    return this.change(forever ? t.teach.classDeleted(one.name) : t.teach.classTaken(one.name), () =>
      call("DELETE", `${inModel(this.id, "classes", one.id)}${forever ? "?forever=true" : ""}`),
    );
  }

  async undo(to?: number, now?: number): Promise<void> {
    const sent: Sent = { json: to === undefined ? {} : { to } };
    if (now !== undefined) sent.ifMatch = now;
    const text = to === undefined ? t.history.undone : t.history.wentBack(to);
    await this.change(text, () => call("POST", inModel(this.id, "undo"), sent));
  }

  async redo(): Promise<void> {
    await this.change(t.history.redone, () => call("POST", inModel(this.id, "redo")));
  }
}

/** Wait for a job, with its progress as it comes. */
export function follow(id: string, seen: (done: number, total: number) => void): Promise<Job> {
  return new Promise((done, failed) => {
    const look = async () => {
      try {
        const job = await get<Job>(`/jobs/${encodeURIComponent(id)}`);
        seen(job.done, job.total);
        if (["done", "failed", "cancelled"].includes(job.state)) done(job);
        else setTimeout(look, 300);
      } catch (error) {
        failed(error);
      }
    };
    void look();
  });
}

export const store = new Store();
