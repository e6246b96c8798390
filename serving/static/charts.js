// Curves as SVG. Owns scales and marks; does not know what is drawn. Colours come from the style
// sheet by class, since the page's policy forbids inline styles.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const HEIGHT = 176;
const LEFT = 34;
const BOTTOM = 20;
const TOP = 12;

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function scales(times, top) {
  const first = times[0];
  const span = Math.max(times[times.length - 1] - first, 1);
  return {
    x: (time) => LEFT + ((time - first) / span) * (WIDTH - LEFT - 6),
    y: (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - BOTTOM - TOP),
  };
}

function frame(times, top, label) {
  const svg = node("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label,
  });
  const { x, y } = scales(times, top);
  for (const part of [0, 0.5, 1]) {
    const at = y(part * top);
    svg.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: at, y2: at }));
    const text = top >= 10 ? (part * top).toFixed(0) : (part * top).toFixed(1);
    svg.append(node("text", { class: "axis", x: 2, y: at + 4 }, text));
  }
  const minutes = (times[times.length - 1] - times[0]) / 60;
  const ago = minutes < 2 ? `${Math.round(minutes * 60)} s ago` : `${Math.round(minutes)} min ago`;
  svg.append(node("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, ago));
  svg.append(node("text", { class: "axis", x: WIDTH - 30, y: HEIGHT - 5 }, "now"));
  return { svg, x, y };
}

// lines: [{kind, values}], marks: [{time, kind, text}]
export function drawLines(place, times, lines, { top, marks = [], label }) {
  const { svg, x, y } = frame(times, top, label);
  for (const mark of marks) {
    const at = x(mark.time);
    svg.append(node("line", {
      class: `mark ${mark.kind}`, x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM,
    }));
    if (mark.text) svg.append(node("text", { class: "mark-text", x: at + 3, y: 10 }, mark.text));
  }
  for (const line of lines) {
    const path = [];
    line.values.forEach((value, i) => {
      if (value === null) return;
      const start = path.length === 0 || line.values[i - 1] === null;
      path.push(`${start ? "M" : "L"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`);
    });
    svg.append(node("path", { class: `line ${line.kind}`, d: path.join(" ") }));
  }
  place.replaceChildren(svg);
}

// bands: [{kind, values}], each on top of the one before
export function drawStack(place, times, bands, { top, label }) {
  const { svg, x, y } = frame(times, top, label);
  const floor = times.map(() => 0);
  for (const band of bands) {
    const upper = band.values.map((value, i) => floor[i] + (value ?? 0));
    const there = upper.map((value, i) => `${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`);
    const back = floor.map((value, i) => `${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`);
    const d = `M${there.join(" L")} L${back.reverse().join(" L")} Z`;
    svg.append(node("path", { class: `area ${band.kind}`, d }));
    upper.forEach((value, i) => { floor[i] = value; });
  }
  place.replaceChildren(svg);
}
