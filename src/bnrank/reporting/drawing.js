// How the page draws: elements, colors that follow the color scheme, axes, traces. discovery.js and views.js come after it.
const DARK = matchMedia("(prefers-color-scheme: dark)");
const COARSE = matchMedia("(pointer: coarse)"); // there a drag scrolls the page
const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];
const MEMBERS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#3A9BD9", "#C98A00", "#444444"],
  dark: ["#5AB4F0", "#FF8A4C", "#2FCB9E", "#E59CC4", "#A5D8F7", "#F2B632", "#D0D0D0"],
};
const DASHES = ["solid", "dash", "dot", "dashdot"];
const redraws = [];

// ---- small things -------------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function select(text, options, onchange) {
  const list = make("select", { onchange }, ...options.map(([value, label]) => make("option", { value }, label)));
  return { list, label: make("label", {}, text, list) };
}

function fill(list, entries, chosen) {
  list.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  list.value = chosen;
}

const escapeText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(4))));
const last = (list) => list[list.length - 1];
const greatest = (values) => values.reduce((most, value) => (value !== null && value > most ? value : most), 0);

function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "grid", "line", "panel", "shade"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// The largest singular value has the strongest contrast with the background in either scheme.
function indexColor(i, count) {
  const t = count < 2 ? 0 : i / (count - 1);
  const at = (DARK.matches ? 1 - 0.72 * t : 0.86 * t) * (VIRIDIS.length - 1);
  const k = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return `rgb(${VIRIDIS[k].map((c, j) => Math.round(c + (at - k) * (VIRIDIS[k + 1][j] - c))).join(",")})`;
}
const memberColor = (i) => MEMBERS[DARK.matches ? "dark" : "light"][i % 7];

// ---- plots --------------------------------------------------------------------------------------------------------

function themedAxis(axis, t) {
  const title = typeof axis.title === "string" ? { text: axis.title } : axis.title;
  const colors = { gridcolor: t.grid, zerolinecolor: t.line, linecolor: t.line, tickcolor: t.line };
  return { ...colors, automargin: true, ...axis, title: { standoff: 8, ...title } };
}

function layout(x, y, more = {}) {
  const t = theme();
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: "system-ui, sans-serif", size: 13, color: t.ink },
    hoverlabel: { bgcolor: t.panel, bordercolor: t.line, font: { color: t.ink } },
    dragmode: COARSE.matches ? false : "zoom",
    margin: { l: 58, r: 14, t: 12, b: 46 }, colorway: MEMBERS[DARK.matches ? "dark" : "light"],
    ...more, xaxis: themedAxis(x, t), yaxis: themedAxis(y, t),
  };
}

// A plot follows the size of its box, whatever changes it: the window, a card that comes later, being shown again.
const RESIZED = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  if (target.offsetParent && target.data) Plotly.Plots.resize(target);
}));
function draw(box, traces, lay) {
  Plotly.react(box, traces, lay, { displayModeBar: false });
  RESIZED.observe(box);
}
const countAxis = (title, values) => ({
  title, tickformat: "d", dtick: Math.ceil(values.length / 14), tick0: 1, range: [values[0] - 0.5, last(values) + 0.5],
});
const layerAxis = (layers) => countAxis("layer", layers);
const stepAxis = () => ({ title: "step", tickformat: ",", nticks: innerWidth < 600 ? 4 : 6, tickangle: 0 });

// A logarithmic axis over positive values: decades if there are many, else 1, 2, 5.
function logAxis(title, values) {
  const low = Math.log10(values.reduce((a, b) => Math.min(a, b), values[0] ?? 1));
  const high = Math.log10(values.reduce((a, b) => Math.max(a, b), values[0] ?? 1));
  const span = high - low, room = Math.max(0.04 * span, 0.02);
  const ticks = span > 2.4 ? { dtick: Math.ceil(span / 6) } : span > 0.5 ? { dtick: "D2" } : { nticks: 5 };
  return { title, type: "log", range: [low - room, high + room], tickformat: "~g", ...ticks };
}

// Singular values from 0, or on a log axis from the least positive one, five decades at most.
function valueAxis(title, values, log) {
  const most = greatest(values), top = most > 0 ? most : 1;
  const least = values.reduce((low, value) => (value !== null && value > 0 && value < low ? value : low), top);
  return log ? logAxis(title, [Math.max(least, top * 1e-5), top]) : { title, range: [0, 1.06 * top], tickformat: top < 1e-3 ? ".1e" : "~g" };
}

// rows: one list of singular values per position of x; a line per index. On a log axis what vanishes leaves below.
function spectrumTraces(x, rows, log, most, xname) {
  const count = rows.reduce((n, row) => Math.max(n, row.length), 0);
  const floor = (most > 0 ? most : 1) * 1e-7;
  const shown = (value) => (value === null || value === undefined ? null : log ? Math.max(value, floor) : value);
  return Array.from({ length: count }, (_, i) => ({
    x, y: rows.map((row) => shown(row[i])), customdata: rows.map((row) => short(row[i])),
    mode: x.length > 40 ? "lines" : "lines+markers",
    line: { color: indexColor(i, count), width: 1.8 }, marker: { size: 5 }, name: `s${i + 1}`,
    hovertemplate: `${xname} %{x}<br>s<sub>${i + 1}</sub> = %{customdata}<extra></extra>`,
  })).reverse();
}

function threshold({ tolerance, log }, t) {
  return tolerance === null || (log && tolerance <= 0) ? [] : [dotted("y", tolerance, t)];
}
const dotted = (axis, value, t) => ({ type: "line", line: { color: t.muted, width: 1, dash: "dot" }, ...(axis === "y"
  ? { xref: "paper", x0: 0, x1: 1, y0: value, y1: value } : { yref: "paper", y0: 0, y1: 1, x0: value, x1: value }) });

function card(title, ...extra) {
  const plot = make("div", { class: "plot", role: "img", "aria-label": title });
  const heading = make("h3", {}, title);
  const onclick = () => Plotly.downloadImage(plot, {
    format: "svg", width: plot.clientWidth, height: plot.clientHeight, filename: heading.textContent.replace(/[^\w]+/g, "-"),
  });
  const save = make("button", { type: "button", class: "quiet", title: "Save this plot as SVG", onclick }, "SVG");
  const head = make("header", {}, heading, make("span", { class: "tools" }, ...extra, save));
  return { plot, heading, head, box: make("figure", { class: "card" }, head, plot) };
}

function indexKey(count) {
  const list = make("ul", { class: "key", "aria-label": "singular values" });
  const paint = () => {
    const n = count();
    list.replaceChildren(...Array.from({ length: n }, (_, i) => {
      const mark = make("i", {});
      mark.style.color = indexColor(i, n);
      return make("li", {}, mark, `s${i + 1}`);
    }));
  };
  return { list, paint };
}
