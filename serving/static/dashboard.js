// The page's loop: fetch, keep an hour of points, draw. Knows no colour and no route.

import { refreshAdapters, startAdapters } from "./adapters.js";
import { getData, useKeys } from "./api.js";
import { drawLines, drawStack } from "./charts.js";
import { marks, perRound, perSecond, times, values } from "./curves.js";
import { startTryIt } from "./tryit.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 2000;
const MAX_POINTS = 1800;
const ADAPTERS_EVERY = 5; // polls

let series = "";
let points = []; // of that series
let polls = 0;
let shownVersion = null;

function say(text, bad = false) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

const two = (value) => (value === null || value === undefined ? "-" : value.toFixed(2));

function seconds(value) {
  if (value === null) return "-";
  return value < 0.1 ? value.toFixed(4) : value.toFixed(2);
}

function showCards(now) {
  const judged = now["dvi_judged_tokens{neural}"] + now["dvi_judged_tokens{memory}"];
  const rate = (name) => (judged > 0 ? now[`dvi_acceptance_rate{${name}}`] : null);
  const last = points.length - 1;
  const [neural, memory] = [perRound(points, "neural")[last], perRound(points, "memory")[last]];
  $("alpha-fast").textContent = two(rate("fast"));
  $("alpha-slow").textContent = two(rate("slow"));
  $("tokens-per-round").textContent = neural === null ? "-" : two(1 + neural + memory);
  $("speed").textContent = perSecond(points)[last].toFixed(1);
  $("adapter").textContent = now.dvi_adapter_version;
  $("load").textContent = `${now.dvi_running_requests}, ${now.dvi_queue_depth}`;
}

function showCurves() {
  const at = times(points);
  const [fast, slow] = [values(points, "fast"), values(points, "slow")];
  const events = marks(points);
  drawLines($("chart-alpha"), at, [{ kind: "slow", values: slow }, { kind: "fast", values: fast }], {
    top: 1, marks: events,
    label: `acceptance now ${two(fast[fast.length - 1])}, ${events.length} marks`,
  });
  const [neural, memory] = [perRound(points, "neural"), perRound(points, "memory")];
  const most = Math.max(1, ...neural.map((value, i) => (value ?? 0) + (memory[i] ?? 0)));
  const bands = [
    { kind: "target", values: neural.map((value) => (value === null ? 0 : 1)) },
    { kind: "neural", values: neural },
    { kind: "memory", values: memory },
  ];
  drawStack($("chart-round"), at, bands, {
    top: Math.ceil(1 + most), label: `tokens per round by source over ${at.length} points`,
  });
  const speed = perSecond(points);
  drawLines($("chart-speed"), at, [{ kind: "fast", values: speed }], {
    top: Math.max(1, Math.ceil(1.1 * Math.max(...speed))),
    label: `tokens per second, now ${speed[speed.length - 1].toFixed(1)}`,
  });
}

function fill(table, rows) {
  table.tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((text, i) => {
      const made = document.createElement(i === 0 ? "th" : "td");
      if (i === 0) made.scope = "row";
      made.textContent = text;
      row.append(made);
    });
    return row;
  }));
}

function showTables(data) {
  const words = (name) => name.replace(/^dvi_|_seconds$/g, "").replaceAll("_", " ");
  fill($("latency"), data.latency.map((row) => [
    words(row.name), seconds(row.p50), seconds(row.p95), seconds(row.p99), row.count]));
  const now = data.now;
  const sum = (name) => Object.entries(now)
    .filter(([key]) => key.startsWith(`${name}{`)).reduce((total, [, value]) => total + value, 0);
  $("content").textContent = data.content;
  fill($("learning"), [
    ["traces kept", `${now.dvi_replay_rows} (${(now.dvi_replay_bytes / 2 ** 20).toFixed(1)} MiB)`],
    ["traces not stored", sum("dvi_traces_dropped")],
    ["trainer", now.dvi_trainer_up ? "running" : "not running"],
    ["optimizer steps", now.dvi_trainer_steps],
    ["trainer's CPU time", `${now.dvi_trainer_cpu_seconds.toFixed(0)} s`],
    ["candidates promoted", now["dvi_gate_decisions{promoted}"]],
    ["candidates held back", sum("dvi_gate_decisions") - now["dvi_gate_decisions{promoted}"]],
  ]);
}

async function poll() {
  const since = points.length ? points[points.length - 1].time_s : 0;
  const data = await getData(series, since);
  const known = data.series === series ? points : []; // a server started anew counts anew
  points = [...known, ...data.points].slice(-MAX_POINTS);
  series = data.series;
  $("model").textContent = data.model;
  if (points.length) {
    showCards(data.now);
    showCurves();
  }
  showTables(data);
  say(`live, dvi ${data.version}, drafter ${data.drafter}`);
  if (polls % ADAPTERS_EVERY === 0 || data.now.dvi_adapter_version !== shownVersion) {
    shownVersion = data.now.dvi_adapter_version;
    $("keys").hidden = !(await refreshAdapters());
  }
  polls += 1;
}

async function loop() {
  if (!document.hidden) {
    try {
      await poll();
    } catch (error) {
      if (error.status === 401) $("keys").hidden = false;
      say(error.status ? error.message : "the server does not answer", true);
    }
  }
  setTimeout(loop, POLL_MS);
}

$("keys").addEventListener("submit", (event) => {
  event.preventDefault();
  useKeys($("api-key").value.trim(), $("admin-key").value.trim());
  polls = 0;
  poll().catch((error) => say(error.message, true));
});
startAdapters();
startTryIt();
loop();
