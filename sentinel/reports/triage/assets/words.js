"use strict";
// Words and numbers, and elements made of them. Text is only ever set as text: nothing from a log becomes markup.
Triage.number = (value) => (value === "nan" ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);

Triage.short = (given) => {
  const value = Triage.number(given);
  if (value === null || value === undefined) return "—";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "−inf";
  const size = Math.abs(value);
  const text = size === 0 ? "0"
    : size >= 1e6 || size < 1e-3 ? value.toExponential(2).replace("e+", "e")
    : size >= 1000 ? value.toLocaleString("en-US", { maximumFractionDigits: 1 })
    : value.toPrecision(4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  return text.replace("-", "−");
};

Triage.whole = (value) => (value === null || value === undefined ? "—" : Number(value).toLocaleString("en-US"));

Triage.plain = (value) => {
  if (value === null || value === undefined) return "—";
  if (typeof value === "number" || ["nan", "inf", "-inf"].includes(value)) return Triage.short(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
};

Triage.clock = (seconds) => {
  const at = new Date(1000 * seconds);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
};

Triage.day = (seconds) => {
  const at = new Date(1000 * seconds);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
};

Triage.words = (name) => String(name).replaceAll("_", " ");

// An element: its tag with classes after dots, its properties, its children (elements or text).
Triage.make = (tag, properties, ...children) => {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};

Triage.drawn = (tag, properties, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(properties || {})) made.setAttribute(key, value);
  made.append(...children.flat().filter(Boolean));
  return made;
};

Triage.table = (headings, rows, kind = "") => Triage.make("div.scroll", null, Triage.make(`table${kind}`, null,
  Triage.make("thead", null, Triage.make("tr", null, headings.map((h) =>
    Triage.make(h.startsWith("#") ? "th.n" : "th", { scope: "col" }, h.replace("#", ""))))),
  Triage.make("tbody", null, rows.map((row) => Triage.make("tr", null, row.map((cell, i) =>
    Triage.make(headings[i].startsWith("#") ? "td.n" : "td", null, cell)))))));

Triage.times = (given) => {
  const value = Triage.number(given);
  return Number.isFinite(value) && value < 1000 ? value.toFixed(value < 10 ? 2 : 0) : Triage.short(value);
};
