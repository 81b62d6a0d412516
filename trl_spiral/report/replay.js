// ---- one game, turn by turn ----

// The last drawing in a text: lines in a row that are made of bars and rules, or of cells with spaces between them.
function boardIn(text) {
  const drawn = /[|│┃║]|[-─═+]{3,}|^\s*(\S{1,2}\s+){2,}\S{1,2}\s*$/;
  const lines = text.split("\n");
  let end = lines.length - 1;
  while (end >= 0 && !drawn.test(lines[end])) end--;
  let start = end;
  while (start > 0 && drawn.test(lines[start - 1])) start--;
  return end - start >= 2 ? lines.slice(start, end + 1).join("\n") : "";
}

// An observation, with the lines that the seat has read before in a lighter tone.
function observed(text, before) {
  const known = new Set(before === undefined ? [] : before.split("\n"));
  return make("pre", { class: "text" }, text.split("\n").map((line) => make("span", { class: known.has(line) && line.trim() ? "known" : "" }, `${line}\n`)));
}

function makeReplay(index, store) {
  const view = make("article", { class: "view", "aria-label": "Replay" });
  let place = -1, game = null, at = 0;

  async function open(wanted) {
    place = wanted;
    try {
      const found = await store.game(wanted);
      if (place !== wanted) return; // another was chosen meanwhile
      game = found;
    } catch (error) {
      close(error.message);
      return;
    }
    at = 0;
    draw();
  }

  function close(reason) {
    place = -1;
    game = null;
    view.replaceChildren(make("p", { class: "empty" }, reason));
  }

  function go(turn) {
    if (!game || turn < 0 || turn > game.turns.length) return;
    // The buttons are made anew, and whoever was on one of them stays there.
    const held = view.contains(document.activeElement) ? document.activeElement.dataset : {};
    at = turn;
    draw();
    const next = held.by && view.querySelector(`[data-by="${held.by}"]:enabled`);
    if (next) next.focus();
    else if (held.by || held.turn) view.querySelector('[aria-current="step"]').focus();
  }

  function draw() {
    const entry = index[place];
    const last = at === game.turns.length;
    view.replaceChildren(heading(entry), strip(), last ? ending(entry) : turn(entry, game.turns[at]));
    const marked = view.querySelector('[aria-current="step"]');
    const rail = marked.parentElement;
    rail.scrollLeft = marked.offsetLeft - rail.clientWidth / 2;
  }

  function heading(entry) {
    const seats = entry[PLAYERS].map((name, seat) => make("li", {}, make("i", { class: `seat s${seat % 4}` }), `seat ${seat} `, make("b", {}, name), make("span", { class: entry[RETURNS][seat] > 0 ? "won" : entry[RETURNS][seat] < 0 ? "lost" : "" }, ` ${signed(entry[RETURNS][seat])}`)));
    const opening = game.opening.length ? ` · opened at random by ${game.opening.map((move) => move[1]).join(" ")}` : "";
    return make("header", {},
      make("h3", {}, `${entry[GAME]}, game ${entry[NUMBER]}`),
      make("p", { class: "note" }, `${entry[KIND] === "final" ? "finished policy, step" : "training, step"} ${entry[STEP]} · ${entry[ENDING].replace("_", " ")}${opening}`),
      make("ul", { class: "seats" }, seats));
  }

  // A button for each turn, and under it a bar for its advantage.
  function strip() {
    const largest = Math.max(1e-9, ...game.turns.map((one) => Math.abs(one.advantage || 0)));
    const steps = game.turns.map((one, k) => {
      const bar = make("i", { class: one.advantage > 0 ? "bar up" : "bar down" });
      bar.style.height = `${!one.advantage ? 0 : Math.max(1, 11 * Math.abs(one.advantage) / largest)}px`;
      return make("button", {
        type: "button", "data-turn": k, "aria-current": k === at ? "step" : null, onclick: () => go(k),
        "aria-label": `Turn ${k + 1}, seat ${one.seat}, ${one.move === null ? "no legal move" : one.move}${one.advantage === null ? "" : `, advantage ${signed(one.advantage)}`}`,
      }, make("span", { class: "move" }, make("i", { class: `seat s${one.seat % 4}` }), one.move === null ? "✗" : one.move), make("span", { class: "bars" }, bar));
    });
    const done = make("button", { type: "button", "data-turn": game.turns.length, "aria-current": at === game.turns.length ? "step" : null, onclick: () => go(game.turns.length) }, make("span", { class: "move" }, "end"), make("span", { class: "bars" }));
    return make("div", { class: "steps" },
      make("button", { type: "button", class: "step", "data-by": "-1", disabled: at === 0, "aria-label": "Turn before", onclick: () => go(at - 1) }, "‹"),
      make("div", { class: "rail" }, steps, done),
      make("button", { type: "button", class: "step", "data-by": "1", disabled: at === game.turns.length, "aria-label": "Next turn", onclick: () => go(at + 1) }, "›"));
  }

  function lastSeen(seat, before) {
    for (let k = before - 1; k >= 0; k--) if (game.turns[k].seat === seat) return game.turns[k].sees;
    return undefined;
  }

  function turn(entry, one) {
    const board = boardIn(one.sees);
    const facts = [
      ["Move", one.move === null ? "none that was legal" : one.move],
      ["Advantage", one.advantage === null ? (one.policy === "policy" && entry[KIND] === "training" ? "not in this batch" : "not trained on") : signed(one.advantage)],
      ["Return", signed(entry[RETURNS][one.seat])],
      ["Tokens", one.tokens === null ? "scripted" : whole(one.tokens)],
      ["Log-probability", one.logprob === null ? "–" : `${number(one.logprob)} nats`],
      ["Weights", one.policy === null ? "–" : `${one.policy}, version ${one.version}`],
    ];
    const others = entry[PLAYERS].map((_, seat) => [seat, lastSeen(seat, at)]).filter(([seat, seen]) => seat !== one.seat && seen !== undefined);
    const reply = make("section", {}, make("h5", {}, "Reply"), make("pre", { class: "text reply" }, one.reply || (one.policy === null ? "A scripted player writes nothing but its move." : "Nothing was written.")));
    const saw = make("section", {}, make("h5", {}, `What seat ${one.seat} saw`), observed(one.sees, lastSeen(one.seat, at)));
    return make("div", { class: "turn" },
      make("h4", {}, make("i", { class: `seat s${one.seat % 4}` }), `Turn ${at + 1} of ${game.turns.length}: seat ${one.seat}, ${entry[PLAYERS][one.seat]}`),
      make("div", { class: "moment" },
        board ? make("pre", { class: "board", "aria-label": "Board before the move" }, board) : null,
        make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))),
      board ? [reply, saw] : [saw, reply], // a board says in little what the text says at length
      others.map(([seat, seen]) => make("details", {}, make("summary", {}, `What seat ${seat} last saw`), make("pre", { class: "text" }, seen))));
  }

  function ending(entry) {
    const board = boardIn(game.end[0]);
    const fault = game.offender === null ? "" : ` Seat ${game.offender} was at fault.`;
    return make("div", { class: "turn" },
      make("h4", {}, `The end: ${entry[ENDING].replace("_", " ")}`),
      make("p", {}, `${game.detail}${fault}`),
      make("div", { class: "moment" },
        board ? make("pre", { class: "board", "aria-label": "Board at the end" }, board) : null,
        make("dl", { class: "facts" }, entry[PLAYERS].map((name, seat) => make("div", {}, make("dt", {}, `Seat ${seat}, ${name}`), make("dd", {}, signed(entry[RETURNS][seat])))))),
      make("p", { class: "note" }, `Seed of the match: ${game.seed}`),
      game.end.map((text, seat) => make("details", {}, make("summary", {}, `What seat ${seat} sees now`), make("pre", { class: "text" }, text))));
  }

  return { view, open, close, step: (by) => go(at + by), current: () => place };
}

function drawGames(data) {
  const section = make("section", { id: "replay" }, make("h2", {}, "Games"));
  if (!data.games.length) {
    section.append(make("p", { class: "empty" }, "No game was kept. Add TranscriptCallback(trainer, every=20, games=20) to the trainer: it keeps games of training and of the finished policy."));
    return section;
  }
  const store = makeStore(data.block, data.plain);
  const replay = makeReplay(data.games, store);
  const list = makeList(data.games, replay.open);
  const filters = makeFilters(data.games, store, (places) => {
    list.show(places, replay.current());
    if (!places.length) replay.close("No kept game is like that. Loosen the filters.");
  });
  section.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target.matches("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    replay.step(by);
  });
  const sample = data.gamesKept > data.games.length ? ` An even sample of the ${whole(data.gamesKept)} that were kept.` : "";
  section.append(
    make("p", { class: "note" }, `Left and right arrows step through a game, up and down through the list. The bar under a move is its advantage.${sample}`),
    filters.form, make("div", { class: "replay" }, list.box, replay.view));
  requestAnimationFrame(filters.apply);
  return section;
}
