"use strict";
// Curves: unpacked once, and of each what a screen can show of the range in view. Every extreme is kept.
const Triage = {};

Triage.unpack = (text, Kind) => {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
};

Triage.curve = (packed) => {
  const x = Triage.unpack(packed.steps, Uint32Array), y = Triage.unpack(packed.values, Float32Array);
  return { attempt: packed.attempt, readings: packed.readings, x, y, n: x.length };
};

Triage.append = (curve, step, value) => {
  if (curve.n && step <= curve.x[curve.n - 1]) return false; // it was there already
  if (curve.n === curve.x.length) {
    const room = Math.max(1024, 2 * curve.n), x = new Uint32Array(room), y = new Float32Array(room);
    x.set(curve.x.subarray(0, curve.n));
    y.set(curve.y.subarray(0, curve.n));
    curve.x = x;
    curve.y = y;
  }
  curve.x[curve.n] = step;
  curve.y[curve.n] = value;
  curve.n += 1;
  curve.readings += 1;
  return true;
};

// The first place whose step is not below the given one.
Triage.place = (curve, step) => {
  let low = 0, high = curve.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.x[middle] < step) low = middle + 1; else high = middle;
  }
  return low;
};

// What lies between two steps, and a point to either side; per column of the screen its first, least, greatest and last.
Triage.inView = (curve, from, to, columns, log) => {
  const begin = Math.max(0, Triage.place(curve, from) - 1), end = Math.min(curve.n, Triage.place(curve, to) + 1);
  const x = [], y = [], bad = [];
  const keep = (i) => {
    const value = curve.y[i];
    if (!Number.isFinite(value)) bad.push([curve.x[i], value]);
    x.push(curve.x[i]);
    y.push(!Number.isFinite(value) || (log && value <= 0) ? null : value);
  };
  if (end - begin <= 4 * columns) {
    for (let i = begin; i < end; i++) keep(i);
    return { x, y, bad };
  }
  const width = Math.max((to - from) / columns, 1e-9);
  for (let i = begin; i < end;) {
    const column = Math.floor((curve.x[i] - from) / width), first = i;
    let least = -1, greatest = -1, worst = -1;
    for (; i < end && Math.floor((curve.x[i] - from) / width) === column; i++) {
      const value = curve.y[i];
      if (!Number.isFinite(value)) { if (worst < 0 || Number.isNaN(value)) worst = i; continue; }
      if (least < 0 || value < curve.y[least]) least = i;
      if (greatest < 0 || value > curve.y[greatest]) greatest = i;
    }
    const places = [...new Set([first, least, greatest, worst, i - 1])].filter((p) => p >= 0).sort((a, b) => a - b);
    places.forEach(keep);
  }
  return { x, y, bad };
};

// The reading nearest to a step, or null where the curve is not near it.
Triage.near = (curve, step) => {
  if (!curve.n || step < curve.x[0] - 1 || step > curve.x[curve.n - 1] + 1) return null;
  const at = Triage.place(curve, step);
  if (at >= curve.n) return curve.n - 1;
  return at > 0 && step - curve.x[at - 1] < curve.x[at] - step ? at - 1 : at;
};
