// The page at `/`: three forms that ask the server's own endpoints and show the answers. Whatever comes from the server or
// the reader is put into the page as text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** A table's row of [kind, ...children]; numbers are set to the right. */
const row = (...cells) => make("tr", {}, ...cells.map(([className, ...children]) => make("td", { className }, ...children)));

const shown = (number, digits = 2) => (Number.isFinite(number) ? number.toFixed(digits).replace("-", "−") : "–");
const percent = (share) => (share >= 0.001 || share === 0 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %");

// ---- asking -------------------------------------------------------------------------------------------------------

class Refused extends Error {}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = byId("api-key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401) {
    document.querySelector(".key").open = true;
    byId("api-key").focus();
  }
  throw new Refused(answer.error?.message || `The server answered with status ${response.status}.`);
}

function tell(panel, message, kind = "") {
  const status = panel.querySelector(".status");
  status.replaceChildren(...(message ? [make("p", { className: kind && `notice ${kind}` }, message)] : []));
}

/** `request(form)` gives the path and the body, or throws Refused; `show(answer, body)` puts the answer into the page. */
function wire(panelId, request, show) {
  const panel = byId(panelId);
  const form = panel.querySelector("form");
  const [go, stop] = [form.querySelector("[type=submit]"), form.querySelector(".stop")];
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    go.setAttribute("aria-disabled", "true");
    stop.hidden = false;
    tell(panel, "Working…");
    try {
      const { path, body } = request(form.elements);
      show(await ask(path, body, running.signal), body);
      tell(panel, "");
      panel.querySelector(".result").hidden = false;
      panel.querySelector(".result h3").focus();
    } catch (error) {
      panel.querySelector(".result").hidden = true;
      if (error.name === "AbortError") tell(panel, "Stopped.");
      else if (error instanceof Refused) tell(panel, error.message, "bad");
      else {
        tell(panel, "The server's answer could not be shown; the browser's console says why.", "bad");
        console.error(error);
      }
    } finally {
      running = null;
      go.removeAttribute("aria-disabled");
      stop.hidden = true;
    }
  });
  stop.addEventListener("click", () => running?.abort());
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

const MOST_ROWS = 200;
const numberOf = (input) => (input.value === "" ? null : Number(input.value));

// ---- generate -----------------------------------------------------------------------------------------------------

function generateRequest(fields) {
  return {
    path: "/v1/completions",
    body: {
      prompt: fields.prompt.value,
      n: numberOf(fields.n),
      max_tokens: numberOf(fields.max_tokens),
      temperature: numberOf(fields.temperature),
      seed: numberOf(fields.seed),
      energy: { proposals: numberOf(fields.proposals), top_k: numberOf(fields.top_k), details: true },
    },
  };
}

/** Self-normalised weights of the candidates: softmax of their log weights. */
function shares(candidates) {
  const logWeights = candidates.map((candidate) => candidate.log_weight ?? -Infinity);
  const highest = Math.max(...logWeights);
  const weights = logWeights.map((logWeight) => Math.exp(logWeight - highest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

function sample(prompt, text, numbers) {
  return make(
    "li",
    {},
    make("p", { className: "text" }, make("span", { className: "prompt" }, prompt), text),
    ...(numbers ? [make("p", { className: "numbers small faint" }, numbers)] : []),
  );
}

function showGenerated(answer, body) {
  const facts = answer.energylm ?? {};
  const candidates = facts.candidates ?? [];
  const weight = shares(candidates);
  const indices = new Map(candidates.map((candidate, index) => [candidate.text, index])); // the first text's candidates
  const numbers = (text, energy, isFirst) => {
    const index = isFirst ? indices.get(text) : undefined;
    const known = index === undefined ? energy : candidates[index].energy;
    return [
      ...(Number.isFinite(known) ? [`energy ${shown(known)}`] : []),
      ...(index === undefined ? [] : [`weight ${percent(weight[index])}`]),
    ].join(", ");
  };
  byId("base-samples").replaceChildren(
    ...(facts.base ?? []).map((text, index) => sample(body.prompt, text, numbers(text, null, index === 0))),
  );
  byId("joint-samples").replaceChildren(
    ...answer.choices.map(({ text, energylm }, index) => sample(body.prompt, text, numbers(text, energylm?.energy, index === 0))),
  );
  byId("generate").querySelector(".facts").replaceChildren(...factsInWords(facts, answer.choices));
  byId("generate").querySelector(".more").hidden = !candidates.length;
  const order = candidates.map((_, index) => index).sort((a, b) => weight[b] - weight[a]);
  byId("candidates").replaceChildren(
    ...order.slice(0, MOST_ROWS).map((index) =>
      row(
        ["number", meterOf(weight[index], weight[order[0]]), percent(weight[index])],
        ["number", shown(candidates[index].energy)],
        ["number", shown(candidates[index].log_weight)],
        ["text", candidates[index].text],
      ),
    ),
  );
}

/** What the choice rests on: the effective sample size, and how far to trust it. */
function factsInWords(facts, choices) {
  const count = facts.candidates?.length;
  const faint = (words) => make("p", { className: "faint" }, words);
  if (!count) return [faint("No energy chose here: both columns are the base model’s.")];
  const each = choices.map((choice) => choice.energylm?.ess).filter(Number.isFinite);
  const share = facts.ess / count;
  const words =
    share < 0.05
      ? "Few candidates carry nearly all the weight: ask for more of them."
      : share > 0.9
        ? "The energy hardly tells these candidates apart."
        : "The energy prefers some candidates, and enough of them.";
  return [
    make("p", {}, make("strong", {}, shown(facts.ess, 1)), ` effective of ${count} candidates (ESS)`),
    ...(each.length > 1 ? [faint(`ESS of each sample: ${each.map((ess) => shown(ess, 1)).join(", ")}`)] : []),
    faint(facts.warning ?? words),
  ];
}

function meterOf(value, max) {
  const meter = make("meter", { className: "share", min: 0, max, value });
  meter.setAttribute("aria-hidden", "true"); // the number stands beside it
  return meter;
}

// ---- detect -------------------------------------------------------------------------------------------------------

const VERDICTS = { human: "A person", machine: "A machine", abstains: "No verdict" };
const STRONGEST = 0.5; // opacity, so that text stays readable on light and dark ground

/** Stretches between the ends of blocks: [start, end, mean score of the blocks that cover it or null]. */
function stretches(length, blocks) {
  const ends = [...new Set([0, length, ...blocks.flatMap((block) => [block.start, block.end])])].sort((a, b) => a - b);
  return ends.slice(0, -1).map((start, index) => {
    const end = ends[index + 1];
    const scores = blocks.filter((block) => block.start <= start && end <= block.end).map((block) => block.score);
    return [start, end, scores.length ? scores.reduce((sum, score) => sum + score, 0) / scores.length : null];
  });
}

function coloured(text, score) {
  const probability = 1 / (1 + Math.exp(-score));
  const [name, strength] = probability > 0.5 ? ["--orange", 2 * probability - 1] : ["--blue", 1 - 2 * probability];
  const mark = make("mark", { title: `score ${shown(score)}` }, text);
  mark.style.backgroundColor = `rgba(var(${name}), ${(STRONGEST * strength).toFixed(3)})`;
  return mark;
}

function showDetected(answer, body) {
  const [result] = answer.results;
  const characters = Array.from(body.texts[0]); // the server counts characters, JavaScript's strings count halves of some
  const verdict = byId("verdict");
  verdict.textContent = VERDICTS[result.verdict] ?? result.verdict;
  verdict.dataset.verdict = result.verdict;
  const calibrated = Number.isFinite(result.probability);
  byId("verdict-probability").textContent = calibrated ? `${percent(result.probability)} likely a machine’s` : "";
  byId("scale").hidden = !calibrated;
  byId("scale").querySelector("i").style.left = `${100 * (result.probability ?? 0)}%`;
  byId("reason").textContent = sentence(result.reason ?? "");
  byId("calibration").textContent = calibrationInWords(result.calibration);
  byId("blocks").replaceChildren(
    ...stretches(characters.length, result.blocks).flatMap(([start, end, score]) => {
      const text = characters.slice(start, end).join("");
      return score === null ? [text] : [make("small", {}, shown(score, 1)), coloured(text, score)];
    }),
  );
  byId("block-rows").replaceChildren(
    ...result.blocks.map((block) =>
      row(
        ["number", `${block.start}–${block.end}`],
        ["number", shown(block.score)],
        ["text", `${characters.slice(block.start, block.start + 60).join("")}…`],
      ),
    ),
  );
}

const sentence = (words) => words && `${words[0].toUpperCase()}${words.slice(1)}.`;

function calibrationInWords(calibration) {
  if (!calibration) return "This detector is not calibrated: its scores are not probabilities.";
  return (
    `Calibrated so that at most ${percent(calibration.asked_rate)} of human texts like those of its calibration ` +
    "are called a machine’s. " +
    "The probability holds where both kinds are equally frequent beforehand."
  );
}

// ---- rerank -------------------------------------------------------------------------------------------------------

function readHypotheses(written) {
  if (written.trimStart().startsWith("[")) {
    let list;
    try {
      list = JSON.parse(written);
    } catch (error) {
      throw new Refused(`The list is not JSON: ${error.message}`);
    }
    return list.map((entry) => (typeof entry === "string" ? { text: entry, score: 0 } : { text: entry.text, score: entry.score ?? 0 }));
  }
  const lines = written.split("\n").map((line) => line.trim()).filter(Boolean);
  const scored = lines.map((line) => line.match(/^([-−+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[\s|]+(\S.*)$/));
  if (scored.every(Boolean)) return scored.map(([, score, text]) => ({ text, score: Number(score.replace("−", "-")) }));
  const without = scored.findIndex((match) => !match);
  if (scored.some(Boolean)) throw new Refused(`Line ${without + 1} has no score, but others do: “${lines[without]}”`);
  return lines.map((text) => ({ text, score: 0 }));
}

function rerankRequest(fields) {
  return {
    path: "/v1/rerank",
    body: { hypotheses: readHypotheses(fields.hypotheses.value), weight: numberOf(fields.weight) },
  };
}

function showRanked(answer, body) {
  byId("ranked").replaceChildren(
    ...answer.results.map((result, index) => {
      const rise = result.index - index;
      const moved = rise ? `${rise > 0 ? "▲ up" : "▼ down"} ${Math.abs(rise)}` : "";
      return row(
        ["number", String(index + 1)],
        ["number", String(result.index + 1), make("span", { className: "moved" }, moved)],
        ["text", body.hypotheses[result.index].text],
        ["number", shown(body.hypotheses[result.index].score)],
        ["number", shown(result.model_score)],
        ["number", shown(result.total)],
      );
    }),
  );
}

// ---- tabs ---------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab, { focus = false } = {}) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => {
    choose(tab);
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = { Home: tabs[0], End: tabs.at(-1) }[event.key] ?? (step && tabs.at((index + step) % tabs.length));
    if (next) {
      event.preventDefault();
      choose(next, { focus: true });
    }
  });
});
choose(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);

wire("generate", generateRequest, showGenerated);
wire("detect", (fields) => ({ path: "/v1/detect", body: { texts: [fields.text.value] } }), showDetected);
wire("rerank", rerankRequest, showRanked);
