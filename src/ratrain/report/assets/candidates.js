/* Configurations as points of time against memory. */

/** 1, 2 and 5 of each power of ten between two values. */
function logTicks(low, high) {
  const ticks = [];
  for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) {
    for (const step of [1, 2, 5]) if (step * decade >= low && step * decade <= high) ticks.push(step * decade);
  }
  return ticks;
}

function drawCandidates() {
  const found = data.candidates;
  if (!found) return;
  const place = placeOf("candidates");
  const ahead = { misfit: 0, fits: 1, simulated: 2, chosen: 3 };
  const points = [...found.points].sort((a, b) => ahead[a.kind] - ahead[b.kind]);
  const byTime = [...found.points].sort((a, b) => a.step_s - b.step_s);
  const times = points.map((point) => point.step_s);
  const sizes = [...points.map((point) => point.memory_bytes), found.budget_bytes || 0];
  const low = Math.min(...times), high = Math.max(...times), margin = (high - low) * 0.05 || low * 0.1;
  // Where times lie far apart, equal distances are equal ratios.
  const far = high > 8 * low;
  const x = far ? [low / 1.15, high * 1.15] : [Math.max(0, low - margin), high + margin];
  let marked = null;
  const spot = (u, point) => [
    u.valToPos(point.step_s, "x", true), u.valToPos(point.memory_bytes, "y", true),
  ];

  function draw(u) {
    const { ctx } = u, ratio = uPlot.pxRatio;
    ctx.save();
    for (const point of points) {
      const [px, py] = spot(u, point);
      ctx.fillStyle = ctx.strokeStyle = colour(`p-${point.kind}`);
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      if (point.kind === "misfit") {
        const r = 2.5 * ratio;
        ctx.moveTo(px - r, py - r);
        ctx.lineTo(px + r, py + r);
        ctx.moveTo(px - r, py + r);
        ctx.lineTo(px + r, py - r);
        ctx.stroke();
        continue;
      }
      ctx.arc(px, py, { fits: 2.5, simulated: 4.5, chosen: 6 }[point.kind] * ratio, 0, 2 * Math.PI);
      ctx.fill();
      if (point.kind === "chosen") {
        ctx.beginPath();
        ctx.arc(px, py, 10 * ratio, 0, 2 * Math.PI);
        ctx.stroke();
      }
    }
    if (marked) {
      const [px, py] = spot(u, marked);
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      ctx.arc(px, py, 8 * ratio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
    if (found.budget_bytes) level(u, found.budget_bytes, "bad", `budget ${bytes(found.budget_bytes)}`, []);
  }

  const chart = plot(place, {
    height: 340,
    scales: { x: { time: false, range: x, ...(far ? { distr: 3, log: 10 } : {}) }, y: { range: [0, 1.06 * Math.max(...sizes)] } },
    axes: [
      axis({
        values: secondTicks, size: 40, space: 80, labelSize: 16, labelFont: FONT,
        label: far ? "step time (logarithmic)" : "step time",
        ...(far ? { splits: () => logTicks(...x) } : {}),
      }),
      { ...leftAxis(byteTicks, "memory"), labelFont: FONT },
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false } },
    hooks: { draw: [draw] },
  }, [times.slice().sort((a, b) => a - b), times.map(() => 0)]);

  const names = {
    chosen: "this layout", simulated: "simulated, proven to fit", fits: "fits; time by closed formula",
    misfit: "does not fit; time by closed formula",
  };
  function mark(point, x, y) {
    if (marked !== point) {
      marked = point;
      chart.redraw(false, false);
    }
    if (!point) return tip.hide();
    const lines = [point.name, names[point.kind], `${seconds(point.step_s)}, ${bytes(point.memory_bytes)}`, ...point.details];
    if (point.stands_for > 1) lines.push(`stands for ${point.stands_for.toLocaleString("en-US")} configurations nearby`);
    return tip.show(x, y, lines);
  }
  chart.over.addEventListener("mousemove", (event) => {
    const box = chart.over.getBoundingClientRect();
    let best = null, nearest = 14;
    for (const point of points) {
      const distance = Math.hypot(
        chart.valToPos(point.step_s, "x") - (event.clientX - box.left),
        chart.valToPos(point.memory_bytes, "y") - (event.clientY - box.top),
      );
      if (distance <= nearest) [best, nearest] = [point, distance];
    }
    mark(best, event.clientX, event.clientY);
  });
  chart.over.addEventListener("mouseleave", () => mark(null));
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") mark(null);
    if (!step) return;
    event.preventDefault();
    const at = byTime.indexOf(marked || found.points[0]) + (marked ? step : 0);
    const point = byTime[Math.min(Math.max(at, 0), byTime.length - 1)];
    const box = chart.over.getBoundingClientRect();
    mark(point, box.left + chart.valToPos(point.step_s, "x"), box.top + chart.valToPos(point.memory_bytes, "y"));
  });
  place.addEventListener("blur", () => mark(null));
}
