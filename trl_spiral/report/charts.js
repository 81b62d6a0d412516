// ---- curves ----
const HEIGHT = 176;
const MARGIN = { left: 46, right: 10, top: 12, bottom: 26 };

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted;
  if (!(rough > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low]; // too narrow for ticks that differ
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

// The range of the vertical axis. It starts at zero if that costs little space or noise would fill the chart, and spans
// 0 to 100 % if shares are large. The last interval of a band must fit. Wider intervals, as at the start of a run, are
// cut.
function span(chart) {
  if (chart.style === "shares") return [0, 1];
  const values = chart.series.flatMap((one) => [...one.points.map((point) => point[1]), ...one.points.at(-1).slice(2)]).filter((y) => y !== null);
  if (!values.length) return [0, 1];
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (chart.unit === "share") return [0, high > 0.5 ? 1 : Math.max(0.05, high * 1.1)];
  if (low >= 0 && (low < 0.5 * high || chart.fromZero)) low = 0;
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  return [low === 0 ? 0 : low - pad, high + pad];
}

// Stacked shares: each one starts at the top of the one before it.
function stacked(chart) {
  const floor = new Map();
  return chart.series.map((one) => one.points.map(([x, y]) => {
    const below = floor.get(x) || 0;
    floor.set(x, below + (y || 0));
    return [x, below, below + (y || 0)];
  }));
}

function path(points) {
  let pen = "M";
  let text = "";
  for (const [x, y] of points) {
    if (y === null) { pen = "M"; continue; }
    text += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function colour(one, place) {
  return one.role ? `var(--${one.role})` : `var(--series-${place % 6})`;
}

// A warning belongs to the curve of its metric. The skew between seats is not logged: its warning belongs to the
// results.
function warns(warning, one) {
  return warning.metric === one.metric || (one.role !== "" && `${one.metric.replace(/seat\d+\/\w+$/, "")}skew` === warning.metric);
}

function drawChart(chart, lastStep, warnings) {
  const mine = warnings.filter((warning) => chart.series.some((one) => warns(warning, one)));
  const steps = [...new Set(chart.series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  const lookup = chart.series.map((one) => new Map(one.points.map((point) => [point[0], point])));
  const values = chart.series.map(() => make("b"));
  const legend = make("ul", { class: "legend" }, chart.series.map((one, place) => {
    const key = make("i", { class: "key" });
    key.style.background = colour(one, place);
    return make("li", {}, key, `${one.label} `, values[place]);
  }));
  const when = make("span", { class: "when", "aria-live": "polite" });
  const summary = chart.series.map((one) => {
    const seen = one.points.filter((point) => point[1] !== null);
    if (!seen.length) return `${one.label}: never a finite number`;
    return `${one.label}: from ${inUnit(seen[0][1], chart.unit)} to ${inUnit(seen.at(-1)[1], chart.unit)}`;
  }).join("; ");
  const svg = makeSvg("svg", { height: HEIGHT, "aria-hidden": "true" });
  const plot = make("div", {
    class: "plot", tabindex: "0", role: "group",
    "aria-label": `${chart.title}, steps ${steps[0]} to ${steps.at(-1)}. ${summary}. Left and right arrows read the values step by step.`,
  }, svg);
  const figure = make("figure", { class: "chart" },
    make("figcaption", {}, make("h3", {}, chart.title, when), chart.note ? make("p", {}, chart.note) : null),
    legend, plot);
  let x, cursor, at = -1;

  function draw() {
    const width = plot.clientWidth;
    if (!width) return;
    const [low, high] = span(chart);
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    x = (step) => MARGIN.left + (right - MARGIN.left) * step / lastStep;
    const y = (value) => value === null ? null : bottom - (bottom - MARGIN.top) * (Math.min(high, Math.max(low, value)) - low) / (high - low);
    svg.replaceChildren();
    svg.setAttribute("width", width);
    for (const tick of niceTicks(low, high, 4)) {
      svg.append(makeSvg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) }),
        makeSvg("text", { x: MARGIN.left - 7, y: y(tick) + 3.5, "text-anchor": "end" }, inUnit(tick, chart.unit === "share" ? "share" : "")));
    }
    for (const tick of niceTicks(0, lastStep, Math.max(2, Math.floor(width / 80))).filter(Number.isInteger)) {
      svg.append(makeSvg("text", { x: x(tick), y: HEIGHT - 8, "text-anchor": tick === 0 ? "start" : x(tick) > right - 14 ? "end" : "middle" },
        tick === 0 ? "step 0" : whole(tick)));
    }
    if (chart.style === "shares") {
      stacked(chart).forEach((points, place) => {
        const top = points.map(([step, , above]) => [x(step), y(above)]);
        const floor = points.map(([step, below]) => [x(step), y(below)]).reverse();
        const area = `${path(top)}${path(floor).replace("M", "L")}Z`;
        svg.append(makeSvg("path", { class: "area", d: area, fill: colour(chart.series[place], place), stroke: colour(chart.series[place], place) }));
      });
    } else {
      chart.series.forEach((one, place) => {
        const banded = one.points.filter((point) => point[2] !== null && point[3] !== null);
        if (banded.length > 1) {
          const band = `${path(banded.map((point) => [x(point[0]), y(point[3])]))}${path(banded.map((point) => [x(point[0]), y(point[2])]).reverse()).replace("M", "L")}Z`;
          svg.append(makeSvg("path", { class: "band", d: band, fill: colour(one, place) }));
        }
      });
      chart.series.forEach((one, place) => {
        svg.append(makeSvg("path", { class: "curve", d: path(one.points.map((point) => [x(point[0]), y(point[1])])), stroke: colour(one, place) }));
        if (one.points.length > 20) return;
        for (const point of one.points.filter((seen) => seen[1] !== null)) {
          svg.append(makeSvg("circle", { class: "dot", r: 2.5, cx: x(point[0]), cy: y(point[1]), fill: colour(one, place) }));
        }
      });
    }
    for (const warning of mine) {
      const here = x(warning.step);
      svg.append(makeSvg("g", { class: "warned" },
        makeSvg("title", {}, `Step ${warning.step}: ${warning.sentence}`),
        makeSvg("line", { x1: here, x2: here, y1: MARGIN.top, y2: bottom }),
        makeSvg("path", { d: `M${here - 6} 1h12l-6 10z` })));
    }
    cursor = makeSvg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    svg.append(cursor);
    read(at);
  }

  // Shows the numbers at a step, or the latest ones.
  function read(place) {
    at = place;
    chart.series.forEach((one, k) => {
      const last = one.points.at(-1);
      const point = place < 0 ? last : lookup[k].get(steps[place]);
      const range = point && point[2] !== null ? ` (${inUnit(point[2], chart.unit)} to ${inUnit(point[3], chart.unit)})` : "";
      values[k].textContent = point ? inUnit(point[1], chart.unit) + (place < 0 ? "" : range) : "–";
    });
    when.textContent = place < 0 ? "" : `step ${whole(steps[place])}`;
    if (!cursor) return;
    cursor.setAttribute("visibility", place < 0 ? "hidden" : "visible");
    if (place >= 0) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(steps[place]));
  }

  plot.addEventListener("pointermove", (event) => {
    const here = event.clientX - plot.getBoundingClientRect().left;
    let best = 0;
    steps.forEach((step, place) => { if (Math.abs(x(step) - here) < Math.abs(x(steps[best]) - here)) best = place; });
    read(best);
  });
  plot.addEventListener("pointerleave", () => read(-1));
  plot.addEventListener("blur", () => read(-1));
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: Math.max(0, (at < 0 ? steps.length : at) - 1), ArrowRight: Math.min(steps.length - 1, at + 1), Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    read(moves[event.key]);
  });
  new ResizeObserver(draw).observe(plot);
  read(-1);
  return figure;
}

function drawGroup(group, lastStep, warnings) {
  const charts = group.charts.map((chart) => drawChart(chart, lastStep, warnings));
  return make("section", { id: group.anchor },
    make("h2", {}, group.title),
    charts.length ? make("div", { class: "charts" }, charts) : make("p", { class: "empty" }, group.empty));
}

// All other metrics, one at a time.
function drawOthers(others, lastStep) {
  const names = Object.keys(others);
  const place = make("div", { class: "charts one" });
  const choice = make("select", { id: "metric", onchange: () => show(choice.value) }, names.map((name) => make("option", {}, name)));
  function show(name) {
    const points = others[name];
    place.replaceChildren(drawChart({ title: name, unit: "", style: "lines", note: "", series: [{ label: "logged", metric: name, role: "", points: points.map(([step, y]) => [step, y, null, null]) }] }, lastStep, []));
  }
  if (names.length) show(names[0]);
  return make("section", { id: "others" },
    make("h2", {}, "Other metrics"),
    names.length ? make("p", {}, make("label", { for: "metric" }, "Metric "), choice) : make("p", { class: "empty" }, "No other metrics were logged."),
    place);
}
