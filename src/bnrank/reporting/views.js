// What the page draws: histories, profiles and ready-made figures, from the data that stands in the page.
const DATA = JSON.parse(document.getElementById("bnrank-data").textContent);

// ---- a history: curves, spectra at a step, ranks over steps, one layer over steps ----------------------------------

const rank = (row, tolerance) => (row.length ? row.filter((s) => s !== null && s > tolerance).length : null);
const stepName = (step) => `step ${Number(step).toLocaleString("en")}`;

// The controls and cards of a history; `act` holds what they do.
function historyParts(root, sets, act) {
  const scales = [["linear", "linear"], ["log", "log"]];
  const parts = {
    set: select("show", sets.map((s, i) => [i, s.label]), act.set),
    member: select("member", [], act.member),
    scale: select("scale", scales, act.scale),
    threshold: make("input", { type: "number", min: 0, step: "any", oninput: act.threshold }),
    slider: make("input", { type: "range", min: 0, "aria-label": "training step", oninput: act.step }),
    readout: make("output", {}),
    play: make("button", { type: "button", onclick: act.play }, "▶ play"),
    curve: select("", [], act.curve),
    layer: select("layer", [], act.layer),
    members: make("ul", { class: "key", "aria-label": "members" }),
    keys: [indexKey(act.width), indexKey(act.width)],
    stopped: make("p", { class: "note", role: "status" }),
    notes: make("p", { class: "note" }),
  };
  parts.curve.list.setAttribute("aria-label", "quantity");
  parts.curves = card("Training curves", parts.curve.label);
  parts.spectra = card("Weight spectra");
  parts.ranks = card("Rank per layer over training");
  parts.ranks.plot.classList.add("tall");
  parts.single = card("One layer over training", parts.layer.label);
  parts.curves.box.append(parts.members);
  parts.spectra.box.append(parts.keys[0].list, parts.stopped);
  parts.single.box.append(parts.keys[1].list);
  parts.tolerance = make("label", {}, "rank counts values above", parts.threshold);
  parts.timeline = make("div", { class: "timeline" }, parts.play, parts.slider, parts.readout);
  const controls = [sets.length > 1 ? parts.set.label : null, parts.member.label, parts.scale.label, parts.tolerance];
  root.append(
    make("div", { class: "controls" }, ...controls),
    parts.timeline,
    make("div", { class: "cards" }, parts.curves.box, parts.spectra.box, parts.ranks.box, parts.single.box),
    parts.notes);
  return parts;
}

function drawCurves({ set, state, parts, now, pick }) {
  const values = set.curves[state.curve] || [];
  const positive = values.flat().filter((v) => v > 0);
  const traces = values.map((y, i) => ({
    x: set.curveSteps, y: y.map((v) => (v > 0 ? v : null)), mode: "lines", name: set.members[i].name,
    line: { color: memberColor(i), dash: DASHES[Math.floor(i / 7) % 4], width: i === state.member ? 3 : 1.4 },
    opacity: i === state.member ? 1 : 0.6,
    hovertemplate: `${escapeText(set.members[i].name)}<br>step %{x}<br>%{y:.4g}<extra></extra>`,
  }));
  draw(parts.curves.plot, traces, layout(stepAxis(), logAxis(set.titles[state.curve], positive), { shapes: now }));
  parts.members.replaceChildren(...set.members.map((m, i) => {
    const mark = make("i", {});
    mark.style.color = memberColor(i);
    mark.style.borderTopStyle = ["solid", "dashed", "dotted", "dashed"][Math.floor(i / 7) % 4];
    const text = m.name + (["diverged", "interrupted"].includes(m.status) ? ` (${m.status})` : "");
    const attributes = { type: "button", "aria-pressed": i === state.member, title: m.facts, onclick: () => pick(i) };
    return make("li", {}, make("button", attributes, mark, text));
  }));
}

function drawSpectra({ set, state, parts, end, theme: t }) {
  const at = Math.min(state.at, end), { name, status } = set.members[state.member];
  const all = set.spectra.flatMap((step) => step[state.member].flat()), most = greatest(all);
  parts.slider.value = state.at;
  parts.readout.textContent = stepName(set.steps[state.at]);
  parts.slider.setAttribute("aria-valuetext", parts.readout.textContent);
  parts.stopped.textContent = state.at <= end ? ""
    : `${name} stopped (${status || "no later values"}); its last recorded state, ${stepName(set.steps[end])}, is shown.`;
  parts.spectra.heading.textContent = `Weight spectra at ${stepName(set.steps[at])}`;
  draw(parts.spectra.plot, spectrumTraces(set.layers, set.spectra[at][state.member], state.log, most, "layer"),
    layout(layerAxis(set.layers), valueAxis("singular value of W", all, state.log), { shapes: threshold(state, t) }));
}

function drawRanks({ set, state, parts, now }) {
  const z = set.layers.map((_, l) => set.spectra.map((step) => rank(step[state.member][l] || [], state.tolerance)));
  const highest = Math.max(1, greatest(z.flat()));
  const bar = { thickness: 12, outlinewidth: 0, tickformat: "d" };
  const trace = {
    type: "heatmap", x: set.steps, y: set.layers, z, zmin: 0, zmax: highest, colorscale: "Cividis", hoverongaps: false,
    colorbar: { ...bar, dtick: Math.ceil(highest / 6), title: { text: "rank", side: "top" } },
    hovertemplate: "step %{x}<br>layer %{y}<br>rank %{z}<extra></extra>",
  };
  const y = { ...layerAxis(set.layers), showgrid: false };
  const shapes = now.map((line) => ({ ...line, line: { color: "#fff", width: 1.5, dash: "dot" } }));
  draw(parts.ranks.plot, [trace], layout({ ...stepAxis(), showgrid: false }, y, { shapes }));
}

function drawLayer({ set, state, parts, now, end, theme: t }) {
  const rows = set.spectra.slice(0, end + 1).map((step) => step[state.member][state.layer] || []);
  const all = rows.flat(), most = greatest(all);
  draw(parts.single.plot, spectrumTraces(set.steps.slice(0, end + 1), rows, state.log, most, "step"),
    layout({ ...stepAxis(), range: [set.steps[0], last(set.steps)] }, valueAxis("singular value of W", all, state.log),
      { shapes: [...now, ...threshold(state, t)] }));
}

function historyView(root, { sets }) {
  const state = { set: 0, member: 0, at: 0, log: false, layer: 0, curve: null, tolerance: 0 };
  const has = () => sets[state.set].steps.length > 0;
  const lastAt = () => {
    let at = sets[state.set].steps.length - 1;
    while (at > 0 && sets[state.set].spectra[at][state.member].every((row) => row.length === 0)) at--;
    return at;
  };
  let timer = null;
  const act = {
    set: () => { state.set = +parts.set.list.value; reset(); },
    member: () => { state.member = +parts.member.list.value; redraw(); },
    scale: () => { state.log = parts.scale.list.value === "log"; redraw(); },
    threshold: () => { state.tolerance = Math.max(0, +parts.threshold.value || 0); redraw(); },
    step: () => { state.at = +parts.slider.value; move(); },
    curve: () => { state.curve = parts.curve.list.value; redraw(); },
    layer: () => { state.layer = +parts.layer.list.value; redraw(); },
    width: () => greatest(sets[state.set].spectra.flatMap((step) => step[state.member].map((row) => row.length))),
    play: () => {
      const final = sets[state.set].steps.length - 1;
      if (timer) return stop();
      if (state.at >= final) { state.at = 0; move(); }
      parts.play.textContent = "❚❚ pause";
      timer = setInterval(() => { if (state.at >= final) stop(); else { state.at++; move(); } }, 90);
    },
  };
  const parts = historyParts(root, sets, act);
  const stop = () => { clearInterval(timer); timer = null; parts.play.textContent = "▶ play"; };
  const pick = (i) => {
    state.member = i;
    parts.member.list.value = i;
    redraw();
    parts.members.children[i].firstChild.focus();
  };
  const view = () => {
    const set = sets[state.set], t = theme();
    const now = has() ? [dotted("x", set.steps[state.at], t)] : [];
    return { set, state, parts, pick, theme: t, now, end: has() ? lastAt() : 0 };
  };

  function reset() {
    const s = sets[state.set];
    if (timer) stop();
    state.member = Math.min(state.member, s.members.length - 1);
    state.tolerance = parts.threshold.value = s.tolerance;
    state.at = Math.max(0, s.steps.length - 1);
    state.layer = Math.floor((s.layers.length - 1) / 2);
    state.curve = state.curve in s.curves ? state.curve : Object.keys(s.curves)[0];
    const describe = (m) => [m.name, m.facts, m.status].filter(Boolean).join(", ");
    fill(parts.member.list, s.members.map((m, i) => [i, describe(m)]), state.member);
    fill(parts.curve.list, Object.entries(s.titles), state.curve);
    fill(parts.layer.list, s.layers.map((l, i) => [i, s.names[i] ? `${l} (${s.names[i]})` : l]), state.layer);
    parts.slider.max = Math.max(0, s.steps.length - 1);
    const boxes = [parts.spectra.box, parts.ranks.box, parts.single.box];
    for (const element of [...boxes, parts.timeline, parts.scale.label, parts.tolerance]) element.hidden = !has();
    parts.curves.box.hidden = !state.curve;
    parts.notes.textContent = s.notes.length ? `Left out to keep the page small: ${s.notes.join("; ")}.` : "";
    redraw();
  }

  function redraw() {
    const now = view();
    if (state.curve) drawCurves(now);
    if (has()) [drawSpectra, drawRanks, drawLayer].forEach((part) => part(now));
    parts.keys.forEach((key) => key.paint());
  }

  // The slider moves the spectra and, in the other plots, only the line that marks the step.
  function move() {
    const now = view(), step = now.set.steps[state.at];
    drawSpectra(now);
    for (const part of [state.curve ? parts.curves : null, parts.ranks, parts.single]) {
      if (part) Plotly.relayout(part.plot, { "shapes[0].x0": step, "shapes[0].x1": step });
    }
  }
  redraws.push(redraw);
  reset();
}

// ---- a profile: spectra per layer, nonlinearity, Jacobian ------------------------------------------------------------

const layerNames = ({ layers, names }) => layers.map((l, i) => `layer ${l}${names[i] ? ` (${escapeText(names[i])})` : ""}`);

function profileView(root, { sets, titles }) {
  const state = { set: 0, log: false };
  const choose = select("show", sets.map((s, i) => [i, s.label]), () => { state.set = +choose.list.value; redraw(); });
  const scales = [["linear", "linear"], ["log", "log"]];
  const scale = select("scale", scales, () => { state.log = scale.list.value === "log"; redraw(); });
  const hint = make("p", { class: "note" });
  const cards = make("div", { class: "cards" });
  root.append(make("div", { class: "controls" }, sets.length > 1 ? choose.label : null, scale.label), cards, hint);
  const slots = {};
  const slot = (name, title, key) => {
    if (!slots[name]) {
      slots[name] = card(title);
      if (key) { slots[name].key = indexKey(key); slots[name].box.append(slots[name].key.list); }
      cards.append(slots[name].box);
    }
    slots[name].box.hidden = false;
    return slots[name];
  };

  function redraw() {
    const s = sets[state.set], t = theme(), [start, end] = s.bottleneck;
    const rect = { type: "rect", yref: "paper", y0: 0, y1: 1, fillcolor: t.shade, line: { width: 0 }, layer: "below" };
    const shaded = start !== null && end !== null && start <= end ? [{ ...rect, x0: start - 0.5, x1: end + 0.5 }] : [];
    hint.textContent = [
      shaded.length ? "Shaded: the bottleneck." : "",
      s.tolerance === null ? "" : `Dotted: ${s.tolerance}, above which a singular value of a weight counts.`,
      s.jacobian ? `Jacobian: median, and range over ${s.jacobian.samples} samples.` : "",
    ].join(" ");
    Object.values(slots).forEach((entry) => { entry.box.hidden = true; });
    for (const [name, rows] of Object.entries(s.spectra)) {
      const [kind, quantity] = titles[name].split(", "), most = greatest(rows.flat());
      const width = () => greatest(sets[state.set].spectra[name].map((row) => row.length));
      const shown = slot(name, `Spectra of the ${kind}`, width);
      const line = name.startsWith("weight") ? threshold({ ...state, tolerance: s.tolerance }, t) : [];
      const traces = spectrumTraces(s.layers, rows, state.log, most, "layer");
      for (const trace of traces) {
        trace.text = layerNames(s);
        trace.hovertemplate = trace.hovertemplate.replace("layer %{x}", "%{text}");
      }
      const axis = valueAxis(quantity, rows.flat(), state.log);
      draw(shown.plot, traces, layout(layerAxis(s.layers), axis, { shapes: [...shaded, ...line] }));
      shown.key.paint();
    }
    if (s.nonlinearity) drawNonlinearity(slot("nonlinearity", "Nonlinearity ratio").plot, s, state.log, shaded);
    if (s.frequencies) {
      drawFrequencies(slot("frequencies", "Singular values by frequency"), s, state.log, shaded);
      if (s.frequencies.rank) drawFrequencyRanks(slot("frequencyRanks", "Rank by frequency"), s);
    }
    if (s.jacobian) drawJacobian(slot("jacobian", "Singular values of the Jacobian").plot, s.jacobian);
  }
  redraws.push(redraw);
  redraw();
}

function drawNonlinearity(plot, { layers, names, nonlinearity }, log, shapes) {
  const trace = {
    x: layers, y: nonlinearity, text: layerNames({ layers, names }), mode: "lines+markers",
    line: { color: memberColor(0), width: 2 }, hovertemplate: "%{text}<br>%{y:.4g}<extra></extra>",
  };
  draw(plot, [trace], layout(layerAxis(layers), valueAxis("‖Z − σ(Z)‖ / ‖Z‖", nonlinearity, log), { shapes }));
}

// A line per frequency and channel, colored by |w|; those that the bottleneck keeps are thick and named at the right.
function drawFrequencies(shown, { layers, names, frequencies, tolerance }, log, shaded) {
  const t = theme(), { lines, moduli, of } = frequencies;
  const values = lines.flatMap((line) => line.values), top = greatest(values) || 1, floor = top * 1e-7;
  const color = (modulus) => indexColor(100 * Math.sqrt(modulus / (last(moduli) || 1)), 101);
  const traces = lines.map(({ values: line, name, channel, modulus, kept }) => ({
    x: layers, y: line.map((v) => (v === null ? null : log ? Math.max(v, floor) : v)), mode: "lines+markers",
    line: { color: color(modulus), width: kept ? 2.6 : 1 }, marker: { size: kept ? 6 : 3 },
    text: layerNames({ layers, names }), customdata: line.map(short),
    hovertemplate: `%{text}<br>frequency ${escapeText(name)}<br>s<sub>${channel}</sub> = %{customdata}<extra></extra>`,
  })).reverse();
  const axis = valueAxis("singular value of W", values, log), scale = (v) => (log ? Math.log10(Math.max(v, floor)) : v);
  const room = log ? axis.range[1] - axis.range[0] : axis.range[1], beside = last(layers) + 0.5 + 0.03 * layers.length;
  const ends = lines.filter((line) => line.kept).map((line) => {
    const at = line.values.findLastIndex((v) => v !== null);
    return { line, x: layers[at], y: scale(line.values[at]) };
  }).sort((a, b) => a.y - b.y);
  const heights = spread(ends.map((end) => end.y), 0.07 * room, log ? axis.range[1] : axis.range[1] - 0.03 * room);
  const annotations = ends.map(({ line, x, y }, i) => ({
    x, y, ax: beside, ay: heights[i], axref: "x", ayref: "y", text: escapeText(line.label), xanchor: "left", arrowhead: 0,
    arrowwidth: 1, arrowcolor: color(line.modulus), font: { color: color(line.modulus), size: 12 },
  }));
  const letters = Math.max(0, ...ends.map((end) => end.line.label.length)); // the names stand in the margin
  const margin = { l: 58, r: letters ? 24 + 7 * letters : 14, t: 12, b: 46 };
  const shapes = [...shaded, ...threshold({ tolerance, log }, t)];
  draw(shown.plot, traces, layout(layerAxis(layers), axis, { shapes, annotations, margin }));
  if (!shown.keys) {
    shown.keys = make("ul", { class: "key", "aria-label": "frequencies" });
    shown.box.append(shown.keys, shown.note = make("p", { class: "note" }));
  }
  const apart = Math.ceil((last(moduli) + 1) / 9);
  const whole = Array.from({ length: Math.floor(last(moduli) / apart) + 1 }, (_, i) => i * apart);
  shown.keys.replaceChildren(...(moduli.length <= 9 ? moduli : whole).map((modulus) => {
    const mark = make("i", {});
    mark.style.color = color(modulus);
    return make("li", {}, mark, `|w| = ${short(modulus)}`);
  }));
  const left = of > lines.length ? ` The ${lines.length} of ${of} lines with the largest values are shown.` : "";
  shown.note.textContent = `Cycles per image; ± stands for w and −w. Named: kept in every layer of the bottleneck.${left}`;
}

// Heights at least a step apart and at most `most`, for heights in ascending order.
function spread(heights, step, most) {
  const out = [];
  for (const y of heights) out.push(out.length ? Math.max(y, last(out) + step) : y);
  for (let i = out.length - 1; i >= 0; i--) out[i] = Math.min(out[i], i + 1 < out.length ? out[i + 1] - step : most);
  return out;
}

// The number of singular values above the threshold at every frequency of every layer.
function drawFrequencyRanks(shown, { layers, names, frequencies }) {
  shown.plot.classList.add("tall");
  const { ranked, rank, hidden } = frequencies, top = Math.max(1, greatest(rank.flat()));
  const shades = Array.from({ length: 11 }, (_, i) => [i / 10, indexColor(10 - i, 11)]);
  const trace = {
    type: "heatmap", x: layers, y: ranked.map((_, i) => i), z: rank, zmin: 0, zmax: top, colorscale: shades,
    xgap: 1, ygap: 1, text: rank.map(() => layerNames({ layers, names })),
    customdata: ranked.map((name) => layers.map(() => escapeText(name))),
    hovertemplate: "%{text}<br>frequency %{customdata}<br>%{z} values above the threshold<extra></extra>",
    colorbar: { title: { text: "rank" }, thickness: 12, outlinewidth: 0, tickformat: "d", nticks: 6 },
  };
  const every = Math.ceil(ranked.length / 14), at = ranked.map((_, i) => i).filter((i) => i % every === 0);
  const up = { title: "frequency", tickmode: "array", tickvals: at, ticktext: at.map((i) => escapeText(ranked[i])) };
  draw(shown.plot, [trace], layout(layerAxis(layers), up));
  if (!shown.note) shown.box.append(shown.note = make("p", { class: "note" }));
  shown.note.textContent = hidden ? `The ${ranked.length} lowest of ${ranked.length + hidden} frequencies.` : "";
}

// The median over the samples, and the range between the smallest and the largest value as a band.
function drawJacobian(plot, { median, low, high }) {
  const x = median.map((_, i) => i + 1), color = memberColor(0);
  const most = greatest(high), floor = most * 1e-12;
  const clip = (values) => values.map((value) => (value === null ? null : Math.max(value, floor)));
  const least = Math.max(floor, Math.min(...clip(low).filter((value) => value !== null)));
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  const middle = {
    x, y: clip(median), mode: "lines+markers", line: { color: color, width: 2 },
    customdata: x.map((_, i) => [short(median[i]), short(low[i]), short(high[i])]),
    hovertemplate: "index %{x}<br>median %{customdata[0]}<br>from %{customdata[1]} to %{customdata[2]}<extra></extra>",
  };
  const band = [{ ...edge, y: clip(low) }, { ...edge, y: clip(high), fill: "tonexty", fillcolor: `${color}33` }];
  const axis = countAxis("index", x);
  draw(plot, [...band, middle], layout(axis, logAxis("singular value of Jf(x)", [least, most])));
}

// ---- a figure that came ready made -----------------------------------------------------------------------------------

function figureView(root, { figure, caption }) {
  const shown = card(caption);
  root.append(shown.box);
  const redraw = () => {
    const t = theme(), own = structuredClone(figure.layout);
    const base = layout(own.xaxis || {}, own.yaxis || {}, { showlegend: undefined });
    for (const name of Object.keys(own)) if (/^[xy]axis\d*$/.test(name)) own[name] = themedAxis(own[name], t);
    const { paper_bgcolor, plot_bgcolor } = base, font = { ...own.font, ...base.font };
    draw(shown.plot, structuredClone(figure.data), { ...base, ...own, paper_bgcolor, plot_bgcolor, font });
  };
  redraws.push(redraw);
  redraw();
}

const VIEWS = {
  history: historyView, profile: profileView, figure: figureView,
  found: foundView, compressed: compressedView, symmetries: symmetriesView,
};
for (const [id, entry] of Object.entries(DATA)) {
  const root = document.getElementById(id), folded = root.closest("details:not([open])");
  const show = () => VIEWS[entry.kind](root, entry);
  if (folded) folded.addEventListener("toggle", show, { once: true }); else show(); // folded away: once it is opened
}
DARK.addEventListener("change", () => redraws.forEach((redraw) => redraw()));
