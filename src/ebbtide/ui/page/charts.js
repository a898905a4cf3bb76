// Charts of a run. Each function draws into an element, or redraws what is there.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const STATES = { revoked: "#D55E00", released: "#009E73", failed: "#999999" };

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const moment = (seconds) => new Date(seconds * 1000).toISOString();
const escaped = (text) => String(text).replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

function draw(element, traces, layout) {
  const ink = style("--ink"), line = style("--line");
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  window.Plotly.react(element, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
    margin: { l: 60, r: 16, t: 40, b: 56 }, hovermode: "closest", uirevision: "kept",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...layout,
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  }, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
}

// The metric of all trials as one line with gaps, the best few as lines of their own, and predicted ends.
export function curves(element, found, best) {
  const all = { x: [], y: [], text: [] };
  const own = new Set(best.slice(0, COLOURS.length));
  const traces = [];
  for (const trial of found.trials) {
    const label = escaped(`${trial.number} ${trial.setting}`);
    if (own.has(trial.number)) {
      const colour = COLOURS[best.indexOf(trial.number)];
      traces.push({ x: trial.steps, y: trial.values, name: label, mode: "lines", line: { color: colour, width: 2 } });
    } else {
      for (let place = 0; place < trial.steps.length; place += 1) {
        all.x.push(trial.steps[place]); all.y.push(trial.values[place]); all.text.push(label);
      }
      all.x.push(null); all.y.push(null); all.text.push("");
    }
  }
  const ends = found.trials.filter((trial) => trial.predicted);
  const predicted = {
    x: ends.map((trial) => trial.predicted.step), y: ends.map((trial) => trial.predicted.value),
    text: ends.map((trial) => escaped(`${trial.number} ${trial.setting}, predicted`)), name: "predicted end, 90 % band",
    mode: "markers", marker: { color: style("--quiet"), size: 7, symbol: "diamond-open" },
    error_y: { type: "data", symmetric: false, color: style("--line"), thickness: 1,
      array: ends.map((trial) => trial.predicted.upper - trial.predicted.value),
      arrayminus: ends.map((trial) => trial.predicted.value - trial.predicted.lower) },
  };
  const others = { ...all, name: "other trials", mode: "lines", line: { color: style("--quiet"), width: 1 }, opacity: 0.45,
    hovertemplate: "%{text}: %{y}<extra></extra>" };
  draw(element, [...(all.x.length ? [others] : []), ...traces, ...(ends.length ? [predicted] : [])], {
    xaxis: { title: { text: "step" }, rangemode: "tozero" }, yaxis: { title: { text: escaped(found.metric) } },
  });
}

// Price lines of markets, with each machine as a thick piece of its line, and a cross where it was revoked.
export function machines(element, found) {
  const thin = { x: [], y: [], text: [] };
  for (const market of found.markets) {
    const points = market.points.length && found.now_s
      ? [...market.points, [found.now_s, market.points[market.points.length - 1][1]]] : market.points;
    for (const [at, price] of points) { thin.x.push(moment(at)); thin.y.push(price); thin.text.push(escaped(market.market)); }
    thin.x.push(null); thin.y.push(null); thin.text.push("");
  }
  const traces = [{ ...thin, name: "prices", mode: "lines", line: { shape: "hv", width: 1, color: style("--quiet") },
    opacity: 0.6, hovertemplate: "%{text}: %{y:.4f} USD/h<extra></extra>" }];
  const markets = [...new Set(found.machines.map((machine) => machine.market))];
  const crosses = { x: [], y: [], text: [] };
  markets.forEach((market, place) => {
    const line = { x: [], y: [], text: [] };
    for (const machine of found.machines.filter((one) => one.market === market)) {
      const way = machine.on_demand ? "on demand" : "spot";
      const label = escaped(`lease ${machine.lease}, ${market}, ${way}, ${machine.state}, ${machine.usd.toFixed(4)} USD`);
      for (const [at, price] of machine.line) { line.x.push(moment(at)); line.y.push(price); line.text.push(label); }
      line.x.push(null); line.y.push(null); line.text.push("");
      if (machine.state === "revoked" && machine.line.length) {
        const [at, price] = machine.line[machine.line.length - 1];
        crosses.x.push(moment(at)); crosses.y.push(price); crosses.text.push(label);
      }
    }
    traces.push({ ...line, name: escaped(market), mode: "lines", hovertemplate: "%{text}<extra></extra>",
      line: { shape: "hv", width: 5, color: COLOURS[place % COLOURS.length] } });
  });
  traces.push({ ...crosses, name: "revoked", mode: "markers", hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: "x", size: 9, color: STATES.revoked } });
  draw(element, traces, { xaxis: { type: "date" }, yaxis: { title: { text: "USD per machine-hour" }, type: "log", dtick: "D2", tickformat: "~g" } });
}

// What was spent, what the same machine time costs on demand, and the budget.
export function spend(element, found) {
  const x = found.times_s.map(moment);
  const traces = [
    { x, y: found.spent_usd, name: "spent", mode: "lines", line: { color: COLOURS[0], width: 2 } },
    { x, y: found.on_demand_usd, name: "the same machine time on demand", mode: "lines",
      line: { color: COLOURS[4], width: 2, dash: "dash" } },
  ];
  const shapes = [];
  if (found.budget_usd !== null) {
    traces.push({ x: x.length ? [x[0], x[x.length - 1]] : [], y: [found.budget_usd, found.budget_usd], name: "budget",
      mode: "lines", line: { color: COLOURS[1], width: 1, dash: "dot" } });
  }
  if (found.deadline_s !== null) {
    shapes.push({ type: "line", x0: moment(found.deadline_s), x1: moment(found.deadline_s), y0: 0, y1: 1, yref: "paper",
      line: { color: style("--bad"), width: 1, dash: "dot" } });
  }
  draw(element, traces, { shapes, xaxis: { type: "date" }, yaxis: { title: { text: "USD" }, rangemode: "tozero" } });
}
