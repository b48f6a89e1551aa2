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
// More curves at once can't be told apart; others can be ticked.
const FIRST_RUNS = 8;

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

function drawCurves(parent, runs, hidden) {
  parent.replaceChildren();
  for (const [name, title] of Object.entries(CHARTS)) {
    const shown = runs.filter(run => run.curves[name] && !hidden.has(run.name));
    if (!shown.length) continue;
    const traces = shown.map(run => ({
      name: run.name,
      x: run.curves[name][0],
      y: run.curves[name][1],
      mode: run.curves[name][0].length > 30 ? "lines" : "lines+markers",
      line: { color: run.color, dash: run.dash, width: 1.75 },
      marker: { size: 5 },
      hovertemplate: `step %{x}<br>%{y:.5g}<extra>${runs.length > 1 ? "%{fullData.name}" : ""}</extra>`,
    }));
    draw(parent, title, traces, { x: { title: { text: "step", font: { size: 11 } } }, y: {} });
  }
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

  const boxes = [...document.querySelectorAll("#overview tbody input")];
  const legend = document.querySelector(".legend");
  const hidden = new Set();
  const styled = (name, place) => ({
    name,
    curves: runs[name].curves,
    color: COLORS[place % COLORS.length],
    dash: DASHES[Math.floor(place / COLORS.length) % DASHES.length],
  });
  function compare() {
    const chosen = boxes.filter(box => box.checked).map((box, place) => styled(box.value, place));
    legend.replaceChildren();
    for (const run of chosen) {
      const button = element("button", "", run.name, legend);
      button.type = "button";
      button.style.setProperty("--color", run.color);
      button.setAttribute("aria-pressed", !hidden.has(run.name));
      button.addEventListener("click", () => {
        hidden.has(run.name) ? hidden.delete(run.name) : hidden.add(run.name);
        button.setAttribute("aria-pressed", !hidden.has(run.name));
        drawCurves(document.querySelector("#curves .charts"), chosen, hidden);
      });
    }
    drawCurves(document.querySelector("#curves .charts"), chosen, hidden);
  }
  // The losses of different tasks have different scales.
  const charted = boxes.filter(box => !box.disabled);
  const alike = charted.filter(box => box.dataset.task === charted[0].dataset.task);
  alike.slice(0, FIRST_RUNS).forEach(box => { box.checked = true; });
  boxes.forEach(box => box.addEventListener("change", compare));
  compare();

  function fill(details) {
    const run = runs[details.dataset.run];
    if (!details.open || details.querySelector(".facts")) return;
    details.insertAdjacentHTML("beforeend", run.html);
    const training = details.querySelector(".training");
    if (training) drawCurves(training, [styled(details.dataset.run, 0)], new Set());
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
