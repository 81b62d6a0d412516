// ---- the comparison of models on tasks ----
const [MODEL, TASK, PROBLEM, SAMPLE, SCORE, SOLVED, TRUNCATED] = [0, 1, 2, 3, 4, 5, 6];

function score(value) {
  return value.toFixed(3);
}

function percent(share) {
  return inUnit(share, "share");
}

function drawHead() {
  const { models, tasks, problems, replies } = data.counts;
  const facts = [["Models", models], ["Tasks", tasks], ["Problems", problems], ["Replies", replies]];
  document.getElementById("head").append(
    make("p", { class: "kind" }, "Comparison of models"), make("h1", {}, data.name),
    make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, whole(value))))));
}

// The mean score of a model as a bar from 0 to 1, with its interval.
function drawStanding(one, first) {
  const amount = make("i", { class: "amount" });
  const interval = make("i", { class: "interval" });
  const [mean, low, high] = one.score;
  amount.style.width = `${100 * mean}%`;
  interval.style.left = `${100 * low}%`;
  interval.style.width = `${100 * (high - low)}%`;
  const each = one.replies > one.problems ? `, ${whole(one.replies)} replies` : "";
  const said = [`solved ${percent(one.solved[0])} (${percent(one.solved[1])} to ${percent(one.solved[2])})`, `${whole(one.problems)} ${one.problems === 1 ? "problem" : "problems"}${each}`];
  if (one.difference) {
    const gain = (value) => (value > 0 ? "+" : "") + score(value).replace("-", "−");
    said.push(`${gain(one.difference[0])}${between(one.difference, gain)} to ${first} on ${whole(one.shared)} shared ${one.shared === 1 ? "problem" : "problems"}`);
  } else if (one.model !== first) said.push(`no problems shared with ${first}`);
  return make("li", {},
    make("span", { class: "who" }, one.model), make("span", { class: "points" }, score(mean), make("small", {}, between(one.score, score))),
    make("span", { class: "track", "aria-hidden": "true" }, [0, 0.25, 0.5, 0.75, 1].map((tick) => at(tick, make("i", { class: "rule" }))), amount, low === null ? null : interval),
    make("span", { class: "note" }, said.join(" · ")));
}

// An interval in words. A single problem has none.
function between([, low, high], written) {
  return low === null ? "" : ` (${written(low)} to ${written(high)})`;
}

function at(share, element) {
  element.style.left = `${100 * share}%`;
  return element;
}

function drawScores() {
  const tasks = [...new Set(data.standings.map((one) => one.task))];
  return make("section", { id: "scores" }, make("h2", {}, "Mean scores"),
    make("div", { class: "charts wide" }, tasks.map((task) => {
      const standings = data.standings.filter((one) => one.task === task);
      return make("figure", { class: "chart" }, make("figcaption", {}, make("h3", {}, task)),
        make("ol", { class: "scores" }, standings.map((one) => drawStanding(one, standings[0].model)),
          make("li", { class: "axis", "aria-hidden": "true" }, make("span", { class: "track" }, [0, 0.25, 0.5, 0.75, 1].map((tick) => at(tick, make("em", {}, String(tick))))))));
    })),
    data.askedDifferently.map((sentence) => make("p", { class: "note bad" }, sentence)),
    make("p", { class: "note" }, data.methods));
}

// A board, or text that needs wrapping.
function frame(text) {
  const isText = text.split("\n").some((line) => line.length > 72);
  return make("pre", { class: isText ? "text" : "board", tabindex: "0" }, text);
}

// One reply, step by step.
function replyStory(entry, reply) {
  const facts = [["Score", score(entry[SCORE])], ["Solved", entry[SOLVED] ? "yes" : "no"], ["Tokens", `${whole(reply.tokens)}${entry[TRUNCATED] ? ", truncated" : ""}`], ...reply.detail];
  const count = reply.frames.length - 1;
  // The solution comes last. It is not a step of the reply.
  const pictures = reply.solution ? [...reply.frames, reply.solution] : reply.frames;
  const faces = pictures.map((_, k) => k > count ? "solution" : k === 0 ? "start" : String(k));
  const names = pictures.map((_, k) => k > count ? "The solution" : k === 0 ? "The start" : `Step ${k} of ${count}`);

  function draw(k) {
    const said = pictures.length ? [make("h4", {}, names[k]), frame(pictures[k])]
      : [make("p", { class: "empty" }, `The task ${entry[TASK]} is not registered, so its replies have no steps. Name its module with --import.`)];
    return make("div", { class: "turn" }, said,
      make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      make("section", {}, make("h5", {}, "Reply"), make("pre", { class: "text reply", tabindex: "0" }, reply.response || "The reply is empty.")),
      reply.prompt.map(([role, content]) => make("details", {}, make("summary", {}, `Prompt (${role})`), make("pre", { class: "text" }, content))));
  }

  return {
    heading: make("header", {}, make("h3", {}, `${entry[MODEL]} on ${entry[TASK]}`), make("p", { class: "note" }, `${entry[PROBLEM]} · sample ${entry[SAMPLE]}`)),
    stops: (pictures.length ? names : ["The reply"]).map((said, k) => ({
      face: make("span", { class: "move" }, faces[k] || "reply"), said, draw: () => draw(k),
    })),
  };
}

const REPLIES = {
  one: "reply",
  many: "replies",
  note: " Replies to the same problem are adjacent.",
  fields: {
    model: [(entry) => entry[MODEL], "Model", "every model"],
    task: [(entry) => entry[TASK], "Task", "every task"],
    solved: [(entry) => entry[SOLVED] ? "solved" : "not solved", "Solved", "any"],
    truncated: [(entry) => entry[TRUNCATED] ? "truncated" : "complete", "Length", "any length"],
  },
  row: (entry) => ({
    name: make("bdi", {}, entry[MODEL]),
    result: score(entry[SCORE]),
    about: [make("span", { class: entry[SOLVED] ? "" : "bad" }, entry[SOLVED] ? "solved" : "not solved"), ` · ${entry[PROBLEM]}`, entry[SAMPLE] ? ` · sample ${entry[SAMPLE]}` : ""],
  }),
  texts: (reply) => [...reply.prompt.map((message) => message[1]), ...reply.frames, reply.solution, reply.response],
  story: replyStory,
};

function drawPage() {
  drawHead();
  const replies = make("section", { id: "replay" }, make("h2", {}, "Replies"));
  fillBrowser(replies, data.replies, data.counts.replies, REPLIES);
  document.getElementById("main").replaceChildren(drawScores(), replies);
  document.getElementById("nav").append(...[...document.querySelectorAll("main section[id]")].map((section) => make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
}

drawPage();
