// ---- opponents: best responses, win matrix, ratings ----
function drawGrades(grades) {
  return grades.map((grade) => make("details", { class: "grade" },
    make("summary", {}, `Policy in ${grade.game} at step ${grade.step}, and the best response to it`),
    make("p", { class: "note" }, `Exploitability ${number(grade.exploitability)}. `
      + (grade.total > grade.states.length ? `The ${grade.states.length} most frequent of ${whole(grade.total)} information states. ` : "")
      + "Bars are the probabilities of moves. The marked move is the best response in that seat."),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Policy in ${grade.game}` }, make("table", { class: "policy-table" },
      make("tr", {}, ["Information state", "Seat", "Reached", "Moves"].map((title) => make("th", { scope: "col" }, title))),
      grade.states.map(([state, seat, reach, moves, best]) => make("tr", {}, make("th", { scope: "row" }, state), make("td", {}, seat), make("td", {}, inUnit(reach, "share")),
        make("td", {}, make("div", { class: "moves" }, Object.entries(moves).map(([move, share]) => {
          const chip = make("span", { class: move === best ? "chip best" : "chip", title: move === best ? "best response" : null }, make("code", {}, move), ` ${Math.round(100 * share)} %`);
          chip.style.setProperty("--share", `${100 * share}%`);
          return chip;
        })))))))));
}

function drawMatrix(matrix, cycles) {
  const section = make("section", { id: "matrix" }, make("h2", {}, "Win rates"));
  if (!matrix || matrix.names.length < 2) {
    section.append(make("p", { class: "empty" }, "No games between different players. Train against earlier snapshots, with opponents such as “self:0.8,pool:0.2”, and set pool_rating_games for games among snapshots."));
    return section;
  }
  const head = make("tr", {}, make("td"), matrix.names.map((name) => make("th", { scope: "col" }, make("span", {}, name))));
  const rows = matrix.names.map((name, i) => make("tr", {}, make("th", { scope: "row" }, name), matrix.names.map((rival, j) => {
    const rate = matrix.rates[i][j];
    if (i === j) return make("td", { class: "self", "aria-label": "itself" });
    if (rate === null) return make("td", { class: "never", "aria-label": `${name} and ${rival}: no games` });
    const games = matrix.counts[i][j];
    const cell = make("td", { title: `${name} against ${rival}: ${number(100 * rate)} % of ${number(games)} games` }, make("b", {}, Math.round(100 * rate)), make("small", {}, number(games, 2)));
    const strength = Math.round(Math.abs(rate - 0.5) * 2 * 78);
    cell.style.background = `color-mix(in oklab, var(--${rate > 0.5 ? "win" : "loss"}) ${strength}%, var(--even))`;
    cell.classList.toggle("strong", strength > 45);
    return cell;
  })));
  section.append(
    make("p", { class: "note" }, "Row against column: win rate in percent (draws count half), and the number of games. Earlier games of the policy have less weight, since it has changed. Hatched: no games."),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Win matrix" }, make("table", { class: "matrix" }, head, rows)),
    cycles.length ? make("ul", { class: "cycles" }, cycles.slice(0, 5).map((cycle) => make("li", {}, [...cycle, cycle[0]].join(" beats ")))) : make("p", { class: "note" }, "No significant cycle of three players in which each beats the next."));
  return section;
}

function drawLadder(ladder) {
  const section = make("section", { id: "ladder" }, make("h2", {}, "Rating ladder"));
  if (!ladder.length) {
    section.append(make("p", { class: "empty" }, "No ratings. They need games against other players: opponents such as “self:0.8,pool:0.2”."));
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
  section.append(make("p", { class: "note" }, "In points, with 95 % intervals. A lead of 400 points means odds of ten to one. Only differences are meaningful."),
    make("ol", { class: "ladder" }, rows,
      make("li", { class: "axis", "aria-hidden": "true" }, make("span", { class: "who" }), make("span", { class: "track" }, ticks.map((tick) => place(tick, make("em", {}, whole(tick))))), make("span", { class: "points" }))));
  return section;
}
