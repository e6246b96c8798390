// From counters at points in time to curves. Pure functions; knows no page.

const NAMES = {
  fast: "dvi_acceptance_rate{fast}",
  slow: "dvi_acceptance_rate{slow}",
  version: "dvi_adapter_version",
  tokens: "dvi_generated_tokens",
  rounds: "dvi_rounds",
  neural: "dvi_accepted_tokens{neural}",
  memory: "dvi_accepted_tokens{memory}",
};
const DRIFT = ["dvi_drift_events{data}", "dvi_drift_events{engine}"];
const WINDOW_S = 60;

export const times = (points) => points.map((point) => point.time_s);
export const values = (points, name) => points.map((point) => point[NAMES[name]]);

// For each point the growth of a counter over the window that ends there, and its seconds.
function growth(points, name) {
  let first = 0;
  return points.map((point) => {
    while (points[first].time_s < point.time_s - WINDOW_S) first += 1;
    const amount = point[NAMES[name]] - points[first][NAMES[name]];
    return { amount, seconds: point.time_s - points[first].time_s };
  });
}

export function perSecond(points) {
  return growth(points, "tokens").map(({ amount, seconds }) => (seconds > 0 ? amount / seconds : 0));
}

// Accepted tokens a round by source; null where no round was in the window.
export function perRound(points, source) {
  const rounds = growth(points, "rounds");
  return growth(points, source).map(({ amount }, i) =>
    rounds[i].amount > 0 ? amount / rounds[i].amount : null);
}

// Where the adapter version changed and where a drift counter rose.
export function marks(points) {
  const found = [];
  for (let i = 1; i < points.length; i += 1) {
    const [before, now] = [points[i - 1], points[i]];
    if (now[NAMES.version] !== before[NAMES.version]) {
      found.push({ time: now.time_s, kind: "version", text: `v${now[NAMES.version]}` });
    }
    if (DRIFT.some((name) => now[name] > before[name])) {
      found.push({ time: now.time_s, kind: "drift", text: "" });
    }
  }
  return found;
}
