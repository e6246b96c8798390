// Calls to the server. Owns the keys, which live in this module's memory and nowhere else.

let apiKey = "";
let adminKey = "";

export function useKeys(api, admin) {
  apiKey = api;
  adminKey = admin;
}

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(key, body) {
  const all = {};
  if (key) all.Authorization = `Bearer ${key}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  return all;
}

async function refusal(reply) {
  let error = {};
  try {
    error = (await reply.json()).error ?? {};
  } catch {
    // A proxy in between answers in its own form.
  }
  return new Refused(reply.status, error.message ?? `HTTP ${reply.status}`, error.code);
}

async function send(path, key, body, signal) {
  const reply = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: headers(key, body),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

export async function getData(series, since) {
  return (await send(`/dashboard/data?series=${series}&since=${since}`, apiKey || adminKey)).json();
}

export async function getAdapters() {
  return (await send("/admin/adapters", adminKey || apiKey)).json();
}

export async function promote(version) {
  return (await send("/admin/adapters/promote", adminKey || apiKey, { version })).json();
}

export async function rollback() {
  return (await send("/admin/adapters/rollback", adminKey || apiKey, {})).json();
}

// Yields the JSON objects of an SSE answer.
export async function* stream(path, body, signal) {
  const reply = await send(path, apiKey || adminKey, body, signal);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const events = waiting.split(/\r?\n\r?\n/);
    waiting = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      if (event.startsWith("data:")) yield JSON.parse(data);
    }
  }
}
