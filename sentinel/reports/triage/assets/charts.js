"use strict";
// The charts: one range of steps for all of them, one colour for each attempt, the incidents marked on each.
Triage.charts = [];
Triage.view = { min: 0, max: 1 };
Triage.whole_run = { min: 0, max: 1 };
Triage.hidden = new Set();
Triage.listeners = [];
Triage.small = true; // so little that charts out of sight are drawn as well
const AXIS_PX = 54, RIGHT_PX = 10;

Triage.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
Triage.attemptColour = (attempt) => {
  const place = Triage.order.indexOf(attempt);
  return Triage.colour(`attempt-${(place < 0 ? attempt : place) % 8}`);
};
Triage.faded = (colour, share) => `color-mix(in srgb, ${colour} ${Math.round(100 * share)}%, transparent)`;

Triage.setExtent = () => {
  let min = Infinity, max = -Infinity;
  for (const { curves } of Triage.charts) for (const curve of curves) if (curve.n) {
    min = Math.min(min, curve.x[0]);
    max = Math.max(max, curve.x[curve.n - 1]);
  }
  Triage.whole_run = max > min ? { min, max } : { min: (Number.isFinite(min) ? min : 1) - 1, max: (Number.isFinite(max) ? max : 0) + 1 };
};

Triage.setView = (min, max) => {
  const whole = Triage.whole_run, span = Math.min(Math.max(max - min, 8), whole.max - whole.min || 8);
  const from = Math.min(Math.max(min + (max - min - span) / 2, whole.min), whole.max - span);
  Triage.view = { min: from, max: from + span };
  Triage.redraw();
};

Triage.zoom = (factor, at) => {
  const { min, max } = Triage.view, middle = at === undefined ? (min + max) / 2 : at;
  Triage.setView(middle - (middle - min) * factor, middle + (max - middle) * factor);
};

Triage.pan = (share) => {
  const by = share * (Triage.view.max - Triage.view.min);
  Triage.setView(Triage.view.min + by, Triage.view.max + by);
};

Triage.redraw = () => {
  if (Triage.waiting) return;
  Triage.waiting = requestAnimationFrame(() => {
    Triage.waiting = 0;
    Triage.drawNow();
  });
};

Triage.drawNow = () => {
  for (const chart of Triage.charts) {
    chart.stale = true;
    if (chart.near) Triage.fill(chart);
  }
  Triage.listeners.forEach((tell) => tell());
};

Triage.shownCurves = (chart) => chart.curves.filter((curve) => curve.n && !Triage.hidden.has(curve.attempt));

// A logarithmic axis where the curve spans more than linear paper shows.
Triage.isLog = (chart) => {
  if (Triage.logWanted !== undefined && Triage.logWanted !== null) return Triage.logWanted && Triage.positive(chart);
  return chart.log && Triage.positive(chart) && chart.greatest / chart.least > 30;
};
Triage.positive = (chart) => {
  if (chart.least === undefined) {
    chart.least = Infinity;
    chart.greatest = -Infinity;
    for (const curve of chart.curves) for (let i = 0; i < curve.n; i++) {
      const value = curve.y[i];
      if (!Number.isFinite(value)) continue;
      if (value < chart.least) chart.least = value;
      if (value > chart.greatest) chart.greatest = value;
    }
  }
  return chart.least > 0;
};

Triage.fill = (chart) => {
  chart.stale = false;
  const width = Math.max(120, chart.box.clientWidth), curves = Triage.shownCurves(chart), log = Triage.isLog(chart);
  const { min, max } = Triage.view, parts = curves.map((curve) => Triage.inView(curve, min, max, width - AXIS_PX, log));
  chart.bad = parts.flatMap((part, i) => part.bad.map(([x]) => [x, curves[i].attempt]));
  const key = `${log}|${curves.map((c) => c.attempt)}|${document.documentElement.dataset.drawn}`;
  const joined = parts.length ? uPlot.join(parts.map((part) => [part.x, part.y])) : [[min, max], [null, null]];
  chart.points = Math.max(0, ...parts.map((part) => part.x.length)) <= 60;
  if (chart.plot && chart.key === key) {
    if (chart.plot.width !== width) chart.plot.setSize({ width, height: chart.height });
    chart.plot.setData(joined, true);
    return;
  }
  chart.plot?.destroy();
  chart.key = key;
  chart.plot = new uPlot(Triage.options(chart, curves, width, log), joined, chart.box);
};

Triage.options = (chart, curves, width, log) => {
  const ink = Triage.colour("faint"), grid = { stroke: Triage.colour("grid"), width: 1 };
  const font = "11px system-ui, sans-serif", last = Triage.document.attempts[Triage.document.attempts.length - 1]?.attempt;
  const axis = { stroke: ink, font, grid, ticks: { show: false } };
  return {
    width, height: chart.height, legend: { show: false }, padding: [10, RIGHT_PX, 0, 0],
    scales: {
      x: { time: false, range: () => [Triage.view.min, Triage.view.max] },
      y: { distr: log ? 3 : 1, range: (_, low, high) => Triage.room(low, high, log) },
    },
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, values: (_, ticks) => ticks.map((t) => Number.isInteger(t) ? t.toLocaleString("en-US") : "") },
      { ...axis, size: AXIS_PX, gap: 6, space: 32, splits: log ? (_, __, low, high) => Triage.decades(low, high) : undefined, filter: log ? (_, splits) => splits : undefined, values: (_, ticks) => ticks.map((t) => t === null ? "" : Triage.tick(t)) },
    ],
    cursor: {
      sync: { key: "steps", setSeries: false }, points: { size: 6 },
      drag: { x: true, y: false, setScale: false, dist: 4 },
      bind: { dblclick: () => () => Triage.setView(Triage.whole_run.min, Triage.whole_run.max) },
    },
    series: [{}, ...(curves.length ? curves : [null]).map((curve) => ({
      stroke: curve ? Triage.attemptColour(curve.attempt) : ink, width: curve?.attempt === last ? 1.75 : 1.35,
      points: { show: () => chart.points, size: 4 },
    }))],
    hooks: {
      drawClear: [(plot) => Triage.drawMarks(plot, chart)],
      draw: [(plot) => Triage.drawBad(plot, chart)],
      setCursor: [(plot) => Triage.readOut(plot, chart)],
      setSelect: [(plot) => {
        const { left, width: wide } = plot.select;
        if (wide < 4) return;
        const from = plot.posToVal(left, "x"), to = plot.posToVal(left + wide, "x");
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        Triage.setView(from, to);
      }],
    },
  };
};

Triage.room = (low, high, log) => {
  if (low === null || low === undefined || high === null) return log ? [0.1, 1] : [0, 1];
  if (log) return [low / 1.25, high * 1.25];
  const around = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.07;
  return [low >= 0 && low - around < 0 ? 0 : low - around, high + around];
};

// Where a logarithmic axis has its lines: a handful of powers of ten, with 2 and 5 between them where there are few.
Triage.decades = (low, high) => {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), stride = Math.max(1, Math.ceil((to - from) / 5));
  const parts = to - from <= 2 ? [1, 2, 5] : [1], found = [];
  for (let power = from; power <= to; power += stride) for (const part of parts) found.push(part * 10 ** power);
  return found.filter((value) => value >= low && value <= high);
};

Triage.tick = (value) => {
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e").replace("-", "−");
  return Number(value.toPrecision(5)).toLocaleString("en-US", { maximumFractionDigits: 4 }).replace("-", "−");
};

// Behind the curves: each incident's onset as a band and its alarm as a line; where each restart went back to.
Triage.drawMarks = (plot, chart) => {
  const { ctx, bbox } = plot, unit = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 8 * unit, bbox.width, bbox.height + 8 * unit);
  ctx.clip();
  for (const incident of Triage.document.incidents) {
    if (!incident.onset_range) continue;
    const shown = incident.incident === Triage.shown, red = Triage.colour("critical");
    const left = plot.valToPos(incident.onset_range[0], "x", true), right = plot.valToPos(incident.onset_range[1], "x", true);
    ctx.fillStyle = Triage.faded(red, shown ? 0.2 : 0.09);
    ctx.fillRect(left, bbox.top, Math.max(right - left, 2 * unit), bbox.height);
    if (incident.alarm_step !== null) {
      const at = plot.valToPos(incident.alarm_step, "x", true);
      ctx.strokeStyle = Triage.faded(red, shown ? 0.9 : 0.4);
      ctx.setLineDash([4 * unit, 3 * unit]);
      ctx.lineWidth = unit;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      if (chart.hero && shown) Triage.label(ctx, "alarm", at + 5 * unit, bbox.top + 12 * unit, red, unit);
    }
    if (chart.hero && shown) Triage.label(ctx, "onset", left - 5 * unit, bbox.top + 12 * unit, red, unit, "right");
  }
  for (const attempt of Triage.document.attempts) {
    if (attempt.resumed_from === null || Triage.hidden.has(attempt.attempt)) continue;
    const at = plot.valToPos(attempt.resumed_from, "x", true), foot = bbox.top + bbox.height;
    ctx.fillStyle = Triage.attemptColour(attempt.attempt);
    ctx.beginPath();
    ctx.moveTo(at, foot - 8 * unit);
    ctx.lineTo(at - 5 * unit, foot);
    ctx.lineTo(at + 5 * unit, foot);
    ctx.fill();
  }
  if (Triage.pointed !== null) {
    const at = plot.valToPos(Triage.pointed, "x", true), ink = Triage.colour("accent");
    ctx.fillStyle = Triage.faded(ink, 0.8);
    ctx.fillRect(at - unit / 2, bbox.top, unit, bbox.height);
    if (chart.hero) Triage.label(ctx, "asked for", at + 5 * unit, bbox.top + bbox.height - 12 * unit, ink, unit);
  }
  if (chart.name === "loss_ratio" && plot.scales.y.min < 1.2 && plot.scales.y.max > 1.2) {
    const at = plot.valToPos(1.2, "y", true);
    ctx.strokeStyle = Triage.faded(Triage.colour("warning"), 0.9);
    ctx.setLineDash([2 * unit, 3 * unit]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, at);
    ctx.lineTo(bbox.left + bbox.width, at);
    ctx.stroke();
  }
  ctx.restore();
};

Triage.label = (ctx, text, x, y, colour, unit, align = "left") => {
  ctx.font = `600 ${11 * unit}px system-ui, sans-serif`;
  ctx.textAlign = align;
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
};

// At the top edge: readings that were no numbers.
Triage.drawBad = (plot, chart) => {
  const { ctx, bbox } = plot, unit = devicePixelRatio;
  let before = -Infinity;
  ctx.save();
  for (const [step, attempt] of chart.bad.sort((a, b) => a[0] - b[0])) {
    const at = plot.valToPos(step, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width || at - before < 3 * unit) continue;
    before = at;
    ctx.fillStyle = Triage.attemptColour(attempt);
    ctx.beginPath();
    ctx.moveTo(at - 4 * unit, bbox.top - 7 * unit);
    ctx.lineTo(at + 4 * unit, bbox.top - 7 * unit);
    ctx.lineTo(at, bbox.top);
    ctx.fill();
  }
  ctx.restore();
};

Triage.readOut = (plot, chart) => {
  const left = plot.cursor.left;
  if (left === null || left < 0) {
    chart.readout.replaceChildren();
    if (chart.hero) document.getElementById("range").dataset.at = "";
    return;
  }
  const step = plot.posToVal(left, "x");
  const said = Triage.shownCurves(chart).slice(-5).map((curve) => {
    const at = Triage.near(curve, step);
    return at === null ? null : Triage.make("span", { style: { color: Triage.attemptColour(curve.attempt) } }, Triage.short(curve.y[at]));
  });
  chart.readout.replaceChildren(Triage.make("span.at", null, Triage.whole(Math.round(step))), ...said.filter(Boolean));
};

Triage.addChart = (spec, place, height, hero = false) => {
  const readout = Triage.make("p.readout"), box = Triage.make("div.plot");
  const title = Triage.make("h3", { title: spec.help }, spec.title, spec.unit ? Triage.make("span.unit", null, spec.unit) : null);
  const card = Triage.make(hero ? "figure.hero" : "figure.card", { "data-chart": spec.name }, Triage.make("figcaption", null, title, readout), box);
  place.append(card);
  const chart = { ...spec, curves: spec.curves.map(Triage.curve), box, readout, height, hero, bad: [], near: hero || Triage.small, stale: true };
  Triage.charts.push(chart);
  Triage.wheel(box, chart);
  new IntersectionObserver((seen) => {
    chart.near = Triage.small || seen.some((one) => one.isIntersecting);
    if (chart.near && chart.stale) Triage.fill(chart);
  }, { rootMargin: "400px" }).observe(card);
  new ResizeObserver(() => Triage.redraw()).observe(box);
  return chart;
};

Triage.stepAt = (chart, clientX) => {
  const over = chart.plot.over.getBoundingClientRect();
  return chart.plot.posToVal(clientX - over.left, "x");
};

Triage.wheel = (box, chart) => {
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    Triage.zoom(event.deltaY > 0 ? 1.25 : 0.8, Triage.stepAt(chart, event.clientX));
  }, { passive: false });
  let apart = 0, last = null;
  box.addEventListener("touchmove", (event) => {
    if (event.touches.length !== 2) return;
    event.preventDefault();
    const [a, b] = event.touches, distance = Math.abs(a.clientX - b.clientX) || 1, middle = (a.clientX + b.clientX) / 2;
    if (apart) Triage.zoom(apart / distance, Triage.stepAt(chart, middle));
    if (last !== null) Triage.pan((last - middle) / box.clientWidth);
    apart = distance;
    last = middle;
  }, { passive: false });
  box.addEventListener("touchend", () => { apart = 0; last = null; });
};
