// ---- games, turn by turn ----
const [GAME, NUMBER, STEP, KIND, PLAYERS, ENDING, RETURNS, TURNS] = [0, 1, 2, 3, 4, 5, 6, 7];

function opponentOf(entry) {
  const others = [...new Set(entry[PLAYERS].filter((name) => name !== "policy"))];
  return others.length ? others.sort().join(" + ") : "itself";
}

// The last board in a text: consecutive lines of bars and rules, or of cells separated by spaces.
function boardIn(text) {
  const drawn = /[|│┃║]|[-─═+]{3,}|^\s*(\S{1,2}\s+){2,}\S{1,2}\s*$/;
  const lines = text.split("\n");
  let end = lines.length - 1;
  while (end >= 0 && !drawn.test(lines[end])) end--;
  let start = end;
  while (start > 0 && drawn.test(lines[start - 1])) start--;
  return end - start >= 2 ? lines.slice(start, end + 1).join("\n") : "";
}

// An observation, with lines that the seat has seen before in a lighter colour.
function observed(text, before) {
  const known = new Set(before === undefined ? [] : before.split("\n"));
  return make("pre", { class: "text" }, text.split("\n").map((line) => make("span", { class: known.has(line) && line.trim() ? "known" : "" }, `${line}\n`)));
}

// One game: its turns and its ending.
function gameStory(entry, game) {
  function heading() {
    const seats = entry[PLAYERS].map((name, seat) => make("li", {}, make("i", { class: `seat s${seat % 4}` }), `seat ${seat} `, make("b", {}, name), make("span", { class: entry[RETURNS][seat] > 0 ? "won" : entry[RETURNS][seat] < 0 ? "lost" : "" }, ` ${signed(entry[RETURNS][seat])}`)));
    const opening = game.opening.length ? ` · random opening ${game.opening.map((move) => move[1]).join(" ")}` : "";
    return make("header", {},
      make("h3", {}, `${entry[GAME]}, game ${entry[NUMBER]}`),
      make("p", { class: "note" }, `${entry[KIND] === "final" ? "final policy, step" : "training, step"} ${entry[STEP]} · ${entry[ENDING].replace("_", " ")}${opening}`),
      make("ul", { class: "seats" }, seats));
  }

  // The button of a turn shows its move, and a bar for its advantage.
  const largest = Math.max(1e-9, ...game.turns.map((one) => Math.abs(one.advantage || 0)));

  function face(one) {
    const bar = make("i", { class: one.advantage > 0 ? "bar up" : "bar down" });
    bar.style.height = `${!one.advantage ? 0 : Math.max(1, 11 * Math.abs(one.advantage) / largest)}px`;
    return [make("span", { class: "move" }, make("i", { class: `seat s${one.seat % 4}` }), one.move === null ? "✗" : one.move), make("span", { class: "bars" }, bar)];
  }

  function lastSeen(seat, before) {
    for (let k = before - 1; k >= 0; k--) if (game.turns[k].seat === seat) return game.turns[k].sees;
    return undefined;
  }

  function turn(one, at) {
    const board = boardIn(one.sees);
    const facts = [
      ["Move", one.move === null ? "no legal move" : one.move],
      ["Advantage", one.advantage === null ? (one.policy === "policy" && entry[KIND] === "training" ? "not in this batch" : "not trained on") : signed(one.advantage)],
      ["Return", signed(entry[RETURNS][one.seat])],
      ["Tokens", one.tokens === null ? "scripted" : whole(one.tokens)],
      ["Log-probability", one.logprob === null ? "–" : `${number(one.logprob)} nats`],
      ["Weights", one.policy === null ? "–" : `${one.policy}, version ${one.version}`],
    ];
    const others = entry[PLAYERS].map((_, seat) => [seat, lastSeen(seat, at)]).filter(([seat, seen]) => seat !== one.seat && seen !== undefined);
    const reply = make("section", {}, make("h5", {}, "Reply"), make("pre", { class: "text reply" }, one.reply || (one.policy === null ? "Scripted players write no reply." : "The reply is empty.")));
    const saw = make("section", {}, make("h5", {}, `Observation of seat ${one.seat}`), observed(one.sees, lastSeen(one.seat, at)));
    return make("div", { class: "turn" },
      make("h4", {}, make("i", { class: `seat s${one.seat % 4}` }), `Turn ${at + 1} of ${game.turns.length}: seat ${one.seat}, ${entry[PLAYERS][one.seat]}`),
      make("div", { class: "moment" },
        board ? make("pre", { class: "board", "aria-label": "Board before the move" }, board) : null,
        make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))),
      board ? [reply, saw] : [saw, reply], // a board makes the text less important
      others.map(([seat, seen]) => make("details", {}, make("summary", {}, `Last observation of seat ${seat}`), make("pre", { class: "text" }, seen))));
  }

  function ending() {
    const board = boardIn(game.end[0]);
    const fault = game.offender === null ? "" : ` Seat ${game.offender} caused it.`;
    return make("div", { class: "turn" },
      make("h4", {}, `The end: ${entry[ENDING].replace("_", " ")}`),
      make("p", {}, `${game.detail}${fault}`),
      make("div", { class: "moment" },
        board ? make("pre", { class: "board", "aria-label": "Board at the end" }, board) : null,
        make("dl", { class: "facts" }, entry[PLAYERS].map((name, seat) => make("div", {}, make("dt", {}, `Seat ${seat}, ${name}`), make("dd", {}, signed(entry[RETURNS][seat])))))),
      make("p", { class: "note" }, `Seed of the match: ${game.seed}`),
      game.end.map((text, seat) => make("details", {}, make("summary", {}, `Final observation of seat ${seat}`), make("pre", { class: "text" }, text))));
  }

  return {
    heading: heading(),
    stops: [
      ...game.turns.map((one, k) => ({
        face: face(one),
        said: `Turn ${k + 1}, seat ${one.seat}, ${one.move === null ? "no legal move" : one.move}${one.advantage === null ? "" : `, advantage ${signed(one.advantage)}`}`,
        draw: () => turn(one, k),
      })),
      { face: [make("span", { class: "move" }, "end"), make("span", { class: "bars" })], said: "The end", draw: ending },
    ],
  };
}

const GAMES = {
  one: "game",
  many: "games",
  note: " The bar under a move is its advantage.",
  fields: {
    game: [(entry) => entry[GAME], "Game", "every game"],
    against: [opponentOf, "Against", "every opponent"],
    ending: [(entry) => entry[ENDING].replace("_", " "), "Ending", "every ending"],
    step: [(entry) => entry[KIND] === "final" ? `final ${entry[STEP]}` : String(entry[STEP]), "Step", "every step"],
  },
  row: (entry) => ({
    name: entry[PLAYERS].join(" – "),
    result: entry[RETURNS].map((value) => signed(value)).join(" : "),
    about: [`${entry[KIND] === "final" ? "final" : "step"} ${entry[STEP]} · ${entry[GAME]} · `,
      make("span", { class: entry[ENDING] === "finished" ? "" : "bad" }, entry[ENDING].replace("_", " ")), ` · ${entry[TURNS]} ${entry[TURNS] === 1 ? "turn" : "turns"}`],
  }),
  texts: (game) => [game.detail, ...game.end, ...game.turns.flatMap((turn) => [turn.sees, turn.reply, turn.move])],
  story: gameStory,
};

function drawGames(data) {
  const section = make("section", { id: "replay" }, make("h2", {}, "Games"));
  if (data.games.length) fillBrowser(section, data.games, data.gamesKept, GAMES);
  else section.append(make("p", { class: "empty" }, "No games were recorded. Add TranscriptCallback(trainer, every=20, games=20) to the trainer: it records games of training and of the final policy."));
  return section;
}
