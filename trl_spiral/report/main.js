// ---- the report of a run ----
function drawHead() {
  const { command, seed, settings = {}, versions = {} } = data.description;
  const facts = [
    ["Steps", data.maxSteps ? `${whole(data.step)} of ${whole(data.maxSteps)}` : "no log"],
    ["Seed", seed === undefined ? "not recorded" : String(seed)],
    ["Recorded games", whole(data.gamesKept)],
    ["Warnings", data.warnings.length ? whole(data.warnings.length) : "none"],
    ...latest(),
  ];
  const changed = Object.entries(settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  document.getElementById("head").append(
    make("p", { class: "kind" }, "Self-play report"), make("h1", {}, data.name),
    make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    make("p", { class: "empty", hidden: data.maxSteps > 0 }, "No log yet: trainer_state.json is written with each checkpoint, and at the end by trainer.save_state()."),
    make("div", { class: "command" }, make("h2", {}, "Command"),
      command ? make("pre", { class: "text", tabindex: "0" }, command) : make("p", { class: "empty" }, "Not recorded. TranscriptCallback writes the command and the seed to run.json."),
      changed.length ? make("details", {}, make("summary", {}, `${changed.length} settings with other values than the default`), make("pre", { class: "text" }, changed.join("\n"))) : null,
      Object.keys(versions).length ? make("p", { class: "note" }, Object.entries(versions).map(([name, value]) => `${name} ${value}`).join(" · ")) : null));
}

// The latest values of the most important metrics.
function latest() {
  const wanted = {
    "selfplay/draw_rate": "Draws", "selfplay/illegal_rate": "Illegal", "selfplay/truncated_rate": "Truncated",
    "selfplay/reply_length": "Reply length",
  };
  const curves = data.groups.flatMap((group) => group.charts.flatMap((chart) => chart.series.map((one) => [one, chart.unit])));
  return Object.entries(wanted).flatMap(([metric, label]) => {
    const found = curves.find(([one]) => one.metric === metric);
    return found ? [[label, inUnit(found[0].points.at(-1)[1], found[1])]] : [];
  });
}

function drawWarnings() {
  if (!data.warnings.length) return null;
  return make("section", { id: "warnings", class: "warnings" }, make("h2", {}, "Warnings"),
    make("ol", {}, data.warnings.map((one) => make("li", {}, make("b", {}, `Step ${one.step} `), ...prose(one.sentence), make("small", {}, one.metric)))));
}

function drawPage() {
  const lastStep = Math.max(1, data.step, ...data.groups.flatMap((group) => group.charts.flatMap((chart) => chart.series.flatMap((one) => one.points.map((point) => point[0])))));
  drawHead();
  const curves = data.groups.filter((group) => group.charts.length || group.empty).map((group) => drawGroup(group, lastStep, data.warnings));
  curves.find((section) => section.id === "exploitability").append(...drawGrades(data.grades));
  const sections = [drawWarnings(), ...curves, make("div", { class: "pair" }, drawMatrix(data.matrix, data.cycles), drawLadder(data.ladder)), drawGames(data), drawOthers(data.others, lastStep)].filter(Boolean);
  document.getElementById("main").replaceChildren(...sections);
  document.getElementById("nav").append(...[...document.querySelectorAll("main section[id]")].map((section) => make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
}

drawPage();
