"use strict";
// What stands beside the charts: the verdict, the attempts, an incident's story, plan and suspects, the correlation.
{
  const { make, drawn, short, whole, plain, words } = Triage;
  const byId = (id) => document.getElementById(id);

  Triage.showHead = () => {
    const { run, standing, incidents } = Triage.document;
    byId("run").textContent = run;
    byId("verdict").textContent = words(standing.verdict);
    byId("verdict").dataset.severity = ["healthy", "finished"].includes(standing.verdict) ? "good" : standing.severity;
    byId("reason").textContent = standing.reason;
    const onset = incidents.filter((one) => one.status !== "closed").length;
    const facts = [
      ["step", whole(standing.global_step)], ["attempt", whole(standing.attempt)], ["loss", short(standing.loss)],
      ["loss ratio", short(standing.loss_ratio)], ["incidents", incidents.length ? `${incidents.length}${onset ? `, ${onset} open` : ", all closed"}` : "none"],
    ];
    byId("facts").replaceChildren(...facts.map(([name, value]) => make("div", null, make("dt", null, name), make("dd", { "data-fact": name }, value))));
  };

  Triage.showFoot = () => {
    const { samples, unreadable, notes, made_unix_s: made } = Triage.document;
    const said = [`${whole(samples)} samples`, unreadable ? `${whole(unreadable)} lines could not be read` : null, `written ${Triage.day(made)}`, ...notes];
    byId("foot").textContent = said.filter(Boolean).join("  ·  ");
  };

  Triage.showLegend = () => {
    const shown = Triage.document.attempts.map((a) => [a.attempt, a.mitigation || "as it was", a.verdict]);
    byId("legend").replaceChildren(...shown.map(([attempt, changed, became]) => make("button.chip",
      { type: "button", "aria-pressed": String(!Triage.hidden.has(attempt)), title: "Hide or show", onclick: () => {
        if (!Triage.hidden.delete(attempt)) Triage.hidden.add(attempt);
        Triage.showLegend();
        Triage.redraw();
      } },
      make("i", { style: { background: Triage.attemptColour(attempt) } }), `${attempt} · ${changed}`, make("em", null, became))));
  };

  // One row for each attempt: the steps that it made, coloured by the verdict; what is no verdict is outlined.
  Triage.showTimeline = () => {
    const box = byId("timeline"), { attempts, findings } = Triage.document, rows = attempts.filter((a) => a.first_step !== null).slice(-24);
    const width = box.clientWidth, left = 54, inner = Math.max(10, width - left - 10), { min, max } = Triage.view;
    const at = (step) => left + inner * Math.min(1, Math.max(0, (step - min) / (max - min)));
    const high = rows.length > 10 ? 8 : 14, svg = drawn("svg", { width, height: rows.length * (high + 4) + 2, role: "img" });
    rows.forEach((row, i) => {
      const y = i * (high + 4) + 2, from = at(row.first_step), to = at(row.last_step);
      const bar = (a, b, kind, title) => svg.append(drawn("rect", { x: a, y, width: Math.max(b - a, 3), height: high, rx: 3, class: kind }, titled(title)));
      if (rows.length <= 10) svg.append(text(left - 8, y + high - 3, String(row.attempt)));
      if (row.last_step < min || row.first_step > max) return;
      bar(from, to, "healthy", `attempt ${row.attempt}: ${row.verdict}, steps ${row.first_step} to ${row.last_step}`);
      for (const found of findings.filter((f) => f.attempt === row.attempt && f.until_step >= min && f.onset_step <= max)) {
        bar(at(found.from_step), at(found.until_step), found.verdict || "remark", `${words(found.kind)} at step ${found.onset_step}: ${found.reason}`);
      }
    });
    const verdicts = [...new Set(findings.map((f) => f.verdict).filter(Boolean))];
    const remarks = [...new Set(findings.filter((f) => !f.verdict).map((f) => words(f.kind)))];
    const key = make("p.key", null, make("span.healthy", null, "verdict: healthy"), verdicts.map((verdict) => make(`span.${verdict}`, null, words(verdict))),
      remarks.length ? make("span.remark", null, `no verdict: ${remarks.join(", ")}`) : null);
    box.replaceChildren(svg, key);
  };
  const titled = (title) => { const made = drawn("title"); made.textContent = title; return made; };
  const text = (x, y, said) => { const made = drawn("text", { x, y, "text-anchor": "end" }); made.textContent = said; return made; };

  Triage.showAttempts = () => {
    const rows = Triage.document.attempts.map((a) => [
      make("span.who", null, make("i", { style: { background: Triage.attemptColour(a.attempt) } }), String(a.attempt)),
      a.mitigation || "as it was", a.resumed_from === null ? "scratch" : whole(a.resumed_from), `${whole(a.first_step)} – ${whole(a.last_step)}`,
      whole(a.steps_loss_ratio_gt_1_2), short(a.max_loss_ratio), short(a.validation_loss), make("span.outcome", { "data-outcome": a.verdict }, a.verdict),
    ]);
    byId("attempts").hidden = !rows.length;
    byId("attempts").replaceChildren(make("h2", null, "What was tried"),
      Triage.table(["attempt", "mitigation", "#from step", "#steps", "#ratio > 1.2", "#largest ratio", "#validation", "became"], rows));
  };

  Triage.showTabs = () => {
    byId("incident-tabs").replaceChildren(...Triage.document.incidents.map(({ incident, outcome, status }) => make("button",
      { type: "button", role: "tab", "aria-selected": String(incident === Triage.shown), onclick: () => Triage.turnTo(incident) },
      incident, make("em", null, outcome || status))));
  };

  Triage.showIncident = () => {
    const incident = Triage.document.incidents.find((one) => one.incident === Triage.shown), box = byId("incident");
    if (!incident) {
      box.replaceChildren(make("div.card.calm", null, make("h2", null, "No incident"), make("p", null, "Nothing has diverged so far.")));
      return;
    }
    const state = incident.outcome || incident.status;
    box.replaceChildren(...[
      make("section.card.broke", { "data-outcome": state },
        make("h2", null, incident.incident, make("span.outcome", { "data-outcome": state }, state)),
        make("p.lead", null, incident.reason),
        incident.onset_range && make("dl.pairs", null, pair("onset", `${whole(incident.onset_range[0])} – ${whole(incident.onset_range[1])}`),
          pair("alarm", whole(incident.alarm_step)), pair("attempt", whole(incident.attempt))),
        incident.onset_range && make("p.note", null, incident.led),
        incident.note && make("p.note", null, incident.note)),
      bisect(incident.bisect), suspects(incident), plans(incident), commands(incident), story(incident)].filter(Boolean));
  };
  const pair = (name, value) => make("div", null, make("dt", null, name), make("dd", null, value));

  const bisect = (found) => found && make("section.card", null, make("h2", null, "Why it diverged"),
    make("p.lead", null, found.reason), make("p.note", null, [found.repeats, found.stopped, found.over ? null : "the bisect has not come to its end"].filter(Boolean).join("  ·  ")),
    found.ranked.map((one, i) => make("details.plan", i === 0 ? { open: "" } : null, make("summary", null, make("b", null, one.cause), make("span.outcome", null, one.sure)), make("p.note", null, one.why),
      one.rung && make("p.facts", null, Object.entries(one.rung).map(([key, value]) => `${key} = ${plain(value)}`).join("  ·  ")))),
    Triage.table(["probe", "became", "#steps", "change", "why"], found.probes.map((p) => [p.name, p.outcome, whole(p.steps), p.change, p.why])),
    [...new Set(found.not_tried.map(([, why]) => why))].map((why) =>
      make("p.note", null, `not tried: ${found.not_tried.filter((one) => one[1] === why).map(([name]) => name).join(", ")}: ${why}`)));

  const story = ({ story: lines }) => make("section.card.did", null, make("h2", null, "What sentinel did"),
    make("ol.story", null, lines.map((line) => make("li", { "data-tone": line.tone },
      make("time", { title: Triage.day(line.time_unix_s) }, Triage.clock(line.time_unix_s)), make("p", null, line.sentence)))));

  const plans = ({ plans: all }) => all.length ? make("section.card", null, make("h2", null, "The plan, and what it changed"), all.map((plan, i) =>
    make("details.plan", i === all.length - 1 ? { open: "" } : null,
      make("summary", null, make("b", null, plan.rung || "nothing"), make("span.from", null, plan.target ? `from ${plan.target.tag || "scratch"}` : ""), plan.outcome && make("span.outcome", { "data-outcome": plan.outcome.split(":")[0] }, plan.outcome.split(":")[0])),
      plan.kind !== "decided" && make("p.note", null, plan.kind === "shadow" ? "In mode observe: this would have been done." : "Waits for a person."),
      plan.refusal && make("p.note", null, plan.refusal),
      plan.hypothesis && make("p.hypothesis", null, plan.hypothesis),
      plan.outcome && plan.outcome.includes(":") && make("p.note", null, plan.outcome.slice(plan.outcome.indexOf(":") + 2)),
      plan.difference.length ? make("div.diff", { role: "list" }, plan.difference.map((d) => make("div", { role: "listitem" }, make("code", null, d.name),
        make("del", null, plain(d.before)), make("ins", null, plain(d.after))))) : make("p.note", null, (plan.changes || []).join("; ") || "Nothing but the checkpoint."),
      plan.script.length ? make("details.script", null, make("summary", null, "In the job script"), make("pre", null, plan.script.map((line) =>
        make(line.startsWith("+") ? "ins" : line.startsWith("-") ? "del" : "span", null, line.startsWith("@@") ? line : line.slice(1))))) : null,
      make("p.facts", null, [plan.lost_steps ? `${whole(plan.lost_steps)} steps given up` : null,
        plan.checks.length ? `${plan.checks.filter((c) => c.answer === "confirmed").length} of ${plan.checks.length} checks confirmed by the trainer` : null,
        ...["contradicted", "not verified"].map((answer) => {
          const found = plan.checks.filter((c) => c.answer === answer).map((c) => c.what);
          return found.length ? `${answer}: ${found.join(", ")}` : null;
        })].filter(Boolean).join("  ·  ")),
      plan.actions.length ? make("ul.actions", null, plan.actions.map((a) => make("li", { "data-done": String(a.done) }, words(a.kind)))) : null))) : null;

  const commands = ({ commands: all }) => make("section.card.commands", null, make("h2", null, "To type"), make("p.note", null, "This page only shows; it never acts."),
    all.map(({ what, command }) => make("div", null, make("span", null, what), make("code", null, command),
      make("button", { type: "button", title: "Copy", "aria-label": `Copy: ${command}`, onclick: (event) => {
        navigator.clipboard?.writeText(command).then(() => { event.target.textContent = "copied"; }, () => {});
      } }, "copy"))));

  const grown = (rows, name) => rows.map((row) => make("div.bar", null, make("span", null, words(row[name])),
    make("i", { style: { "--share": `${Math.min(100, 100 * Math.log2(Math.max(1, Triage.number(row.growth) || 1)) / 6)}%` } }),
    make("b", null, Triage.number(row.growth) > 0 ? `× ${Triage.times(row.growth)}` : "—"), make("small", null, `${short(row.usual)} → ${short(row.most)}`)));

  const suspects = ({ suspects: found, led }) => {
    if (!found) return null;
    const { samples, signals, layers, ranks } = found;
    const part = (title, ...children) => make("div.suspect", null, make("h3", null, title), ...children);
    return make("section.card", null, make("h2", null, "Suspects"),
      part("What moved, in order", signals.departures.length ? make("ol.moved", null, signals.departures.map((d) => make("li", null, make("b", null, words(d.signal)),
        d.steps_before_onset > 0 ? ` ${d.steps_before_onset} steps before the onset` : " at the onset", make("small", null, `step ${whole(d.first_step)}, ${short(d.deviations)} deviations`)))) : make("p.note", null, led),
      signals.stayed.length ? make("p.note", null, `stayed inside their noise: ${signals.stayed.map(words).join(", ")}`) : null),
      part("Which samples", samples ? [make("p", null, "Samples ", make("b.num", null, `${whole(samples.first)} – ${whole(samples.after_last - 1)}`), ` of the data order: steps ${whole(samples.steps[0])} to ${whole(samples.steps[1])}, from three before the onset to one after.`),
        samples.texts.length ? make("details.texts", null, make("summary", null, samples.texts.length < samples.texts_known ? `Their text (the first ${samples.texts.length} of ${whole(samples.texts_known)})` : `Their text (${samples.texts.length})`), make("div", { tabindex: "0" }, samples.texts.map((t) => make("blockquote", null, make("cite", null, whole(t.position)), t.text)))) : null]
        : make("p.note", null, "The trainer did not count its samples.")),
      part("Which layer", layers.length ? grown(layers, "layer") : make("p.note", null, "No layer was measured near the onset.")),
      part("Which rank", ranks.length ? grown(ranks, "signal") : make("p.note", null, "One rank, or its spread was not measured.")));
  };

  Triage.showCorrelations = () => {
    const found = Triage.document.correlations, box = byId("correlations");
    box.hidden = !found || !found.rows.length;
    if (box.hidden) return;
    const signals = [...new Set(found.rows.map((row) => row.signal))].filter((s) => found.rows.some((row) => row.signal === s && Number.isFinite(row.pearson_r)));
    const cell = (row) => row && Number.isFinite(row.pearson_r) ? make("span", { class: row.p_value_adjusted < 0.05 ? "sure" : "unsure", title: `p adjusted ${short(row.p_value_adjusted)}, n effective ${short(row.n_effective)}` }, `${row.pearson_r > 0 ? "+" : "−"}${Math.abs(row.pearson_r).toFixed(3)}`) : "—";
    const rows = signals.map((signal) => {
      const of = found.rows.filter((row) => row.signal === signal), best = of.find((row) => row.method === "prewhitened" && row.lag !== 0);
      return [words(signal), cell(of.find((row) => row.method === "plain")), cell(of.find((row) => row.method === "prewhitened" && row.lag === 0)), cell(best), best ? `${best.lag > 0 ? "+" : "−"}${Math.abs(best.lag)}` : "—"];
    });
    box.replaceChildren(make("h2", null, "What the loss ratio goes with"),
      make("p.note", null, "Pearson's r with the loss ratio. Plain as in the paper's Table 3; without trend and memory (prewhitened) it says more. A positive lag has the signal earlier. Bold: below 5 % after correction for every lag looked at."),
      make("div.two", null, Triage.table(["signal", "#plain", "#prewhitened", "#at its best lag", "#lag"], rows), make("div.lags", null, found.profiles.filter((p) => signals.includes(p.signal)).map(lagPlot))));
  };

  const lagPlot = ({ signal, lags, r, band, best }) => {
    const width = 240, height = 92, span = Math.max(...lags.map(Math.abs)) || 1, values = r.map(Triage.number);
    const top = Math.max(0.1, ...values.filter(Number.isFinite).map(Math.abs), ...band.map(Triage.number).filter(Number.isFinite).map((b) => Math.min(b, 1))) * 1.1;
    const x = (lag) => (width * (lag + span)) / (2 * span), y = (value) => height / 2 - (value / top) * (height / 2 - 4);
    const line = values.map((v, i) => Number.isFinite(v) ? `M${x(lags[i]).toFixed(1)} ${y(0).toFixed(1)}V${y(v).toFixed(1)}` : "").join("");
    const edge = (sign) => band.map((b, i) => `${sign > 0 && !i ? "M" : "L"}${x(lags[i]).toFixed(1)} ${y(sign * Math.min(Triage.number(b), top)).toFixed(1)}`);
    const said = best ? `${best.pearson_r > 0 ? "+" : "−"}${Math.abs(best.pearson_r).toFixed(2)} at ${best.lag > 0 ? "+" : best.lag < 0 ? "−" : ""}${Math.abs(best.lag)}` : "";
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" }, titled(`${words(signal)} by lag: ${said}`),
      drawn("path", { class: "band", d: `${edge(1).join("")}${edge(-1).reverse().join("")}Z` }), drawn("path", { class: "zero", d: `M0 ${y(0)}H${width}M${x(0)} 0V${height}` }),
      drawn("path", { class: "r", d: line }), best && drawn("path", { class: "best", d: `M${x(best.lag)} ${y(0)}V${y(best.pearson_r)}` }));
    return make("figure.lag", null, make("figcaption", null, words(signal), make("b", null, said)), svg, make("p.ends", null, make("span", null, `−${span}`), make("span", null, "lag 0"), make("span", null, `+${span}`)));
  };
}
