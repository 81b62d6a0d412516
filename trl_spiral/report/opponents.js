// ---- opponents, the perfect one first ----
function drawGrades(grades) {
  return grades.map((grade) => make("details", { class: "grade" },
    make("summary", {}, `What the policy does at ${grade.game}, step ${grade.step}, and the best response to it`),
    make("p", { class: "note" }, `Exploitability ${number(grade.exploitability)}. `
      + (grade.inAll > grade.states.length ? `The ${grade.states.length} of ${whole(grade.inAll)} information states that come up most. ` : "")
      + "Bars are probabilities of moves; the marked one is what a perfect opponent in that seat would do."),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Policy at ${grade.game}` }, make("table", { class: "policy-table" },
      make("tr", {}, ["Information state", "Seat", "Reached", "Moves"].map((title) => make("th", { scope: "col" }, title))),
      grade.states.map(([state, seat, reach, moves, best]) => make("tr", {}, make("th", { scope: "row" }, state), make("td", {}, seat), make("td", {}, inUnit(reach, "share")),
        make("td", {}, make("div", { class: "moves" }, Object.entries(moves).map(([move, share]) => {
          const chip = make("span", { class: move === best ? "chip best" : "chip", title: move === best ? "the best response" : null }, make("code", {}, move), ` ${Math.round(100 * share)} %`);
          chip.style.setProperty("--share", `${100 * share}%`);
          return chip;
        })))))))));
}

function drawMatrix(matrix, circles) {
  const section = make("section", { id: "matrix" }, make("h2", {}, "Who beats whom"));
  if (!matrix || matrix.names.length < 2) {
    section.append(make("p", { class: "empty" }, "Nobody has met anybody but itself. Train against earlier selves, with opponents such as “self:0.8,pool:0.2”, and let snapshots meet each other by pool_rating_games."));
    return section;
  }
  const head = make("tr", {}, make("td"), matrix.names.map((name) => make("th", { scope: "col" }, make("span", {}, name))));
  const rows = matrix.names.map((name, i) => make("tr", {}, make("th", { scope: "row" }, name), matrix.names.map((rival, j) => {
    const rate = matrix.rates[i][j];
    if (i === j) return make("td", { class: "self", "aria-label": "itself" });
    if (rate === null) return make("td", { class: "never", "aria-label": `${name} and ${rival} never met` });
    const games = matrix.counts[i][j];
    const cell = make("td", { title: `${name} against ${rival}: ${number(100 * rate)} % of ${number(games)} games` }, make("b", {}, Math.round(100 * rate)), make("small", {}, number(games, 2)));
    const strength = Math.round(Math.abs(rate - 0.5) * 2 * 78);
    cell.style.background = `color-mix(in oklab, var(--${rate > 0.5 ? "win" : "loss"}) ${strength}%, var(--even))`;
    cell.classList.toggle("strong", strength > 45);
    return cell;
  })));
  section.append(
    make("p", { class: "note" }, "The row against the column: percent won, a draw being half, and below it the games that it rests on. The policy’s earlier games count for less, since it is no longer who played them. Hatched: never met."),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Win matrix" }, make("table", { class: "matrix" }, head, rows)),
    circles.length ? make("ul", { class: "circles" }, circles.slice(0, 5).map((circle) => make("li", {}, [...circle, circle[0]].join(" beats ")))) : make("p", { class: "note" }, "No circle of three, in which each beats the next, stands out from chance."));
  return section;
}

function drawLadder(ladder) {
  const section = make("section", { id: "ladder" }, make("h2", {}, "Rating ladder"));
  if (!ladder.length) {
    section.append(make("p", { class: "empty" }, "Nobody is rated. Ratings come from games against others than oneself: opponents such as “self:0.8,pool:0.2”."));
    return section;
  }
  const low = Math.min(...ladder.map((one) => one.low));
  const high = Math.max(...ladder.map((one) => one.high));
  const at = (points) => `${(100 * (points - low) / (high - low || 1)).toFixed(2)}%`;
  const ticks = niceTicks(low, high, 4);
  const rows = ladder.map((one) => {
    const bar = make("i", { class: "interval" });
    const dot = make("i", { class: "mean" });
    bar.style.left = at(one.low);
    bar.style.width = `${100 * (one.high - one.low) / (high - low || 1)}%`;
    dot.style.left = at(one.mu);
    return make("li", { class: one.name === "policy" ? "policy" : "" },
      make("span", { class: "who" }, one.name), make("span", { class: "track", "aria-hidden": "true" }, ticks.map((tick) => place(tick, make("i", { class: "rule" }))), bar, dot),
      make("span", { class: "points" }, whole(one.mu), make("small", {}, ` ${whole(one.low)} to ${whole(one.high)}`)));
  });
  function place(tick, element) {
    element.style.left = at(tick);
    return element;
  }
  section.append(make("p", { class: "note" }, "In points, with 95 % intervals: a lead of 400 means odds of ten to one. Only differences mean anything."),
    make("ol", { class: "ladder" }, rows,
      make("li", { class: "axis", "aria-hidden": "true" }, make("span", { class: "who" }), make("span", { class: "track" }, ticks.map((tick) => place(tick, make("em", {}, whole(tick))))), make("span", { class: "points" }))));
  return section;
}
