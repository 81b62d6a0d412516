// ---- kept games: unpacked when they are looked at, listed as far as they are in sight ----
const ROW = 54; // pixels, as in the style sheet
const SPARE = 6; // rows drawn beyond either edge

const [GAME, NUMBER, STEP, KIND, PLAYERS, ENDING, RETURNS, TURNS] = [0, 1, 2, 3, 4, 5, 6, 7];

function opponentOf(entry) {
  const others = [...new Set(entry[PLAYERS].filter((name) => name !== "policy"))];
  return others.length ? others.sort().join(" + ") : "itself";
}

// The games' texts, in packed blocks. A block is unpacked once; a game is parsed each time it is asked for.
function makeStore(blockSize, isPlain) {
  const packed = [...document.querySelectorAll("script.games")];
  const unpacked = new Map();

  async function unpack(block) {
    const text = packed[block].textContent;
    if (isPlain) return text.split("\n");
    if (!("DecompressionStream" in window)) {
      throw new Error("This browser cannot unpack the games: those of May 2023 and later can. Or write the page with --plain.");
    }
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return (await new Response(stream).text()).split("\n");
  }

  function lines(block) {
    if (!unpacked.has(block)) unpacked.set(block, unpack(block));
    return unpacked.get(block);
  }

  return {
    game: async (place) => JSON.parse((await lines(Math.floor(place / blockSize)))[place % blockSize]),
    // What a search looks at, of every game of a block: all that was read, written and said.
    texts: async (block) => (await lines(block)).map((line) => {
      const game = JSON.parse(line);
      return [game.detail, ...game.end, ...game.turns.flatMap((turn) => [turn.sees, turn.reply, turn.move])].join("\n").toLowerCase();
    }),
    blockSize,
  };
}

// The list. `choose` is called with a game's place in the index.
function makeList(index, choose) {
  const spacer = make("div", { class: "spacer" });
  const box = make("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": "Kept games; up and down arrows choose" }, spacer);
  let shown = [];
  let chosen = -1; // position in `shown`

  function row(position) {
    const entry = index[shown[position]];
    const result = entry[RETURNS].map((value) => signed(value)).join(" : ");
    const element = make("div", {
      class: "row", id: `game-${shown[position]}`, role: "option",
      "aria-selected": String(position === chosen), "aria-posinset": position + 1, "aria-setsize": shown.length,
      onclick: () => go(position),
    },
      make("span", { class: "top" }, make("b", {}, entry[PLAYERS].join(" – ")), make("span", { class: "result" }, result)),
      make("span", { class: "bottom" }, `${entry[KIND] === "final" ? "final" : "step"} ${entry[STEP]} · ${entry[GAME]} · `,
        make("span", { class: entry[ENDING] === "finished" ? "" : "bad" }, entry[ENDING].replace("_", " ")), ` · ${entry[TURNS]} ${entry[TURNS] === 1 ? "turn" : "turns"}`));
    element.style.transform = `translateY(${position * ROW}px)`;
    return element;
  }

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const last = Math.min(shown.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
    const rows = [];
    for (let position = first; position < last; position++) rows.push(row(position));
    spacer.replaceChildren(...rows);
    const active = shown[chosen];
    if (active === undefined) box.removeAttribute("aria-activedescendant");
    else box.setAttribute("aria-activedescendant", `game-${active}`);
  }

  function go(position) {
    if (position < 0 || position >= shown.length) return;
    chosen = position;
    if (position * ROW < box.scrollTop) box.scrollTop = position * ROW;
    if ((position + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (position + 1) * ROW - box.clientHeight;
    draw();
    choose(shown[position]);
  }

  box.addEventListener("scroll", draw, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
    const moves = { ArrowUp: chosen - 1, ArrowDown: chosen + 1, PageUp: Math.max(0, chosen - page), PageDown: Math.min(shown.length - 1, chosen + page), Home: 0, End: shown.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(moves[event.key]);
  });
  new ResizeObserver(draw).observe(box);

  return {
    box,
    // Lists other games, and keeps to the one that is open if it is among them.
    show(places, keep) {
      shown = places;
      spacer.style.height = `${shown.length * ROW}px`;
      chosen = shown.indexOf(keep);
      box.scrollTop = Math.max(0, chosen * ROW - box.clientHeight / 2);
      if (chosen < 0 && shown.length) go(0);
      else draw();
    },
  };
}

// The filters and the search. `show` is called with the places of the games that pass.
function makeFilters(index, store, show) {
  const said = make("output", { class: "count", "aria-live": "polite" });
  const fields = {
    game: [(entry) => entry[GAME], "Game", "every game"],
    against: [opponentOf, "Against", "anybody"],
    ending: [(entry) => entry[ENDING], "Ending", "any ending"],
    step: [(entry) => entry[KIND] === "final" ? `final ${entry[STEP]}` : String(entry[STEP]), "Step", "any step"],
  };
  const controls = {};
  const choices = Object.entries(fields).map(([name, [read, title, all]]) => {
    const found = [...new Set(index.map(read))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    controls[name] = make("select", { id: `by-${name}`, onchange: apply }, make("option", { value: "" }, all), found.map((value) => make("option", { value }, value.replace("_", " "))));
    return make("div", {}, make("label", { for: `by-${name}` }, title), controls[name]);
  });
  const search = make("input", { id: "search", type: "search", placeholder: "in what was read and written", spellcheck: "false", oninput: () => { clearTimeout(waiting); waiting = setTimeout(apply, 200); } });
  let waiting, latest = 0;

  async function apply() {
    const mine = ++latest;
    const passing = [];
    index.forEach((entry, place) => {
      if (Object.entries(fields).every(([name, [read]]) => !controls[name].value || read(entry) === controls[name].value)) passing.push(place);
    });
    const wanted = search.value.trim().toLowerCase();
    let found = passing;
    if (wanted) {
      found = [];
      const left = new Set(passing);
      for (const block of new Set(passing.map((place) => Math.floor(place / store.blockSize)))) {
        said.textContent = `searching, ${found.length} found …`;
        const texts = await store.texts(block);
        if (mine !== latest) return; // the question has changed
        texts.forEach((text, k) => { if (left.has(block * store.blockSize + k) && text.includes(wanted)) found.push(block * store.blockSize + k); });
      }
    }
    said.textContent = `${whole(found.length)} of ${whole(index.length)} games`;
    show(found);
  }

  return { form: make("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, choices, make("div", { class: "wide" }, make("label", { for: "search" }, "Search"), search), said), apply };
}
