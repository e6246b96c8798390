// The list of adapter versions and the two acts on it, each behind a question.

import { getAdapters, promote, rollback } from "./api.js";

const $ = (id) => document.getElementById(id);

function cell(row, text, kind = "td") {
  const made = document.createElement(kind);
  if (kind === "th") made.scope = "row";
  made.textContent = text;
  row.append(made);
  return made;
}

// What the gate decided by; `dvi adapters show N` has all the rest.
const DECIDING = /^(?!train).*(agreement|accept|gate_confidence$)/;

function measured(metrics) {
  return Object.entries(metrics).filter(([name]) => DECIDING.test(name))
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${Number(value).toFixed(2)}`)
    .join(", ") || "-";
}

function date(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString() : "-";
}

async function act(question, work) {
  if (!window.confirm(question)) return;
  try {
    await work();
    await refreshAdapters();
  } catch (error) {
    $("adapters-note").textContent = error.message;
  }
}

function versionRow(version, current) {
  const row = document.createElement("tr");
  const live = version.version === current;
  row.className = live ? "live" : "";
  cell(row, version.version, "th");
  cell(row, version.parent ?? "-");
  cell(row, date(version.created_s));
  cell(row, version.rows_trained ?? "-");
  cell(row, measured(version.metrics ?? {}));
  const place = cell(row, live ? "in service" : "");
  if (!live) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `Promote ${version.version}`;
    button.addEventListener("click", () => act(
      `Put adapter version ${version.version} into service? Answers stay the same; speed may change.`,
      () => promote(version.version),
    ));
    place.append(button);
  }
  return row;
}

export async function refreshAdapters() {
  let data;
  try {
    data = await getAdapters();
  } catch (error) {
    const keyless = error.status === 401 || error.status === 403;
    $("adapters-note").textContent = keyless
      ? "The list and its two acts want the admin key." : error.message;
    $("rollback").disabled = true;
    if (keyless) $("adapters").tBodies[0].replaceChildren();
    return keyless;
  }
  const untrained = { version: 0, parent: null, created_s: 0, rows_trained: null };
  const versions = [...data.versions].reverse();
  const rows = [...versions, untrained].map((version) => versionRow(version, data.current));
  $("adapters").tBodies[0].replaceChildren(...rows);
  const onTrial = `Version ${data.canary} drafts some rounds on trial, version ${data.live} the others.`;
  if (data.canary) $("adapters-note").textContent = onTrial;
  else $("adapters-note").textContent = data.current === data.live
    ? `Version ${data.current} is in service.`
    : `Version ${data.current} is in service; version ${data.live} drafts until it is taken over.`;
  $("rollback").disabled = data.current === 0;
  return false;
}

export function startAdapters() {
  $("rollback").addEventListener("click", () => act(
    "Roll back to the version that was in service before?", rollback));
}
