// The page: it asks the server every two seconds and redraws what has changed. Text is set as text, never as markup.
import { curves, machines, spend } from "/static/charts.js";

const EVERY_MS = 2000;
const VIEWS = { trials: "Trials", machines: "Machines", spend: "Spend", decisions: "Decisions" };
const known = new Map(); // By address: its tag and what it gave.
const main = document.getElementById("main");
const fresh = document.getElementById("fresh");
let shown = ""; // The address bar's part for which the page stands.
let opened = null; // Number of the decision that is open.

const number = (value, digits = 4) => (value === null || value === undefined ? "-" : String(Number(Number(value).toPrecision(digits))));
// Without a number of steps costs are for an hour of work.
const hasSteps = (decision) => decision.has_steps;
const usd = (value) => (value === null || value === undefined ? "-" : value.toFixed(4));
const percent = (value) => (value === null || value === undefined ? "-" : `${Math.round(100 * value)} %`);
const time = (seconds) => (seconds === null || seconds === undefined ? "-" : new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " "));
const lasting = (seconds) => {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
};

function made(kind, attributes = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== "") element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// What the server says, and whether it is new; it answers with nothing where that is known.
async function asked(address) {
  const before = known.get(address);
  const answer = await fetch(address, { headers: before ? { "If-None-Match": before.tag } : {} });
  if (answer.status === 304) return { content: before.content, isNew: false };
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error || `the server answered ${answer.status}`);
  known.set(address, { tag: answer.headers.get("ETag"), content });
  return { content, isNew: true };
}

// Rows of a table by key: only cells whose text has changed are touched.
function filled(body, rows) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  rows.forEach((row, place) => {
    let line = old.get(row.key);
    if (!line || line.children.length !== row.cells.length) {
      line = made("tr", { "data-key": row.key }, ...row.cells.map(() => made("td")));
    }
    old.delete(row.key);
    line.className = row.kind || "";
    row.cells.forEach((cell, column) => {
      const element = line.children[column];
      const { text, href, kind } = typeof cell === "object" && cell !== null ? cell : { text: cell };
      const wanted = `${kind || ""}|${href || ""}|${text}`;
      if (element.dataset.shown === wanted) return;
      element.dataset.shown = wanted;
      element.className = kind || "";
      element.replaceChildren(href ? made("a", { href }, text) : String(text));
    });
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] || null);
  });
  for (const line of old.values()) line.remove();
}

function table(id, headings) {
  const cells = headings.map(([text, kind]) => made("th", { class: kind, scope: "col" }, text));
  return made("div", { class: "scroll tall", tabindex: "0" }, made("table", { id }, made("thead", {}, made("tr", {}, ...cells)), made("tbody")));
}

const provider = (run) => (run.is_simulated ? `${run.provider} (simulated)` : run.provider);
const right = (text) => ({ text, kind: "number" });
const stateKind = (state) => (/finished|done|running|training/.test(state) ? "state good" : /fail|broken|gave up|gone|cannot/.test(state) ? "state bad" : "state");

function facts(rows) {
  return rows.map(([name, value]) => made("div", { class: "fact" }, made("span", {}, name), made("b", {}, value)));
}

async function showRuns() {
  const { content, isNew } = await asked("/api/runs");
  if (shown !== "runs") {
    main.replaceChildren(made("h1", {}, "Runs"), table("runs", [["run"], ["state"], ["provider"], ["policy"], ["trials", "number"], ["machines", "number"],
      ["USD/h now", "number"], ["spent USD", "number"], ["saved", "number"], ["elapsed", "number"]]));
    shown = "runs";
  } else if (!isNew) return;
  filled(main.querySelector("tbody"), [...content].reverse().map((run) => {
    if (!run.money) return { key: run.run, cells: [run.run, { text: `${run.state}: ${run.why}`, kind: "state bad" }, "-", "-", ...Array(6).fill(right("-"))] };
    return { key: run.run, cells: [
      { text: run.run, href: `#/run/${encodeURIComponent(run.run)}/trials` }, { text: run.state, kind: stateKind(run.state) }, provider(run), run.policy,
      right(`${run.done}/${run.trials.length}`), right(run.rented), right(run.rented ? usd(run.money.usd_per_hour) : "-"),
      right(usd(run.money.paid_usd) + (run.is_simulated ? " (simulated)" : "")), right(percent(run.money.saved_share)), right(lasting(run.elapsed_s))] };
  }));
  if (!content.length) main.replaceChildren(made("h1", {}, "Runs"), made("p", {}, "There is no run yet: ", made("code", {}, "ebbtide run -- python train.py"), " begins one."));
}

function head(run, view) {
  const base = `#/run/${encodeURIComponent(run)}`;
  main.replaceChildren(made("h1", {}, run), made("p", { id: "why", class: "problem" }), made("div", { class: "facts", id: "facts" }), made("div", { id: "view" }));
  document.getElementById("tabs").replaceChildren(...Object.entries(VIEWS).map(([name, title]) =>
    made("a", { href: `${base}/${name}`, "aria-current": name === view ? "page" : null }, title)));
}

function showFacts(status) {
  const money = status.money;
  document.getElementById("why").textContent = status.why || "";
  document.getElementById("facts").replaceChildren(...facts([
    ["state", status.state], ["provider", provider(status)], ["policy", status.policy], ["trials done", `${status.done} of ${status.trials.length}`],
    ["machines now", `${status.rented}${status.rented ? `, ${usd(money.usd_per_hour)} USD/h` : ""}`], ["revoked", String(status.revoked)],
    ["spent", `${usd(money.paid_usd)} USD${status.is_simulated ? " (simulated)" : ""}`], ["less than on demand", percent(money.saved_share)],
    ["budget", status.budget_usd === null ? "none" : `${number(status.budget_usd)} USD`], ["elapsed", lasting(status.elapsed_s)],
    ["left at most", status.rest_s === null ? "-" : lasting(status.rest_s)],
  ]));
}

async function showTrials(status, run) {
  const view = document.getElementById("view");
  if (!view.firstChild) {
    view.append(made("h2", {}, "Curves"), made("div", { class: "chart", id: "curves" }), made("h2", {}, "Trials, the best first"),
      table("trials", [["trial", "number"], ["setting"], ["state"], ["steps", "number"], ["saved", "number"],
        [`best ${status.metric || ""}`, "number"], ["last", "number"], ["predicted", "number"], ["machine"]]));
  }
  const { content, isNew } = await asked(`/api/runs/${encodeURIComponent(run)}/curves`);
  const ends = new Map(content.trials.map((trial) => [trial.number, trial.predicted]));
  filled(view.querySelector("#trials tbody"), status.trials.map((trial) => ({ key: String(trial.number), cells: [
    right(trial.number), trial.setting || "-", { text: trial.problem ? `failed: ${trial.problem}` : trial.state, kind: stateKind(trial.state) },
    right(number(trial.steps_done, 6)), right(number(trial.steps_saved, 6)), right(number(trial.best)), right(number(trial.last)),
    right(ends.get(trial.number) ? number(ends.get(trial.number).value) : "-"), trial.machine || "-"] })));
  const chart = view.querySelector("#curves");
  if (content.metric === null) chart.textContent = "No metric is named, so there are no curves.";
  else if (isNew || !chart.data) curves(chart, content, status.trials.filter((trial) => trial.best !== null).map((trial) => trial.number));
}

async function showMachines(_status, run) {
  const view = document.getElementById("view");
  if (!view.firstChild) {
    view.append(made("h2", {}, "Machines on their price lines"), made("div", { class: "chart", id: "machines-chart" }), made("h2", {}, "Machines, the newest first"),
      table("machines", [["lease", "number"], ["market"], ["way"], ["state"], ["started"], ["held", "number"], ["steps", "number"], ["USD", "number"], ["refunded", "number"]]));
  }
  const { content, isNew } = await asked(`/api/runs/${encodeURIComponent(run)}/machines`);
  const chart = view.querySelector("#machines-chart");
  if (!isNew && chart.data) return;
  machines(chart, content);
  filled(view.querySelector("#machines tbody"), [...content.machines].reverse().map((one) => ({ key: String(one.lease), cells: [
    right(one.lease), { text: one.market, href: `#/run/${encodeURIComponent(run)}/decisions/${one.lease}` }, one.on_demand ? "on demand" : "spot",
    { text: one.state, kind: "state" }, time(one.started_s), right(one.started_s === null ? "-" : lasting((one.ended_s ?? content.now_s) - one.started_s)),
    right(number(one.steps, 6)), right(usd(one.usd)), right(one.refund_usd ? usd(one.refund_usd) : "-")] })));
}

async function showSpend(status, run) {
  const view = document.getElementById("view");
  if (!view.firstChild) view.append(made("h2", {}, "Spent, beside on-demand prices and the budget"), made("div", { class: "chart", id: "spend" }), made("p", { id: "lost", class: "quiet" }));
  const { content, isNew } = await asked(`/api/runs/${encodeURIComponent(run)}/spend`);
  const chart = view.querySelector("#spend");
  if (isNew || !chart.data) spend(chart, content);
  const money = status.money;
  document.getElementById("lost").textContent = `Refunded ${usd(money.refund_usd)} USD. Machine time whose work was lost: ${lasting(money.lost_s)}, ${usd(money.lost_usd)} USD. `
    + `The work that was kept takes ${usd(money.on_demand_usd)} USD on demand, never interrupted.`;
}

const what = (decision) => {
  if (decision.action !== "requested") return decision.action === "held" ? "waits" : `${decision.action} ${decision.lease_ids.join(", ")}`;
  const count = decision.lease_ids.length > 1 ? `${decision.lease_ids.length} x ` : "";
  return `requested ${count}${decision.market}, ${decision.on_demand ? "on demand" : decision.max_price_usd_per_hour === null ? "at any price" : `at most ${usd(decision.max_price_usd_per_hour)} USD/h`}`;
};
const result = (machine) => (machine.started_s === null ? machine.state
  : `${machine.state} after ${lasting(machine.held_s)}, ${number(machine.steps, 6)} steps, ${usd(machine.paid_usd)} USD`);

async function showDecisions(_status, run, lease) {
  const view = document.getElementById("view");
  if (!view.firstChild) {
    view.append(made("div", { id: "open" }), made("h2", {}, "Decisions, the newest first"),
      table("decisions", [["time"], ["lease", "number"], ["decided"], ["job"], ["why"], ["expected USD", "number"], ["came to"]]));
  }
  const { content, isNew } = await asked(`/api/runs/${encodeURIComponent(run)}/decisions`);
  const place = lease === undefined ? opened : content.findIndex((one) => (lease.startsWith("d") ? one.number === Number(lease.slice(1)) : one.decision.lease_ids.includes(Number(lease))));
  if (!isNew && view.dataset.place === String(place)) return;
  view.dataset.place = String(place);
  filled(view.querySelector("#decisions tbody"), content.map((one, at) => ({ one, at })).reverse().map(({ one, at }) => {
    const chosen = one.decision.alternatives.find((each) => each.is_chosen);
    const first = one.decision.lease_ids[0];
    return { key: String(at), kind: at === place ? "open" : "", cells: [time(one.decision.time_s), right(one.decision.lease_ids.join(", ")),
      { text: what(one.decision), href: `#/run/${encodeURIComponent(run)}/decisions/${first === undefined ? `d${one.number}` : first}` }, one.job || "-",
      one.decision.why || "-", right(chosen ? `${number(chosen.expected_usd, 6)}${hasSteps(one.decision) ? "" : " an hour"}` : "-"), one.machines.length ? result(one.machines[0]) : "-"] };
  }));
  const one = content[place];
  document.getElementById("open").replaceChildren(...(one ? explained(one) : [made("p", { class: "quiet" }, "Choose a decision to see what was weighed.")]));
}

function explained(one) {
  const decision = one.decision;
  const weighed = table("weighed", [["choice"], ["market"], ["expected USD", "number"], ["how"]]);
  filled(weighed.querySelector("tbody"), decision.alternatives.map((each, at) => ({ key: String(at), kind: each.is_chosen ? "chosen" : "",
    cells: [each.choice, each.market || "-", right(number(each.expected_usd, 7)), each.how || "-"] })));
  const offered = table("offered", [["market"], ["spot USD/h", "number"], ["list USD/h", "number"], ["work h", "number"], ["spot USD", "number"], ["list USD", "number"]]);
  filled(offered.querySelector("tbody"), decision.offered.map((each) => ({ key: each.market, kind: each.market === decision.market ? "chosen" : "",
    cells: [each.market, right(number(each.spot_usd_per_hour, 6)), right(number(each.on_demand_usd_per_hour, 6)), right(number(each.work_h, 6)), right(number(each.spot_usd, 6)), right(number(each.on_demand_usd, 6))] })));
  return [
    made("h2", {}, `${time(decision.time_s)}: ${what(decision)}${one.job ? ` for ${one.job}` : ""}`),
    made("p", {}, `Why: ${decision.why || "the policy gave no reason"}.`),
    made("p", { class: "quiet" }, `Asked because of: ${decision.woken_by.join(", ") || "nothing"}. ${!hasSteps(decision) ? "How many steps it has is not known: costs are for the work that what was chosen does in an hour. " : decision.steps_left === null ? "" : `${number(decision.steps_left, 7)} steps left, `}${usd(decision.spent_usd)} USD spent.`),
    ...(decision.alternatives.length ? [made("h2", {}, `What was weighed: expected cost ${hasSteps(decision) ? "until the job is done" : "of that work"}`), weighed] : []),
    ...(decision.offered.length ? [made("h2", {}, `What was offered: pure work at the prices of that moment (${decision.offered.length} of ${decision.markets} markets)`), offered] : []),
    made("ul", { class: "plain" }, ...one.machines.map((machine) => made("li", {}, `Lease ${machine.lease_id} came to: ${result(machine)}.`)),
      ...(one.later_machines > one.machines.length ? [made("li", {}, `${one.later_machines} machines requested for ${one.job} from then on cost ${usd(one.later_usd)} USD so far.`)] : [])),
  ];
}

const SHOW = { trials: showTrials, machines: showMachines, spend: showSpend, decisions: showDecisions };

async function refresh() {
  const [, kind, run, view, lease] = location.hash.split("/").map(decodeURIComponent);
  performance.mark("began");
  try {
    if (kind === "run" && SHOW[view]) {
      if (shown !== `${run}/${view}`) {
        head(run, view);
        shown = `${run}/${view}`;
      }
      const { content } = await asked(`/api/runs/${encodeURIComponent(run)}`);
      showFacts(content);
      await SHOW[view](content, run, lease);
    } else {
      document.getElementById("tabs").replaceChildren();
      await showRuns();
    }
    fresh.textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
    document.body.dataset.ready = shown;
  } catch (error) {
    fresh.textContent = error instanceof TypeError ? "the server does not answer" : error.message;
    if (!(error instanceof TypeError)) {
      main.replaceChildren(made("p", { class: "problem" }, error.message), made("p", {}, made("a", { href: "#/" }, "All runs")));
      shown = "";
    }
  }
  performance.measure("refresh", "began");
}

let next = 0;
async function live() {
  clearTimeout(next);
  await refresh();
  next = setTimeout(live, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}
addEventListener("hashchange", live);
addEventListener("DOMContentLoaded", live);
if (document.readyState !== "loading") live();
