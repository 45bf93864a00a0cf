// What discovery found: a fit, a compression, symmetries. Between drawing.js and views.js.
const WIDE = matchMedia("(min-width: 900px)");
const SYMBOLS = ["circle", "square", "diamond", "cross", "x", "triangle-up"];
const shorten = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);
const plain = (name) => escapeText(shorten(name));
const numbered = (values) => values.map((_, i) => i + 1);
const brief = (value) => (value >= 1e5 ? value.toExponential(1) : short(value));
const heat = (t) => [[0, t.grid], [0.5, indexColor(5, 11)], [1, indexColor(0, 11)]];
const shadesOf = () => Array.from({ length: 11 }, (_, i) => [i / 10, indexColor(10 - i, 11)]);
const bar = (title) => ({ title: { text: title, side: "top" }, thickness: 12, outlinewidth: 0, nticks: 6 });
const banded = (t, x0, x1) =>
  ({ type: "rect", yref: "paper", y0: 0, y1: 1, x0, x1, fillcolor: t.shade, line: { width: 0 }, layer: "below" });
const written = (t, text, more) => ({ text, showarrow: false, font: { color: t.muted, size: 12 }, ...more });
const beside = (t, text, place, of, y) => written(t, text, {
  x: place + 0.5, y, yref: "paper", xanchor: place > of / 2 ? "right" : "left", xshift: place > of / 2 ? -6 : 6,
});
const noted = (shown, text) => { if (text) shown.box.append(make("p", { class: "note" }, text)); };

// ---- a fit --------------------------------------------------------------------------------------------------------

function foundView(root, found) {
  const parts = [heldOutCard(found)];
  if (found.spectra.length) parts.push(spectraCard(found));
  const outputs = found.outputs ? chooseOutputs(found) : null;
  if (found.coordinates.length) parts.push(coordinatesCard(found, outputs));
  parts.push(found.confusion ? confusionCard(found) : predictedCard(found, outputs));
  if (found.sensitivity) parts.push(sensitivityCard(found.sensitivity));
  root.append(make("div", { class: "cards" }, ...parts.map((part) => part.box)));
  if (found.notes.length) root.append(make("p", { class: "note" }, `Left out of the plots: ${found.notes.join("; ")}.`));
  const redraw = () => parts.forEach((part) => part.redraw());
  if (outputs) outputs.redraw = redraw;
  redraws.push(redraw);
  WIDE.addEventListener("change", redraw);
  redraw();
}

// Two choosers of one output: what one chooses, the other does.
function chooseOutputs({ outputs }) {
  const shared = { at: 0, redraw: null };
  const options = outputs.map(({ name }, i) => [i, shorten(name)]);
  const lists = [];
  shared.chooser = (text) => {
    const made = select(text, options, () => {
      shared.at = +made.list.value;
      for (const list of lists) list.value = shared.at;
      shared.redraw();
    });
    lists.push(made.list);
    return outputs.length > 1 ? made.label : null;
  };
  return shared;
}

function heldOutCard({ heldOut: { loss, error }, count, interval }) {
  const shown = card("Held-out loss by number of components"), x = loss.map((_, i) => i);
  noted(shown, `Bars: one standard error. Ring: the number used.${interval ? " Shaded: the interval." : ""}`);
  shown.redraw = () => {
    const t = theme(), color = memberColor(0), most = greatest(loss);
    const log = loss.every((value) => value > 0) && most > 15 * Math.min(...loss);
    const y = log ? loss.map((value) => Math.max(value, 1e-6 * most)) : loss;
    const bars = { type: "data", array: error, color: t.muted, thickness: 1.2, width: 4 };
    const curve = {
      x, y, error_y: bars, mode: "lines+markers", line: { color: color, width: 1.6 }, marker: { size: 5 },
      customdata: loss.map((value, i) => `${short(value)} ± ${short(error[i])}`),
      hovertemplate: "k = %{x}<br>%{customdata}<extra></extra>",
    };
    const ring = {
      x: [count], y: [y[count]], mode: "markers", hoverinfo: "skip",
      marker: { size: 15, color: "rgba(0,0,0,0)", line: { color: memberColor(1), width: 2.4 } },
    };
    const tops = y.map((value, i) => value + (error[i] || 0));
    const axis = log ? logAxis("held-out loss", [...y, ...tops]) : valueAxis("held-out loss", tops, false);
    const shapes = interval ? [banded(t, interval[0] - 0.5, interval[1] + 0.5)] : [];
    draw(shown.plot, [curve, ring], layout({ ...countAxis("components k", x), tick0: 0 }, axis, { shapes }));
  };
  return shown;
}

function spectraCard({ spectra }) {
  const choose = select("", spectra.map(({ label }, i) => [i, label]), () => shown.redraw());
  choose.list.setAttribute("aria-label", "which spectrum");
  const shown = card("Spectrum", spectra.length > 1 ? choose.label : make("span", { class: "note" }, spectra[0].label));
  const note = make("p", { class: "note" });
  shown.box.append(note);
  shown.redraw = () => {
    const t = theme(), { values, title, count, gap, of } = spectra[+choose.list.value || 0];
    const most = greatest(values), wide = greatest(values) > 10 * last(values);
    const y = values.map((value) => Math.max(value, most * 1e-6));
    const trace = {
      x: numbered(values), y: wide ? y : values, customdata: values.map(short), mode: "lines+markers",
      line: { color: t.line, width: 1.2 },
      marker: { size: 9, color: values.map((_, i) => (i < count ? memberColor(0) : t.muted)) },
      hovertemplate: "index %{x}<br>%{customdata}<extra></extra>",
    };
    const annotations = gap ? [beside(t, `gap ${brief(gap)}`, count, values.length, 0.98)] : [];
    const axis = wide ? logAxis(title, y) : valueAxis(title, values, false);
    const shapes = gap ? [dotted("x", count + 0.5, t)] : [];
    draw(shown.plot, [trace], layout(countAxis("index", numbered(values)), axis, { shapes, annotations }));
    note.textContent = [
      gap ? "Dotted: the gap, the last value kept over the first left out." : "Nothing is left beyond the values kept.",
      of > values.length ? `The ${values.length} largest of ${of} values.` : "",
      wide && last(values) < most * 1e-6 ? "Values below 1e-6 of the largest are drawn there." : "",
    ].join(" ");
  };
  return shown;
}

// Coordinates against each other; the only one, against an output. Colors are an output, or classes.
function coordinatesCard(found, outputs) {
  const { coordinates, classes } = found, k = coordinates.length;
  const names = coordinates.map((_, i) => [i, `z${i + 1}`]), redraw = () => shown.redraw();
  const across = select("across", names, redraw), up = select("up", names, redraw);
  const tools = k > 2 ? [across.label, up.label] : [];
  if (k > 1) up.list.value = 1;
  const title = k > 1 ? "Coordinates" : classes ? "Coordinate by class" : "Coordinate against output";
  const chooser = outputs ? outputs.chooser(k > 1 ? "color" : "output") : null;
  const shown = card(title, ...tools, ...(chooser ? [chooser] : []));
  const key = classes && k > 1 ? make("ul", { class: "key", "aria-label": "classes" }) : null;
  shown.plot.classList.add("tall");
  if (key) shown.box.append(key);
  shown.redraw = () => {
    const i = +across.list.value, j = +up.list.value, x = coordinates[i];
    const axes = [{ title: `z<sub>${i + 1}</sub>` }, { title: `z<sub>${j + 1}</sub>` }];
    if (classes) {
      if (key) paintClasses(key, classes);
      return draw(shown.plot, ...classDots(found, x, k > 1 ? coordinates[j] : null, axes));
    }
    const { name, seen } = found.outputs[outputs.at];
    if (k === 1) {
      const marker = { size: 6, color: memberColor(0), opacity: 0.75 };
      const trace = { x, y: seen, mode: "markers", marker, hovertemplate: "%{x:.3g}, %{y:.4g}<extra></extra>" };
      return draw(shown.plot, [trace], layout(axes[0], { title: plain(name) }));
    }
    const marker = { size: 6.5, color: seen, colorscale: shadesOf(), colorbar: bar(plain(name)) };
    const hovertemplate = `%{x:.3g}, %{y:.3g}<br>${plain(name)} %{marker.color:.4g}<extra></extra>`;
    return draw(shown.plot, [{ x, y: coordinates[j], mode: "markers", marker, hovertemplate }], layout(...axes));
  };
  return shown;
}

// Dots by class: over the plane of two coordinates, or, without ``y``, along one, a row for every class.
function classDots({ classes, seen }, x, y, [one, other]) {
  const traces = classes.map((name, c) => {
    const rows = seen.flatMap((label, row) => (label === c ? [row] : []));
    const heights = y ? rows.map((row) => y[row]) : rows.map((_, i) => c + 0.5 * (((i * 0.618034) % 1) - 0.5));
    return {
      x: rows.map((row) => x[row]), y: heights, mode: "markers",
      marker: { size: 7, color: memberColor(c), symbol: SYMBOLS[Math.floor(c / 7) % 6], opacity: 0.8 },
      hovertemplate: `${plain(name)}<br>%{x:.3g}${y ? ", %{y:.3g}" : ""}<extra></extra>`,
    };
  });
  const names = { tickmode: "array", tickvals: classes.map((_, c) => c), ticktext: classes.map(plain), zeroline: false };
  return [traces, layout(one, y ? other : { title: "class", ...names })];
}

function paintClasses(key, classes) {
  key.replaceChildren(...classes.map((name, c) => {
    const mark = make("i", {});
    mark.style.color = memberColor(c);
    mark.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(c / 7) % 3];
    return make("li", {}, mark, name);
  }));
}

function predictedCard({ outputs }, chosen) {
  const chooser = chosen.chooser("output");
  const shown = card("Predicted against seen", ...(chooser ? [chooser] : []));
  const note = make("p", { class: "note" });
  shown.plot.classList.add("tall");
  shown.box.append(note);
  shown.redraw = () => {
    const t = theme(), { name, seen, predicted, r2 } = outputs[chosen.at], every = [...seen, ...predicted];
    const low = every.reduce((a, b) => Math.min(a, b)), high = every.reduce((a, b) => Math.max(a, b));
    const room = 0.04 * (high - low) || 1, range = [low - room, high + room];
    const diagonal = { x: range, y: range, mode: "lines", line: { color: t.muted, width: 1.2, dash: "dot" }, hoverinfo: "skip" };
    const trace = {
      x: seen, y: predicted, mode: "markers", marker: { size: 6, color: memberColor(0), opacity: 0.7 },
      hovertemplate: "seen %{x:.4g}<br>predicted %{y:.4g}<extra></extra>",
    };
    const label = plain(name);
    draw(shown.plot, [diagonal, trace], layout({ title: `${label} seen`, range }, { title: `${label} predicted`, range }));
    note.textContent = `Rows that were fitted; dotted: equal.${r2 === null ? "" : ` R² of ${name}: ${short(r2)}.`}`;
  };
  return shown;
}

// Rows of the same class, by the class predicted, in percent of the row.
function confusionCard({ classes, confusion }) {
  const shown = card("Predicted against seen"), names = classes.map(plain);
  shown.plot.classList.add("tall");
  noted(shown, "Rows that were fitted; color: share of the rows of the class.");
  const shares = confusion.map((row) => row.map((n) => (100 * n) / Math.max(1, row.reduce((a, b) => a + b, 0))));
  const hover = confusion.map((row, i) => row.map((n, j) => `seen ${names[i]}<br>predicted ${names[j]}<br>${n} rows`));
  const every = Math.ceil(classes.length / 20), at = classes.map((_, i) => i).filter((i) => i % every === 0);
  const ticks = { tickmode: "array", tickvals: at, ticktext: at.map((i) => names[i]), showgrid: false, zeroline: false };
  shown.redraw = () => {
    const trace = {
      type: "heatmap", z: shares, zmin: 0, zmax: 100, colorscale: heat(theme()), colorbar: bar("percent"), xgap: 1, ygap: 1,
      text: confusion, texttemplate: classes.length <= 12 ? "%{text}" : "", hovertext: hover,
      hovertemplate: "%{hovertext}<extra></extra>",
    };
    draw(shown.plot, [trace], layout({ title: "class predicted", ...ticks }, { title: "class seen", autorange: "reversed", ...ticks }));
  };
  return shown;
}

// Coordinates by inputs: inputs go across where there is room for their names, else down.
function sensitivityCard({ rows, inputs }) {
  const shown = card("What each coordinate depends on");
  shown.box.classList.add("wide");
  noted(shown, "Root mean square derivative of the coordinate in the input, times the standard deviation of the input.");
  const names = inputs.map(plain), coordinates = rows.map((_, j) => `z<sub>${j + 1}</sub>`);
  const list = (texts) => ({ tickmode: "array", tickvals: texts.map((_, i) => i), ticktext: texts, showgrid: false, zeroline: false });
  const letters = Math.max(...inputs.map((name) => shorten(name).length));
  shown.redraw = () => {
    const across = WIDE.matches, z = across ? rows : inputs.map((_, i) => rows.map((row) => row[i]));
    const slanted = across && letters * 8 > 1000 / inputs.length;
    const height = across ? 90 + 30 * rows.length + (slanted ? 7 * letters : 14) : 90 + 17 * inputs.length;
    shown.plot.style.height = `${Math.max(150, Math.min(height, 1200))}px`;
    const hover = across ? rows.map((_, j) => inputs.map((name) => `z<sub>${j + 1}</sub>, ${escapeText(name)}`))
      : inputs.map((name) => rows.map((_, j) => `z<sub>${j + 1}</sub>, ${escapeText(name)}`));
    const trace = {
      type: "heatmap", z, zmin: 0, zmax: greatest(rows.flat()) || 1, colorscale: heat(theme()), xgap: 1, ygap: 1, hovertext: hover,
      texttemplate: (across ? inputs : rows).length <= (across ? 24 : 6) ? "%{z:.2f}" : "",
      hovertemplate: "%{hovertext}<br>%{z:.3g}<extra></extra>", colorbar: { ...bar("sensitivity"), nticks: 4 },
    };
    const x = across ? { title: "input", ...list(names), tickangle: slanted ? -60 : 0 } : { title: "coordinate", ...list(coordinates) };
    const y = across ? { title: "coordinate", ...list(coordinates) } : { title: "input", ...list(names), tickfont: { size: 11 } };
    draw(shown.plot, [trace], layout(x, { ...y, autorange: "reversed" }));
  };
  return shown;
}

// ---- a compression --------------------------------------------------------------------------------------------------

function compressedView(root, { left, steps, tolerance }) {
  const kept = card("What is left, in percent of before"), changes = steps.length ? card("Change after every step") : null;
  root.append(make("div", { class: "cards" }, kept.box, changes ? changes.box : null));
  if (changes) noted(changes, "Of the outputs' spread, on the samples that decided. Dotted: the tolerance.");
  const redraw = () => {
    const t = theme(), names = left.map(([name]) => name), values = left.map(([, value]) => value);
    const bars = {
      type: "bar", orientation: "h", x: values, y: names, marker: { color: memberColor(0) }, text: values.map((v) => `${short(v)} %`),
      textposition: "outside", textangle: 0, cliponaxis: false, hovertemplate: "%{y}: %{x:.4g} %<extra></extra>",
    };
    const range = [0, 1.2 * Math.max(100, greatest(values))];
    draw(kept.plot, [bars], layout({ title: "percent", range }, { autorange: "reversed" }, { shapes: [dotted("x", 100, t)] }));
    if (!changes) return;
    const y = steps.map(([, change]) => change), x = numbered(steps);
    const trace = {
      x, y, mode: "lines+markers", line: { color: memberColor(0), width: 1.8 }, marker: { size: 8 },
      text: steps.map(([kind]) => kind), hovertemplate: "step %{x}: %{text}<br>%{y:.4g} %<extra></extra>",
    };
    const names2 = { tickmode: "array", tickvals: x, ticktext: steps.map(([kind], i) => `${i + 1}: ${kind}`) };
    const axis = valueAxis("change, percent", [...y, tolerance], false);
    draw(changes.plot, [trace], layout({ title: "step", ...names2, range: [0.5, steps.length + 0.5] }, axis, { shapes: [dotted("y", tolerance, t)] }));
  };
  redraws.push(redraw);
  redraw();
}

// ---- symmetries -----------------------------------------------------------------------------------------------------

function symmetriesView(root, { spectra }) {
  const parts = spectra.map(fieldsCard);
  root.append(make("div", { class: "cards" }, ...parts.map((part) => part.box)));
  const redraw = () => parts.forEach((part) => part.redraw());
  redraws.push(redraw);
  redraw();
}

// How much f changes along every field, ascending; those below the gap are symmetries.
function fieldsCard({ title, values, of, count, candidate, ratio, threshold: bar, thresholdIs }) {
  const shown = card(title), more = of > values.length ? ` The ${values.length} smallest of ${of}.` : "";
  noted(shown, `How much f changes along every field: about 1 for one that has nothing to do with f.${more}`);
  shown.redraw = () => {
    const t = theme(), y = values.map((value) => Math.max(value, 1e-16)), at = candidate + 0.5;
    const gap = ratio !== null && candidate > 0 && candidate < values.length;
    const trace = {
      x: numbered(values), y, mode: "markers", customdata: values.map(short),
      marker: { size: 8, color: values.map((_, i) => (i < count ? memberColor(2) : t.muted)) },
      hovertemplate: "field %{x}<br>%{customdata}<extra></extra>",
    };
    const annotations = [written(t, `${short(bar)}, ${thresholdIs}`, {
      xref: "paper", x: 1, xanchor: "right", y: Math.log10(bar), yanchor: "bottom",
    })];
    if (gap) annotations.push(beside(t, `gap ${brief(ratio)}`, candidate, values.length, 0.5));
    const shapes = [dotted("y", bar, t), ...(gap ? [dotted("x", at, t)] : [])];
    draw(shown.plot, [trace], layout(countAxis("field", numbered(values)), logAxis("relative singular value", [...y, bar, 1]), { shapes, annotations }));
  };
  return shown;
}
