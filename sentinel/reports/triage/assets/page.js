"use strict";
// The page: what is shown, the keys, and what is new where it is served live.
{
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  Triage.inOrder = ({ attempts }) => attempts.map(({ attempt }) => attempt);

  const build = () => {
    const specs = Triage.document.charts, loss = specs.find((spec) => spec.name === "loss");
    for (const chart of Triage.charts) chart.plot?.destroy();
    Triage.small = specs.every((spec) => spec.curves.every((curve) => curve.values.length < 40000));
    Triage.charts = [];
    byId("chart-loss").replaceChildren();
    byId("charts").replaceChildren();
    if (loss) Triage.addChart(loss, byId("chart-loss"), innerWidth < 600 ? 240 : 340, true);
    const layers = specs.filter((spec) => spec.layer !== undefined);
    for (const spec of specs) if (spec !== loss && spec.layer === undefined) Triage.addChart(spec, byId("charts"), 180);
    if (layers.length) byId("charts").append(Triage.make("h2.wide", null, "Top layers", Triage.make("span", null, "largest √v of each, the most grown first")));
    for (const spec of layers) Triage.addChart(spec, byId("charts"), 140);
  };

  const tell = () => {
    Triage.order = Triage.inOrder(Triage.document);
    Triage.showHead();
    Triage.showFoot();
    Triage.showLegend();
    Triage.showTabs();
    Triage.showIncident();
    Triage.showAttempts();
    Triage.showCorrelations();
  };

  Triage.choose = (name, zoomed = true) => {
    Triage.shown = name;
    Triage.showTabs();
    Triage.showIncident();
    const incident = Triage.document.incidents.find((one) => one.incident === name);
    if (zoomed && incident?.onset_range) {
      const [early, late] = incident.onset_range, alarm = incident.alarm_step ?? late, around = Math.max(20, 1.5 * (alarm - early));
      Triage.setView(early - around, alarm + around);
    } else Triage.redraw();
  };

  Triage.turnTo = (name) => { // by a person
    Triage.choose(name);
    Triage.nameInAddress(name);
  };

  const turn = (by) => {
    const names = Triage.document.incidents.map((one) => one.incident);
    if (names.length) Triage.turnTo(names[(names.indexOf(Triage.shown) + by + names.length) % names.length]);
  };

  const theme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    wear(dark ? "light" : "dark");
  };
  const wear = (name) => {
    if (name) root.dataset.theme = name; else delete root.dataset.theme;
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1); // colours are part of what is drawn
    tell();
    Triage.drawNow();
  };

  const all = () => Triage.setView(Triage.whole_run.min, Triage.whole_run.max);
  const keys = {
    j: () => turn(1), k: () => turn(-1), "+": () => Triage.zoom(0.5), "=": () => Triage.zoom(0.5), "-": () => Triage.zoom(2),
    0: all, ArrowLeft: () => Triage.pan(-0.25), ArrowRight: () => Triage.pan(0.25), t: theme,
    l: () => { Triage.logWanted = Triage.logWanted === true ? false : Triage.logWanted === false ? null : true; Triage.redraw(); },
    "?": () => (byId("help").open ? byId("help").close() : byId("help").showModal()),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (byId("help").open && event.key !== "?") return;
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const presses = { "zoom-in": "+", "zoom-out": "-", "zoom-all": "0", theme: "t", ask: "?" };
  for (const [id, key] of Object.entries(presses)) byId(id).addEventListener("click", keys[key]);

  let worn;
  addEventListener("beforeprint", () => {
    worn = root.dataset.theme;
    for (const chart of Triage.charts) chart.near = true;
    wear("light");
    for (const each of document.querySelectorAll("details.plan")) each.open = true;
  });
  addEventListener("afterprint", () => wear(worn));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => wear(root.dataset.theme));

  Triage.listeners.push(() => {
    const { min, max } = Triage.view;
    byId("range").textContent = `steps ${Triage.whole(Math.max(0, Math.round(min)))} – ${Triage.whole(Math.round(max))}`;
    Triage.showTimeline();
  });

  Triage.take = (taken) => {
    Triage.document = taken;
    const known = taken.incidents.some((one) => one.incident === Triage.shown);
    if (!known) Triage.shown = taken.shown_incident;
    Triage.order = Triage.inOrder(taken);
    build();
    Triage.setExtent();
    tell();
  };

  // Live: samples come one by one; when the incident log grows or an attempt begins, the document is taken anew.
  const newSample = (sample) => {
    if (!Triage.order.includes(sample.attempt)) return refresh();
    const atEnd = Triage.view.max >= Triage.whole_run.max;
    for (const chart of Triage.charts) {
      if (chart.layer !== undefined || sample[chart.name] === null || sample[chart.name] === undefined) continue;
      let curve = chart.curves.find((one) => one.attempt === sample.attempt);
      if (!curve) { curve = { attempt: sample.attempt, readings: 0, x: new Uint32Array(0), y: new Float32Array(0), n: 0 }; chart.curves.push(curve); }
      if (Triage.append(curve, sample.global_step, Triage.number(sample[chart.name]))) chart.least = undefined;
    }
    Object.assign(Triage.document.standing, { attempt: sample.attempt, global_step: sample.global_step, loss: sample.loss, loss_ratio: sample.loss_ratio });
    const row = Triage.document.attempts.find((one) => one.attempt === sample.attempt);
    row.last_step = Math.max(row.last_step ?? 0, sample.global_step);
    row.first_step = Math.min(row.first_step ?? sample.global_step, sample.global_step);
    Triage.setExtent();
    if (atEnd) Triage.view.max = Triage.whole_run.max;
    Triage.showHead();
    Triage.redraw();
    return undefined;
  };
  const fresh = []; // samples newer than the document, to be put into the next one
  const after = (mark) => Number(String(mark).split("-").pop());
  let refreshing = false, again = false;
  const ours = new URLSearchParams({ run: JSON.parse(byId("document").textContent).run }); // for a proxy before many pages
  const refresh = async () => {
    if (refreshing) { again = true; return; }
    refreshing = true;
    try {
      const answer = await fetch(`document.json?${ours}`);
      if (!answer.ok) return;
      const taken = await answer.json(), { min, max } = Triage.view, whole = Triage.whole_run;
      const atAll = max >= whole.max && min <= whole.min;
      Triage.take(taken);
      for (const [mark, sample] of fresh) if (after(mark) > after(taken.live_from) && Triage.order.includes(sample.attempt)) newSample(sample);
      if (atAll) all(); else Triage.redraw();
      Triage.goWhereStillAsked();
    } finally {
      refreshing = false;
      if (again) { again = false; refresh(); }
    }
  };
  const follow = () => {
    const mark = byId("live"), stream = new EventSource(`events?${ours}&after=${Triage.document.live_from || ""}`);
    mark.hidden = false;
    const say = (word, severity) => { mark.textContent = word; mark.dataset.severity = severity; };
    stream.onopen = () => say("live", "good");
    stream.onerror = () => say("connection lost, trying again", "warning");
    stream.addEventListener("sample", (event) => {
      const sample = JSON.parse(event.data);
      fresh.push([event.lastEventId, sample]);
      if (fresh.length > 20000) fresh.splice(0, 10000);
      newSample(sample);
    });
    stream.addEventListener("changed", refresh);
    setInterval(refresh, 60000); // the verdict, the correlation, the layers
  };

  Triage.take(JSON.parse(byId("document").textContent));
  Triage.view = { ...Triage.whole_run };
  Triage.drawNow();
  Triage.goWhereAsked();
  if (document.body.dataset.live === "yes") follow();
}
