/* Three figures that move: below the still picture, sliders for the numbers of the section's formula.
   Plain script, no library, nothing loaded. Without scripts the still picture is all there is. */
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = ["#2f6fdf", "#e0762f", "#2f9e6e", "#8b5cd6"];
  const QUIET = "#8a8f98";

  const seconds = (s) => {
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
      if (s >= size || unit === "µs") return `${Number((s / size).toPrecision(3))} ${unit}`;
    }
  };
  const bytes = (n) => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (n >= size) return `${Number((n / size).toPrecision(2))} ${unit}`;
    }
    return `${Math.round(n)} B`;
  };

  const element = (parent, name, attributes = {}, text = "") => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return parent.appendChild(made);
  };
  const label = (svg, x, y, text, more = {}) =>
    element(svg, "text", { x, y, "font-size": 13, fill: "currentColor", ...more }, text);

  /* t1, t2, t3: five turns of a loop, with waiting and without */
  const timeline = {
    height: 190,
    sliders: [
      ["t1", "t₁, the call", 1, 60, 10, 1, (v) => `${v} µs`],
      ["t2", "t₂, computing", 1, 60, 40, 1, (v) => `${v} µs`],
      ["t3", "t₃, waking Python", 0, 60, 15, 1, (v) => `${v} µs`],
    ],
    draw(svg, { t1, t2, t3 }) {
      const turns = 5;
      const loops = [[], []];
      let now = 0;
      for (let i = 0; i < turns; i++) {
        loops[0].push(["front", now, t1], ["back", now + t1, t2], ["wake", now + t1 + t2, t3]);
        now += t1 + t2 + t3;
      }
      const waiting = now;
      let free = 0;
      for (let i = 0; i < turns; i++) {
        const start = Math.max((i + 1) * t1, free);
        loops[1].push(["front", i * t1, t1], ["back", start, t2]);
        free = start + t2;
      }
      loops[1].push(["wake", free, t3]);
      const without = free + t3;
      const scale = 560 / Math.max(waiting, without);
      ["waiting in each turn", "waiting once"].forEach((name, row) => {
        const top = 26 + 84 * row;
        label(svg, 100, top - 8, name, { "font-weight": 600 });
        label(svg, 0, top + 17, "front end");
        label(svg, 0, top + 45, "back end");
        for (const [kind, start, length] of loops[row]) {
          if (!length) continue;
          const back = kind === "back";
          element(svg, "rect", {
            x: 100 + scale * start, y: top + (back ? 28 : 0), width: Math.max(scale * length - 1, 0.5), height: 24,
            fill: back ? COLORS[1] : kind === "wake" ? QUIET : COLORS[0],
          });
        }
      });
      return `Five turns take ${waiting} µs with waiting in each, and ${without} µs with waiting once: ` +
        `${(waiting / without).toFixed(2)} times as fast. For many turns the factor is ` +
        `(t₁ + t₂ + t₃) / max(t₁, t₂) = ${((t1 + t2 + t3) / Math.max(t1, t2)).toFixed(2)}.`;
    },
  };

  /* star, ring, two levels: one all-reduce, nodes of eight */
  const collectives = {
    height: 150,
    sliders: [
      ["n", "array", 3, 10, 8, 0.25, (v) => bytes(10 ** v)],
      ["k", "devices, nodes of eight", 1, 10, 6, 1, (v) => `${2 ** v}`],
      ["inside", "bandwidth in a node", 50, 450, 400, 50, (v) => `${v} GB/s`],
      ["between", "bandwidth between nodes", 5, 100, 50, 5, (v) => `${v} GB/s`],
      ["delay", "delay of a message", 1, 30, 5, 1, (v) => `${v} µs`],
    ],
    draw(svg, values) {
      const n = 10 ** values.n, k = 2 ** values.k, a = values.delay * 1e-6;
      const inside = values.inside * 1e9, between = values.between * 1e9;
      const m = Math.min(k, 8), c = k / m, slowest = c > 1 ? between : inside;
      const ring = (k, n, b) => (k > 1 ? 2 * (k - 1) * a + (2 * (k - 1) / k) * (n / b) : 0);
      const ways = [
        ["star", 2 * (k - 1) * (a + n / slowest)],
        ["ring", ring(k, n, slowest)],
        ["two levels", ring(m, n, inside) + ring(c, n / m, between)],
      ];
      const longest = Math.max(...ways.map(([, s]) => s));
      const least = Math.min(...ways.map(([, s]) => s));
      ways.forEach(([name, s], row) => {
        const y = 14 + 44 * row;
        const width = Math.max(1, 440 * (s / longest));
        label(svg, 0, y + 19, name);
        element(svg, "rect", { x: 100, y, width, height: 28, fill: COLORS[row] });
        label(svg, 108 + width, y + 19, seconds(s), { "font-weight": s === least ? 700 : 400 });
      });
      const best = ways.find(([, s]) => s === least)[0];
      return `${bytes(n)} on ${k} devices: the formulas give the least time to ${best}.`;
    },
  };

  /* strong and weak scaling: speed-up over one device */
  const scaling = {
    height: 306,
    sliders: [
      ["fixed", "fixed time of a step", 0, 10, 1.9, 0.1, (v) => `${v} ms`],
      ["image", "time per image", 1, 100, 7, 1, (v) => `${v} µs`],
      ["batch", "batch on one device", 5, 13, 10, 1, (v) => `${2 ** v}`],
      ["size", "gradients", 0, 4, 1.65, 0.05, (v) => bytes(10 ** v * 1e6)],
      ["bandwidth", "bandwidth", 5, 450, 50, 5, (v) => `${v} GB/s`],
      ["delay", "delay of a message", 1, 30, 5, 1, (v) => `${v} µs`],
    ],
    draw(svg, v) {
      const batch = 2 ** v.batch, size = 10 ** v.size * 1e6;
      const compute = (images) => v.fixed * 1e-3 + images * v.image * 1e-6;
      const ring = (k) => 2 * (k - 1) * v.delay * 1e-6 + (2 * (k - 1) / k) * (size / (v.bandwidth * 1e9));
      const alone = compute(batch);
      const x = (power) => 60 + 52 * power;
      const y = (gain) => 262 - 24 * Math.log2(Math.max(gain, 1));
      for (let power = 0; power <= 10; power += 2) {
        element(svg, "path", { d: `M${x(power)} 262V20`, stroke: "currentColor", "stroke-opacity": 0.15 });
        label(svg, x(power), 282, `${2 ** power}`, { "text-anchor": "middle" });
        label(svg, 52, y(2 ** power) + 4, `${2 ** power}`, { "text-anchor": "end" });
      }
      label(svg, x(5), 300, "devices", { "text-anchor": "middle" });
      label(svg, 0, 14, "times as fast as one device");
      const curves = [["ideal", (k) => k], ["weak", (k) => (k * alone) / (alone + ring(k))],
        ["strong", (k) => alone / (compute(batch / k) + ring(k))]];
      curves.forEach(([name, gain], i) => {
        const points = Array.from({ length: 11 }, (_, power) => `${x(power)} ${y(gain(2 ** power))}`);
        element(svg, "path", {
          d: `M${points.join("L")}`, fill: "none", stroke: i ? COLORS[i] : QUIET, "stroke-width": 2,
          "stroke-dasharray": i ? "none" : "4 4",
        });
        label(svg, x(10) + 8, y(gain(1024)) + [-8, 6, 0][i], name, { fill: i ? COLORS[i] : "currentColor" });
      });
      const strong = [...Array(11).keys()].map((power) => [2 ** power, curves[2][1](2 ** power)]);
      const [count, most] = strong.reduce((best, now) => (now[1] > best[1] ? now : best));
      return `A fixed batch of ${batch} gains most on ${count} devices: ${most.toFixed(1)} times. ` +
        `A batch that grows makes 1024 devices ${Math.round(curves[1][1](1024))} times as fast as one.`;
    },
  };

  const FIGURES = { timeline, collectives, scaling };

  document.querySelectorAll("[data-slider]").forEach((figure) => {
    const { sliders, draw, height } = FIGURES[figure.dataset.slider];
    const box = document.createElement("div");
    box.className = "sliders";
    const controls = box.appendChild(document.createElement("div"));
    const svg = element(box, "svg", { viewBox: `0 0 680 ${height}`, role: "img" });
    const said = box.appendChild(document.createElement("p"));
    said.setAttribute("aria-live", "polite");
    const values = {};
    const update = () => {
      svg.replaceChildren();
      said.textContent = draw(svg, values);
      svg.setAttribute("aria-label", said.textContent);
    };
    for (const [name, text, min, max, value, step, words] of sliders) {
      const line = controls.appendChild(document.createElement("label"));
      line.append(text);
      const input = line.appendChild(document.createElement("input"));
      const shown = line.appendChild(document.createElement("output"));
      Object.assign(input, { type: "range", min, max, step, value });
      values[name] = value;
      shown.textContent = words(value);
      input.addEventListener("input", () => {
        values[name] = Number(input.value);
        shown.textContent = words(values[name]);
        update();
      });
    }
    figure.append(box);
    update();
  });
})();
