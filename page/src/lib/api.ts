// One way to the service: JSON in and out, problems (RFC 9457) as errors with the library's own sentence.
const ROOT = "api/v1";

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly requestId = "",
  ) {
    super(detail);
  }
}

let token: string | null = null;

/** The token against cross-site requests, which the service gives with `about`. */
export function useToken(csrf: string | null | undefined): void {
  token = csrf ?? null;
}

export type Sent = { json?: unknown; form?: FormData; ifMatch?: number; signal?: AbortSignal };

async function ask(method: string, path: string, sent: Sent): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (token && method !== "GET") headers["X-CSRF-Token"] = token;
  if (sent.json !== undefined) headers["Content-Type"] = "application/json";
  if (sent.ifMatch !== undefined) headers["If-Match"] = `"${sent.ifMatch}"`;
  const request: RequestInit = { method, headers, credentials: "same-origin" };
  if (sent.form) request.body = sent.form;
  else if (sent.json !== undefined) request.body = JSON.stringify(sent.json);
  if (sent.signal) request.signal = sent.signal;
  let answer: Response;
  try {
    answer = await fetch(`${ROOT}${path}`, request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "");
  }
  if (!answer.ok) throw await problem(answer);
  return answer;
}

export async function call<T>(method: string, path: string, sent: Sent = {}): Promise<T> {
  const answer = await ask(method, path, sent);
  return (answer.status === 204 ? null : await answer.json()) as T;
}

/** A file of the service, kept by the browser as a download; what goes wrong is said on the page. */
export async function download(path: string): Promise<void> {
  const answer = await ask("GET", path, {});
  const named = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = named?.[1] ?? "model";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function problem(answer: Response): Promise<Problem> {
  let detail = "";
  let id = answer.headers.get("x-request-id") ?? "";
  try {
    const body = (await answer.json()) as { detail?: unknown; title?: unknown; request_id?: unknown };
    detail = typeof body.detail === "string" ? body.detail : typeof body.title === "string" ? body.title : "";
    if (typeof body.request_id === "string") id = body.request_id;
  } catch {
    // no JSON: a proxy answered
  }
  return new Problem(answer.status, detail, id);
}

export const get = <T>(path: string, signal?: AbortSignal) => call<T>("GET", path, signal ? { signal } : {});

/** A path below a model; every part is escaped. */
export function inModel(model: string, ...parts: string[]): string {
  return ["/models", model, ...parts].map((part, i) => (i ? encodeURIComponent(part) : part)).join("/");
}

export const thumbnail = (model: string, picture: string) => `${ROOT}${inModel(model, "pictures", picture, "thumbnail")}`;
export const picture = (model: string, id: string) => `${ROOT}${inModel(model, "pictures", id)}`;
export const absolute = (path: string) => new URL(`${ROOT}${path}`, document.baseURI).href;
