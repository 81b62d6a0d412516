// ---- browser of records: decompresses records when they are opened, and draws only visible rows ----
// A `kind` describes games or replies: nouns (`one`, `many`), a `row` of the list, the `fields` of the filters, the
// `texts` to search, the `story` to step through, and a `note` on how to read it.
const ROW = 54; // pixels, as in the style sheet
const SPARE = 6; // rows drawn beyond either edge

// The records, in compressed blocks. A block is decompressed once; a record is parsed each time it is opened.
function makeStore(blockSize, isPlain, many, textsOf) {
  const packed = [...document.querySelectorAll("script.records")];
  const unpacked = new Map();

  async function unpack(block) {
    const text = packed[block].textContent;
    if (isPlain) return text.split("\n");
    if (!("DecompressionStream" in window)) {
      throw new Error(`This browser cannot decompress the ${many}. Use a browser of May 2023 or later, or write the page with --plain.`);
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
    record: async (place) => JSON.parse((await lines(Math.floor(place / blockSize)))[place % blockSize]),
    // Lower-case text of every record of a block, for the search.
    texts: async (block) => (await lines(block)).map((line) => textsOf(JSON.parse(line)).join("\n").toLowerCase()),
    blockSize,
  };
}

// The list. It calls `choose` with the index of an entry.
function makeList(index, kind, choose) {
  const spacer = make("div", { class: "spacer" });
  const box = make("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": `Recorded ${kind.many}; select with up and down arrows` }, spacer);
  let shown = [];
  let chosen = -1; // position in `shown`

  function row(position) {
    const entry = index[shown[position]];
    const { name, result, about } = kind.row(entry);
    const element = make("div", {
      class: "row", id: `${kind.one}-${shown[position]}`, role: "option",
      "aria-selected": String(position === chosen), "aria-posinset": position + 1, "aria-setsize": shown.length,
      onclick: () => go(position),
    },
      make("span", { class: "top" }, make("b", {}, name), make("span", { class: "result" }, result)),
      make("span", { class: "bottom" }, about));
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
    else box.setAttribute("aria-activedescendant", `${kind.one}-${active}`);
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
    // Shows other entries; the open entry stays selected if it is among them.
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

// The filters and the search. They call `show` with the indices of the matching entries.
function makeFilters(index, kind, store, show) {
  const said = make("output", { class: "count", "aria-live": "polite" });
  const controls = {};
  const choices = Object.entries(kind.fields).map(([name, [read, title, all]]) => {
    const found = [...new Set(index.map(read))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    controls[name] = make("select", { id: `by-${name}`, onchange: apply }, make("option", { value: "" }, all), found.map((value) => make("option", { value }, value)));
    return make("div", {}, make("label", { for: `by-${name}` }, title), controls[name]);
  });
  const search = make("input", { id: "search", type: "search", placeholder: "in prompts and replies", spellcheck: "false", oninput: () => { clearTimeout(waiting); waiting = setTimeout(apply, 200); } });
  let waiting, latest = 0;

  async function apply() {
    const mine = ++latest;
    const passing = [];
    index.forEach((entry, place) => {
      if (Object.entries(kind.fields).every(([name, [read]]) => !controls[name].value || read(entry) === controls[name].value)) passing.push(place);
    });
    const wanted = search.value.trim().toLowerCase();
    let found = passing;
    if (wanted) {
      found = [];
      const left = new Set(passing);
      for (const block of new Set(passing.map((place) => Math.floor(place / store.blockSize)))) {
        said.textContent = `searching, ${found.length} found …`;
        const texts = await store.texts(block);
        if (mine !== latest) return; // a newer search has started
        texts.forEach((text, k) => { if (left.has(block * store.blockSize + k) && text.includes(wanted)) found.push(block * store.blockSize + k); });
      }
    }
    said.textContent = `${whole(found.length)} of ${whole(index.length)} ${kind.many}`;
    show(found);
  }

  return { form: make("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, choices, make("div", { class: "wide" }, make("label", { for: "search" }, "Search"), search), said), apply };
}

// The view, which steps through one record. `kind.story` returns a heading and stops. Each stop has the face of its
// button, an accessible label (`said`), and a function that draws it.
function makeStepper(index, kind, store) {
  const view = make("article", { class: "view", "aria-label": "Replay" });
  let place = -1, story = null, at = 0;

  async function open(wanted) {
    place = wanted;
    try {
      const found = await store.record(wanted);
      if (place !== wanted) return; // another entry was opened in the meantime
      story = kind.story(index[wanted], found);
    } catch (error) {
      close(error.message);
      return;
    }
    at = 0;
    draw();
  }

  function close(reason) {
    place = -1;
    story = null;
    view.replaceChildren(make("p", { class: "empty" }, reason));
  }

  function go(stop) {
    if (!story || stop < 0 || stop >= story.stops.length) return;
    // The buttons are replaced, so move the focus to the new button.
    const held = view.contains(document.activeElement) ? document.activeElement.dataset : {};
    at = stop;
    draw();
    const next = held.by && view.querySelector(`[data-by="${held.by}"]:enabled`);
    if (next) next.focus();
    else if (held.by || held.turn) view.querySelector('[aria-current="step"]').focus();
  }

  function draw() {
    view.replaceChildren(story.heading, strip(), story.stops[at].draw());
    const marked = view.querySelector('[aria-current="step"]');
    const rail = marked.parentElement;
    rail.scrollLeft = marked.offsetLeft - rail.clientWidth / 2;
  }

  // A button for each stop.
  function strip() {
    const stops = story.stops.map((one, k) => make("button", { type: "button", "data-turn": k, "aria-current": k === at ? "step" : null, "aria-label": one.said, onclick: () => go(k) }, one.face));
    return make("div", { class: "steps" },
      make("button", { type: "button", class: "step", "data-by": "-1", disabled: at === 0, "aria-label": "Previous step", onclick: () => go(at - 1) }, "‹"),
      make("div", { class: "rail" }, stops),
      make("button", { type: "button", class: "step", "data-by": "1", disabled: at === stops.length - 1, "aria-label": "Next step", onclick: () => go(at + 1) }, "›"));
  }

  return { view, open, close, step: (by) => go(at + by), current: () => place };
}

// Adds all of this to a section. `kept` is the number of records that the run has.
function fillBrowser(section, index, kept, kind) {
  const store = makeStore(data.block, data.plain, kind.many, kind.texts);
  const stepper = makeStepper(index, kind, store);
  const list = makeList(index, kind, stepper.open);
  const filters = makeFilters(index, kind, store, (places) => {
    list.show(places, stepper.current());
    if (!places.length) stepper.close(`No recorded ${kind.one} matches. Relax the filters.`);
  });
  // Arrow keys work on the whole page, unless the focus is on a field, a curve or a table, which use them too.
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const taken = event.target.matches("input, select") || (event.target.closest("[tabindex]") && !section.contains(event.target));
    if (!by || taken || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    stepper.step(by);
  });
  const sample = kept > index.length ? ` An even sample of ${whole(kept)} recorded ${kind.many}.` : "";
  section.append(
    make("p", { class: "note" }, `Left and right arrows step through a ${kind.one}, up and down through the list.${kind.note}${sample}`),
    filters.form, make("div", { class: "replay" }, list.box, stepper.view));
  requestAnimationFrame(filters.apply);
}
