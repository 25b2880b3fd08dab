/* Memory over one step: groups of states stacked, under the proven bound and the budget. */

function memoryChart(memory, curve, place) {
  const { groups, unit_bytes: unit, bounds } = memory;
  const [bound, budget] = bounds[curve.rank] || [null, null];
  const stacked = [];
  let below = curve.time_s.map(() => 0);
  for (const sizes of curve.groups) {
    below = below.map((sum, i) => sum + sizes[i] * unit);
    stacked.push(below);
  }
  const peak = Math.max(...below, bound || 0);
  // A budget far above what is needed would leave nothing to be seen.
  const near = budget !== null && budget < 2.5 * peak;
  const top = 1.06 * (near ? Math.max(peak, budget) : peak);
  const end = curve.time_s.at(-1) || 1;
  const stepped = uPlot.paths.stepped({ align: 1 });
  // Drawn from the highest sum down, each over the one before: what stays visible is the stack.
  const order = groups.map((_, i) => i).reverse();
  const chart = plot(place, {
    height: 220,
    scales: { x: { time: false, range: inside(0, end) }, y: { range: [0, top] } },
    axes: [axis({ values: secondTicks, size: 28, space: 80 }), leftAxis(byteTicks)],
    series: [{}, ...order.map((i) => ({
      stroke: () => colour(`m-${groups[i].key}`), fill: () => colour(`m-${groups[i].key}`),
      width: 0, paths: stepped, points: { show: false },
    }))],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
    hooks: {
      draw: [(u) => {
        if (bound !== null) level(u, bound, "ink", `proven ${bytes(bound)}`, [5, 4]);
        if (near) level(u, budget, "bad", `budget ${bytes(budget)}`, []);
      }],
    },
  }, [curve.time_s, ...order.map((i) => stacked[i])]);
  chart.over.addEventListener("mousemove", (event) => {
    const x = event.clientX - chart.over.getBoundingClientRect().left;
    const time = chart.posToVal(x, "x");
    let i = curve.time_s.findIndex((begin) => begin > time);
    i = (i < 0 ? curve.time_s.length : i) - 1;
    if (i < 0) return tip.hide();
    const lines = groups.map((group, g) => [group.name, curve.groups[g][i] * unit])
      .filter(([, size]) => size > 0)
      .map(([name, size]) => `${name} ${bytes(size)}`)
      .reverse();
    return tip.show(event.clientX, event.clientY, [
      `${bytes(below[i])} at ${seconds(time)}`, ...lines,
    ]);
  });
  chart.over.addEventListener("mouseleave", tip.hide);
}

function drawMemory() {
  for (const choice of document.querySelectorAll(".memory-rank")) {
    const memory = data.memory[choice.dataset.tier];
    const show = () => {
      for (const curve of memory.curves) {
        if (String(curve.rank) !== choice.value) continue;
        const place = placeOf(`memory-${choice.dataset.tier}-${curve.source}`);
        const before = plots.get(place);
        if (before) before.destroy();
        memoryChart(memory, curve, place);
      }
    };
    choice.addEventListener("change", show);
    show();
  }
}
