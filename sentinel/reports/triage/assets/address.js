"use strict";
// What the page's address asks for: an incident, a step or a moment of its run. Another run's page is not this one.
//   ?run=NAME&incident=incident-1   #incident-1   ?run=NAME&step=3000   ?run=NAME&time=MILLISECONDS, as Grafana's links have it
{
  const byId = (id) => document.getElementById(id);
  const number = (text) => (/^\d{1,16}(\.\d*)?$/.test(text || "") ? Number(text) : null);

  const asked = () => {
    const query = new URLSearchParams(location.search), hash = /^#(incident-\d+)$/.exec(location.hash);
    return { run: query.get("run"), incident: hash ? hash[1] : query.get("incident"), step: number(query.get("step")), time: number(query.get("time")) };
  };

  // The step that was being made then, of the newest attempt that was at work; else the one nearest to it in time.
  Triage.stepAtTime = (seconds) => {
    let nearest = null;
    for (const { attempt, steps, times } of Triage.document.moments) {
      const x = Triage.unpack(steps, Uint32Array), t = Triage.unpack(times, Float64Array), last = t.length - 1;
      const within = Math.min(Math.max(seconds, t[0]), t[last]), away = Math.abs(seconds - within);
      if (nearest && away > nearest.away) continue;
      let at = 0;
      while (at < last && t[at + 1] <= within) at += 1;
      const share = at < last && t[at + 1] > t[at] ? (within - t[at]) / (t[at + 1] - t[at]) : 0;
      nearest = { attempt, step: Math.round(x[at] + share * ((x[Math.min(at + 1, last)] - x[at]))), away };
    }
    return nearest;
  };

  const say = (sentence) => {
    byId("asked").textContent = sentence;
    byId("asked").hidden = !sentence;
  };

  Triage.pointed = null; // the step that was asked for
  let open = null; // an incident that was asked for and is not there yet

  Triage.goWhereAsked = () => {
    const { run, incidents } = Triage.document, { run: other, incident, step, time } = asked();
    Triage.pointed = open = null;
    say("");
    if (other && other !== run) {
      const name = /^[\w.-]{1,100}$/.test(other) ? other : null; // only what can be a run's name is shown as one
      say(name ? `This page is of ${run}, and ${name} was asked for. Each run has a page of its own: sentinel ui --run ${name}` : `This page is of ${run}, and another run was asked for.`);
      return;
    }
    const found = step !== null ? { step } : time !== null ? Triage.stepAtTime(time / 1000) : null;
    if (incident) {
      const there = incidents.some((one) => one.incident === incident);
      if (there) Triage.choose(incident, !found); else {
        open = incident;
        say(`The incident that was asked for is not here: this run has ${incidents.map((one) => one.incident).join(", ") || "none"}.`);
      }
      if (there && !found) byId("incident").scrollIntoView({ block: "start" });
    }
    if (found) {
      const { min, max } = Triage.whole_run, around = Math.max(100, (max - min) / 200);
      Triage.pointed = found.step;
      Triage.setView(found.step - around, found.step + around);
    } else if (time !== null) say("A moment was asked for, and this run's readings have no times.");
    if (found && (found.step < Triage.whole_run.min || found.step > Triage.whole_run.max)) say(`Step ${Triage.whole(found.step)} was asked for; the readings are of other steps.`);
  };

  // What was not there may have come.
  Triage.goWhereStillAsked = () => {
    if (open && Triage.document.incidents.some((one) => one.incident === open)) Triage.goWhereAsked();
  };

  // So that the address leads there again when it is copied.
  Triage.nameInAddress = (incident) => history.replaceState(null, "", `#${incident}`);

  addEventListener("hashchange", Triage.goWhereAsked);
}
