// The try-it box: streams one answer and marks each token by who proposed it.

import { Refused, stream } from "./api.js";

const $ = (id) => document.getElementById(id);
let running = null;

function chatBody() {
  return {
    messages: [{ role: "user", content: $("prompt").value }],
    max_tokens: Number($("max-tokens").value),
    temperature: Number($("temperature").value),
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: 0,
    dvi: { detail: true, log: $("keep").checked },
  };
}

// A base model has no chat template: the same prompt as a plain completion.
function textBody() {
  const { messages, top_logprobs: _top, logprobs: _chat, ...rest } = chatBody();
  return { ...rest, prompt: messages[0].content, logprobs: 0 };
}

function addToken(decoder, text, bytes, source) {
  const span = document.createElement("span");
  span.className = `token ${source}`;
  span.title = source === "target" ? "the target's own token" : `proposed by ${source}`;
  // Bytes of one character may be spread over tokens: the last one shows it.
  span.textContent = bytes ? decoder.decode(new Uint8Array(bytes), { stream: true }) : text;
  $("answer").append(span);
}

function show(choice, decoder) {
  const sources = choice.dvi?.sources ?? [];
  const entries = choice.logprobs?.content
    ?? (choice.logprobs?.tokens ?? []).map((token) => ({ token, bytes: null }));
  entries.forEach((entry, i) => addToken(decoder, entry.token, entry.bytes, sources[i] ?? "target"));
}

function summary(dvi) {
  const rate = dvi.acceptance_rate === null ? "nothing proposed"
    : `acceptance ${dvi.acceptance_rate.toFixed(2)}`;
  const length = dvi.mean_accepted_length === null ? "-" : dvi.mean_accepted_length.toFixed(2);
  return `${dvi.rounds} rounds, ${length} tokens a round, ${rate}, `
    + `adapter version ${dvi.adapter_versions[1]}, seed ${dvi.seed}`;
}

async function run(path, body, signal) {
  const decoder = new TextDecoder();
  for await (const chunk of stream(path, body, signal)) {
    if (chunk.error) throw new Refused(500, chunk.error.message, chunk.error.code);
    for (const choice of chunk.choices) show(choice, decoder);
    if (chunk.dvi) $("answer-note").textContent = summary(chunk.dvi);
  }
}

async function answer(signal) {
  try {
    await run("/v1/chat/completions", chatBody(), signal);
  } catch (error) {
    if (!(error instanceof Refused && error.code === "no_chat_template")) throw error;
    await run("/v1/completions", textBody(), signal);
  }
}

async function submit(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("answer").replaceChildren();
  $("answer-note").textContent = "answering";
  $("send").disabled = true;
  $("stop").disabled = false;
  try {
    await answer(running.signal);
  } catch (error) {
    $("answer-note").textContent = error.name === "AbortError" ? "stopped" : error.message;
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
}

export function startTryIt() {
  $("try").addEventListener("submit", submit);
  $("stop").addEventListener("click", () => running?.abort());
}
