/* Loss, step time, throughput and memory, step by step; the four move together. */

function progressChart(kind, values, ticks, format, together, extra, second) {
  const place = placeOf(kind);
  if (!place) return;
  const steps = data.progress.step;
  const known = [...values, ...(second ? second.values : [])].filter((value) => value !== null);
  const reference = extra && extra.value;
  const all = reference ? [...known, reference] : known;
  const low = Math.min(...all), high = Math.max(...all), margin = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  const bottom = low >= 0 && low - margin < 0.15 * high ? 0 : low - margin;
  const chart = plot(place, {
    height: 200,
    scales: {
      x: { time: false, range: inside(together.low, together.high) },
      y: { range: [bottom, high + margin] },
    },
    axes: [axis({ values: plainTicks, size: 28, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }), leftAxis(ticks)],
    series: [{}, {
      stroke: () => colour("o-forward"), width: 1.5, spanGaps: false,
      points: { show: steps.length <= 2, size: 5 },
    }, ...(second ? [{
      stroke: () => colour(second.colour), width: 1.5, spanGaps: true,
      points: { show: true, size: 5, stroke: () => colour(second.colour), fill: () => colour(second.colour) },
    }] : [])],
    cursor: {
      y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: true },
      sync: { key: "progress", scales: ["x", null] },
    },
    hooks: {
      setScale: [(u, key) => key === "x" && together.follow(u)],
      draw: [(u) => {
        const { ctx } = u, ratio = uPlot.pxRatio;
        ctx.save();
        ctx.lineWidth = ratio;
        ctx.setLineDash([4 * ratio, 4 * ratio]);
        ctx.strokeStyle = colour("muted");
        for (const start of data.progress.starts) {
          const x = u.valToPos(start - 0.5, "x", true);
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, u.bbox.top);
          ctx.lineTo(x, u.bbox.top + u.bbox.height);
          ctx.stroke();
        }
        ctx.restore();
        if (reference) level(u, reference, "ink", `${extra.name} ${format(reference)}`, [4, 4]);
      }],
    },
  }, [steps, values, ...(second ? [second.values] : [])]);
  together.add(chart, place);
  chart.over.addEventListener("mousemove", (event) => {
    const i = chart.cursor.idx;
    if (i === null || i === undefined) return tip.hide();
    const value = values[i];
    return tip.show(event.clientX, event.clientY, [
      value === null ? "not a number" : format(value), `${data.progress.words[0]} ${steps[i].toLocaleString("en-US")}`,
      ...(second && second.values[i] !== null ? [`${second.name} ${format(second.values[i])}`] : []),
    ]);
  });
  chart.over.addEventListener("mouseleave", tip.hide);
}

function drawProgress() {
  const run = data.progress;
  if (!run) return;
  const together = new Together(Math.min(run.step[0], run.step.at(-1) - 1), run.step.at(-1));
  const predicted = run.predicted_step_s;
  progressChart("progress-loss", run.loss, plainTicks, (loss) => `loss ${loss.toPrecision(5)}`, together, null,
    run.validation && { name: "validation", values: run.validation, colour: "o-recovery" });
  progressChart("progress-time", run.step_time_s, secondTicks, seconds, together,
    predicted && { name: "predicted", value: predicted });
  progressChart("progress-rate", run.tokens_per_s, plainTicks, (rate) => `${Number(short(rate)).toLocaleString("en-US")} ${run.words[1]}/s`, together,
    predicted && { name: "predicted", value: run.tokens / predicted });
  progressChart("progress-memory", run.allocated_bytes, byteTicks, bytes, together);
}
