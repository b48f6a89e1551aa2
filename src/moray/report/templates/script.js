"use strict";

// Visible on white and on black alike.
const COLORS = ["#3b7dd8", "#d4622a", "#2b9348", "#9b5de5", "#b8860b", "#0e8fa8", "#d6408a", "#7a7f87"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CHARTS = {
  loss: "Training loss",
  eval_loss: "Validation loss",
  learning_rate: "Learning rate",
  grad_norm: "Gradient norm",
  speed: "Throughput, per second",
};
const VIEWS = { smooth: "smooth", log: "logarithmic", time: "by time" };
// Those of single batches; the others are smooth, or have few points.
const NOISY = new Set(["loss", "grad_norm", "speed"]);
const SMOOTHING = 0.9;
// More curves at once can't be told apart; others can be ticked.
const FIRST_SERIES = 8;

async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function element(name, className, text, parent) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

function draw(parent, title, traces, axes) {
  const figure = element("figure", "", "", parent);
  element("figcaption", "", title, figure);
  const chart = element("div", "chart", "", figure);
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", `${title}: ${traces.map(trace => trace.name).join(", ")}`);
  const axis = { automargin: true, zeroline: false, tickfont: { size: 11 } };
  const layout = {
    margin: { l: 8, r: 12, t: 8, b: 8 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", size: 12 },
    showlegend: false,
    hovermode: "closest",
    // A finger on a chart scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: { ...axis, ...axes.x },
    yaxis: { ...axis, ...axes.y },
  };
  Plotly.newPlot(chart, traces, layout, { displayModeBar: false, responsive: true });
}

// The value at x of the line through points in the order of xs; null beyond its ends.
function at(xs, ys, x) {
  const after = xs.findIndex(one => one >= x);
  if (after < 0 || (after === 0 && xs[0] > x)) return null;
  if (xs[after] === x || ys[after] === null || ys[after - 1] === null) return ys[after];
  const share = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + share * (ys[after] - ys[after - 1]);
}

// The exponential moving average, without the pull of a first value.
function smoothed(values) {
  let sum = 0, weight = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = SMOOTHING * sum + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + 1 - SMOOTHING;
    return sum / weight;
  });
}

function curveOf(run, name, view) {
  const [steps, values] = run.curves[name];
  return { steps, values: view.smooth && NOISY.has(name) ? smoothed(values) : values };
}

function placesOf(runs, steps, view) {
  if (!view.time) return steps;
  return steps.map(step => {
    const seconds = runs.map(run => at(...run.times, step)).filter(one => one !== null);
    return seconds.length ? seconds.reduce((a, b) => a + b) / seconds.length : null;
  });
}

function traceOfRun(series, name, view, several) {
  const { steps, values } = curveOf(series.runs[0], name, view);
  return [{
    name: series.label,
    x: placesOf(series.runs, steps, view),
    y: values,
    mode: steps.length > 30 ? "lines" : "lines+markers",
    line: { color: series.color, dash: series.dash, width: 1.75 },
    marker: { size: 5 },
    hovertemplate: `${view.time ? "%{x:.4g} s" : "step %{x}"}<br>%{y:.5g}<extra>${several ? "%{fullData.name}" : ""}</extra>`,
  }];
}

// The mean of runs that differ only in their seed, in a band from the lowest to the highest.
function tracesOfSeeds(series, name, view) {
  const curves = series.runs.map(run => curveOf(run, name, view));
  const steps = [...new Set(curves.flatMap(curve => curve.steps))].sort((a, b) => a - b);
  const columns = steps.map(step => curves.map(curve => at(curve.steps, curve.values, step)).filter(y => y !== null));
  const of = summary => columns.map(values => (values.length ? summary(values) : null));
  const x = placesOf(series.runs, steps, view);
  const line = { color: series.color, dash: series.dash };
  const edge = { name: series.label, x, mode: "lines", line: { ...line, width: 0 }, hoverinfo: "skip" };
  return [
    { ...edge, y: of(values => Math.min(...values)) },
    { ...edge, y: of(values => Math.max(...values)), fill: "tonexty", fillcolor: `${series.color}33` },
    {
      name: series.label,
      x,
      y: of(values => values.reduce((a, b) => a + b) / values.length),
      customdata: of(values => values.length),
      mode: "lines",
      line: { ...line, width: 2 },
      hovertemplate: `${view.time ? "%{x:.4g} s" : "step %{x}"}<br>%{y:.5g}, mean of %{customdata}<extra>%{fullData.name}</extra>`,
    },
  ];
}

function drawCurves(parent, all, view) {
  parent.replaceChildren();
  for (const [name, title] of Object.entries(CHARTS)) {
    const shown = all
      .map(series => ({ ...series, runs: series.runs.filter(run => run.curves[name]) }))
      .filter(series => series.runs.length && !series.hidden);
    if (!shown.length) continue;
    const points = shown.flatMap(series => series.runs.map(run => [run, run.curves[name]]));
    if (points.every(([, [steps]]) => steps.length === 1)) {
      const figure = element("figure", "single", "", parent);
      element("figcaption", "", title, figure);
      for (const [run, [[step], [value]]] of points) {
        element("p", "", `${value} at step ${step}${points.length > 1 ? `, ${run.label}` : ""}`, figure);
      }
      continue;
    }
    const traces = shown.flatMap(series => series.runs.length > 1
      ? tracesOfSeeds(series, name, view)
      : traceOfRun(series, name, view, shown.length > 1));
    const axes = {
      x: { title: { text: view.time ? "seconds of training" : "step", font: { size: 11 } } },
      y: view.log && name !== "speed" ? { type: "log", dtick: "D2" } : {},
    };
    draw(parent, title, traces, axes);
  }
}

// Boxes for how curves are drawn, above them.
function viewControls(charts, runs, redraw) {
  const view = {};
  const form = element("div", "view note", "", charts.parentElement);
  charts.before(form);
  for (const [key, text] of Object.entries(VIEWS)) {
    if (key === "time" && !runs.every(run => run.times)) continue;
    const label = element("label", "", "", form);
    const box = element("input", "", "", label);
    box.type = "checkbox";
    label.append(` ${text}`);
    box.addEventListener("change", () => { view[key] = box.checked; redraw(); });
  }
  return view;
}

// A bound that is not a number has no bar.
function reach(from, to) {
  return from === null || to === null ? null : to - from;
}

function drawScores(parent, scores) {
  for (const { metric, base, tuned } of scores) {
    const both = [base, tuned];
    const trace = {
      name: "base and tuned",
      x: ["base", "tuned"],
      y: both.map(score => score.value),
      error_y: {
        type: "data",
        symmetric: false,
        array: both.map(score => reach(score.value, score.high)),
        arrayminus: both.map(score => reach(score.low, score.value)),
        color: COLORS[0],
      },
      mode: "markers",
      marker: { size: 8, color: COLORS[0] },
      hovertemplate: "%{y:.5g}<extra></extra>",
    };
    draw(parent, metric.replaceAll("_", " "), [trace], { x: { range: [-0.5, 1.5], fixedrange: true }, y: { nticks: 5 } });
  }
}

function sortable(table) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => header.querySelector("button")?.addEventListener("click", () => {
    const descending = header.getAttribute("aria-sort") === "ascending";
    headers.forEach(other => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const order = (a, b) => (key(a) === "") - (key(b) === "")
      || (descending ? -1 : 1) * (Number(key(a)) - Number(key(b)) || compare(key(a), key(b)));
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}

async function main() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  const [library, data] = await Promise.all([unpack("library"), unpack("data")]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  const runs = JSON.parse(data);

  for (const [name, run] of Object.entries(runs)) run.name = name;
  const boxes = [...document.querySelectorAll("#overview tbody input")];
  const colored = (series, place) => ({
    ...series,
    color: COLORS[place % COLORS.length],
    dash: DASHES[Math.floor(place / COLORS.length) % DASHES.length],
  });
  // Runs that differ only in their seed are one.
  function seriesOf(chosen) {
    const found = new Map();
    for (const run of chosen) {
      const key = run.setting === null ? `run ${run.name}` : `setting ${run.setting}`;
      if (!found.has(key)) found.set(key, { key, runs: [] });
      found.get(key).runs.push(run);
    }
    return [...found.values()].map(({ key, runs }) => ({
      key,
      runs,
      label: runs.length > 1 ? `${runs[0].label.replace(/, seed \d+$/, "")} (${runs.length} seeds)` : runs[0].label,
    }));
  }
  const section = document.querySelector("#curves");
  if (section) {
    const legend = section.querySelector(".legend"), charts = section.querySelector(".charts");
    const hidden = new Set();
    const view = viewControls(charts, Object.values(runs), compare);
    function compare() {
      const all = seriesOf(boxes.filter(box => box.checked).map(box => runs[box.value])).map(colored);
      const draw = () => drawCurves(charts, all.map(one => ({ ...one, hidden: hidden.has(one.key) })), view);
      legend.replaceChildren();
      for (const { key, label, color } of all) {
        const button = element("button", "", label, legend);
        button.type = "button";
        button.style.setProperty("--color", color);
        button.setAttribute("aria-pressed", !hidden.has(key));
        button.addEventListener("click", () => {
          hidden.has(key) ? hidden.delete(key) : hidden.add(key);
          button.setAttribute("aria-pressed", !hidden.has(key));
          draw();
        });
      }
      draw();
    }
    // The losses of different tasks have different scales.
    const charted = boxes.filter(box => !box.disabled);
    const alike = charted.filter(box => box.dataset.task === charted[0].dataset.task);
    const first = new Set(seriesOf(alike.map(box => runs[box.value])).slice(0, FIRST_SERIES).flatMap(one => one.runs));
    alike.forEach(box => { box.checked = first.has(runs[box.value]); });
    boxes.forEach(box => box.addEventListener("change", compare));
    compare();
  }

  function fill(details) {
    const run = runs[details.dataset.run];
    if (!details.open || details.querySelector(".facts")) return;
    details.insertAdjacentHTML("beforeend", run.html);
    const training = details.querySelector(".training");
    if (training) {
      const draw = () => drawCurves(training, seriesOf([run]).map(colored), view);
      const view = viewControls(training, [run], draw);
      draw();
    }
    const scores = details.querySelector(".scores");
    if (scores) drawScores(scores, run.scores);
  }
  function open() {
    const details = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!details?.matches(".run")) return;
    details.open = true;
    fill(details);
    details.scrollIntoView();
  }
  const all = [...document.querySelectorAll(".run")];
  all.forEach(details => details.addEventListener("toggle", () => fill(details)));
  if (all.length === 1) all[0].open = true;
  addEventListener("hashchange", open);
  open();
  document.documentElement.dataset.ready = "";
}

main();
