// What plotly cannot do: controls that several charts share, the live rank threshold, and colors of the color scheme.
(async () => {
"use strict";
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const VALUES = new Uint8Array(128);
[...DIGITS].forEach((digit, i) => { VALUES[digit.charCodeAt(0)] = i; });
function unpack(id) { // base 85, five digits for four bytes, of a text compressed by zlib
  const text = document.getElementById(id).textContent, left = (5 - text.length % 5) % 5;
  const view = new DataView(new ArrayBuffer((text.length + left) / 5 * 4));
  for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
    let value = 0;
    for (let j = i; j < i + 5; j++) value = value * 85 + (j < text.length ? VALUES[text.charCodeAt(j)] : 84);
    view.setUint32(at, value);
  }
  const bytes = new Blob([view.buffer.slice(0, view.byteLength - left)]);
  return new Response(bytes.stream().pipeThrough(new DecompressionStream("deflate"))).text();
}
if (!window.DecompressionStream) {
  for (const root of document.querySelectorAll(".view")) root.textContent = "The plots need a browser of 2023 or later.";
  return;
}
const PAGE = JSON.parse(await unpack("bnrank-data"));
const library = document.createElement("script");
library.textContent = await unpack("bnrank-plotly");
document.head.append(library);
const DARK = matchMedia("(prefers-color-scheme: dark)"), WIDE = matchMedia("(min-width: 900px)");
const COARSE = matchMedia("(pointer: coarse)"); // there a drag scrolls the page
const groups = [];

const color = (value) => (DARK.matches && PAGE.dark[value]) || value;
function themed(value) {
  if (typeof value === "string") return color(value);
  if (Array.isArray(value)) return value.map(themed);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v)])) : value;
}
function put(object, path, value) {
  const names = path.split("."), end = names.pop();
  let at = object;
  for (const name of names) at = at[name] ??= {};
  at[end] = value;
}

class Group {
  constructor(root, data) {
    const controls = [...data.controls, ...data.charts.flatMap((chart) => chart.controls)];
    const state = Object.fromEntries(controls.map(({ name, chosen }) => [name, chosen]));
    Object.assign(this, data, { root, state, shown: false, timer: null });
    this.state.step = Math.max(0, this.steps.length - 1);
    this.boxes = [...root.querySelectorAll(".plot")];
    this.slider = root.querySelector("input[type=range]");
    for (const list of root.querySelectorAll("select[data-state]"))
      list.addEventListener("change", () => this.choose(list.dataset.state, +list.value));
    for (const button of root.querySelectorAll("button[data-pick]"))
      button.addEventListener("click", () => this.choose(button.dataset.pick, +button.dataset.value));
    root.querySelectorAll("button[data-save]").forEach((button, i) => button.addEventListener("click", () => this.save(i)));
    root.querySelector("input[data-threshold]")?.addEventListener("input", (event) => {
      this.threshold = Math.max(0, +event.target.value || 0);
      this.draw((chart) => chart.derived || chart.marks.includes("threshold"));
    });
    this.slider?.addEventListener("input", () => this.move(+this.slider.value));
    root.querySelector("button[data-play]")?.addEventListener("click", (event) => this.play(event.target));
  }

  // The position of a choice; a member that has stopped is shown in its last recorded state.
  at(name) {
    return name === "step" ? Math.min(this.state.step, this.ends[this.state.member] ?? Infinity) : this.state[name];
  }

  choose(name, value) {
    this.state[name] = value;
    for (const list of this.root.querySelectorAll(`select[data-state=${name}]`)) list.value = value;
    for (const button of this.root.querySelectorAll(`button[data-pick=${name}]`))
      button.setAttribute("aria-pressed", +button.dataset.value === value);
    this.draw((chart) => chart.derived || chart.changes.some(({ by }) => by.includes(name)));
  }

  // The slider redraws the spectra and, in the other charts, moves only the line that marks the step.
  move(step) {
    this.state.step = step;
    this.draw((chart) => chart.changes.some(({ by }) => by.includes("step")));
    this.charts.forEach((chart, i) => {
      if (chart.marks.includes("step"))
        Plotly.relayout(this.boxes[i], { "shapes[0].x0": this.steps[step], "shapes[0].x1": this.steps[step] });
    });
  }

  play(button) {
    const final = this.steps.length - 1;
    const stop = () => { clearInterval(this.timer); this.timer = null; button.textContent = "▶ play"; };
    if (this.timer) return stop();
    if (this.state.step >= final) this.move(0);
    button.textContent = "❚❚ pause";
    this.timer = setInterval(() => { if (this.state.step >= final) stop(); else this.move(this.state.step + 1); }, 90);
  }

  save(i) {
    const { clientWidth: width, clientHeight: height } = this.boxes[i];
    const filename = this.charts[i].heading.replace(/[^\w]+/g, "-");
    Plotly.downloadImage(this.boxes[i], { format: "svg", width, height, filename });
  }

  draw(which = () => true) {
    this.shown = true;
    this.charts.forEach((chart, i) => { if (which(chart)) this.drawOne(chart, this.boxes[i]); });
    if (!this.slider) return;
    const { step, member } = this.state, name = `step ${this.steps[step].toLocaleString("en")}`;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", name);
    this.root.querySelector("output").textContent = name;
    this.root.querySelector("[role=status]").textContent = step > this.ends[member] ? this.stopped[member] : "";
  }

  drawOne(chart, box) {
    let own = chart.narrow && !WIDE.matches ? chart.narrow : chart.figure;
    own = { data: own.data.map((trace) => structuredClone(trace)), layout: structuredClone(own.layout) };
    const card = box.closest(".card");
    chart.heading ??= card.querySelector("h3").textContent;
    for (const { target, by, values } of chart.changes) {
      const value = by.reduce((part, name) => part[this.at(name)], values);
      if (target === "figure") own = structuredClone(value);
      else if (target === "note") card.querySelector(".note").textContent = value;
      else if (target === "heading") card.querySelector("h3").textContent = chart.heading = value;
      else if (target.startsWith("layout.")) put(own, target, value);
      else value.forEach((entry, i) => put(own.data[i], target, entry));
    }
    if (chart.derived) this[chart.derived](own);
    if (own.layout.yaxis.type === "log" && Array.isArray(own.layout.yaxis.range)) own.data.forEach((trace) => this.floor(trace, own.layout));
    own.layout.shapes = [...this.marks(chart, own.layout), ...(own.layout.shapes ?? [])];
    if (COARSE.matches) own.layout.dragmode = false;
    if (own.layout.height) box.style.height = `${own.layout.height}px`;
    const { data, layout } = themed(own);
    Plotly.react(box, data, layout, { displayModeBar: false });
    RESIZED.observe(box);
  }

  // On a logarithmic axis what vanishes leaves below; the hover text keeps the value.
  floor(trace, { yaxis: { range } }) {
    if (!Array.isArray(trace.y) || trace.type === "heatmap") return;
    const least = 10 ** (range[0] - 2);
    if (trace.hovertemplate?.includes("%{y")) {
      trace.customdata = trace.y.map((value) => (value === null ? null : Number(value.toPrecision(4))));
      trace.hovertemplate = trace.hovertemplate.replace(/%\{y[^}]*\}/, "%{customdata}");
    }
    trace.y = trace.y.map((value) => (value === null ? null : Math.max(value, least)));
  }

  marks(chart, layout) {
    const line = { color: chart.derived === "ranks" ? "#fff" : "#5b6168", width: 1.2, dash: "dot" }, step = this.steps[this.state.step];
    const shapes = { step: { type: "line", yref: "paper", y0: 0, y1: 1, x0: step, x1: step, line } };
    const level = this.threshold, hidden = level === null || (layout.yaxis.type === "log" && level <= 0);
    if (!hidden) shapes.threshold = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line };
    return chart.marks.filter((name) => name === "threshold" ? !hidden : this.steps.length).map((name) => shapes[name]);
  }

  // Values [step][trace][layer] of the member: what the chart of spectra shows.
  spectra() {
    const { values } = this.charts.flatMap((chart) => chart.changes).find(({ by }) => by.join() === "step,member");
    return values.map((members) => members[this.state.member]).slice(0, this.ends[this.state.member] + 1);
  }

  // The number of values above the threshold in every layer at every step.
  ranks({ data: [map] }) {
    const steps = this.spectra(), none = this.steps.slice(steps.length).map(() => null);
    const count = (lines, layer) => {
      const present = lines.map((line) => line[layer]).filter((value) => value !== null);
      return present.length ? present.filter((value) => value > this.threshold).length : null;
    };
    map.z = map.y.map((_, layer) => [...steps.map((lines) => count(lines, layer)), ...none]);
    map.zmax = map.z.flat().reduce((most, value) => Math.max(most, value ?? 0), 1);
  }

  // The values of one layer over the steps.
  layer({ data }) {
    const steps = this.spectra();
    data.forEach((trace, i) => { trace.y = steps.map((lines) => lines[i][this.state.layer]); });
  }
}

// A plot follows the size of its box, whatever changes it: the window, a card that comes later, being shown again.
const RESIZED = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  if (target.offsetParent && target.data) Plotly.Plots.resize(target);
}));

for (const [id, view] of Object.entries(PAGE.views)) {
  const root = document.getElementById(id), folded = root.closest("details:not([open])");
  const roots = [...root.querySelectorAll(".group")];
  const made = view.groups.map((data, i) => new Group(roots[i], data));
  groups.push(...made);
  const choice = root.querySelector("select[data-group]");
  const show = () => {
    roots.forEach((part, i) => { part.hidden = i !== +(choice?.value ?? 0); });
    const chosen = made[+(choice?.value ?? 0)];
    if (!chosen.shown) chosen.draw();
  };
  choice?.addEventListener("change", show);
  if (folded) folded.addEventListener("toggle", show, { once: true }); else show(); // folded away: once it is opened
}
const paint = () => document.querySelectorAll("i[data-color]").forEach((mark) => { mark.style.color = color(mark.dataset.color); });
paint();
DARK.addEventListener("change", () => { paint(); groups.filter(({ shown }) => shown).forEach((group) => group.draw()); });
WIDE.addEventListener("change", () => groups.filter(({ shown }) => shown).forEach((group) => group.draw((chart) => chart.narrow)));
})();
