/* The timeline: rows of ranks on a uPlot canvas. Ops narrower than a pixel or two are drawn as
   columns whose colours take the share of the time that their ops took. */

const CLASSES = data.classes.length;

/** A lane's flat list as columns of begins, ends, colours, words and micro-batches. */
function unpack(flat) {
  const count = flat.length / 5;
  const lane = {
    begin: new Float64Array(count), end: new Float64Array(count),
    kind: new Int32Array(count), word: new Int32Array(count), batch: new Int32Array(count),
  };
  let at = 0;
  for (let i = 0; i < count; i++) {
    at += flat[5 * i];
    lane.begin[i] = at;
    at += flat[5 * i + 1];
    lane.end[i] = at;
    lane.kind[i] = flat[5 * i + 2];
    lane.word[i] = flat[5 * i + 3];
    lane.batch[i] = flat[5 * i + 4];
  }
  return lane;
}

/** The first place whose end lies behind a time. */
function firstBehind(ends, time) {
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] <= time) low = middle + 1; else high = middle;
  }
  return low;
}

function timelinePanel(panel, place, together, other) {
  const rows = panel.rows.map((row) => ({ rank: row.rank, lanes: row.lanes.map(unpack) }));
  const wide = rows.length <= 6 ? 22 : rows.length <= 12 ? 17 : 13;
  const heights = [wide, 4, 4], between = rows.length <= 12 ? 8 : 5;
  const rowHeight = wide + 8 + between;
  const wordOf = (lane, i) => panel.words[lane.word[i]] + (lane.batch[i] < 0 ? "" : lane.batch[i]);

  /** Top of a lane of a row, in canvas pixels. */
  const topOf = (u, row, lane) => {
    const above = heights.slice(0, lane).reduce((sum, height) => sum + height, 0);
    return u.bbox.top + (row * rowHeight + between / 2 + above) * uPlot.pxRatio;
  };

  function drawLane(u, lane, top, height, labels) {
    const { ctx } = u, ratio = uPlot.pxRatio;
    const min = u.scales.x.min / panel.tick_s, max = u.scales.x.max / panel.tick_s;
    const left = u.bbox.left, scale = u.bbox.width / (max - min);
    const right = left + u.bbox.width;
    const shares = new Float64Array(CLASSES);
    let column = -1;
    const flush = () => {
      if (column < 0) return;
      let bottom = top + height;
      for (let kind = 0; kind < CLASSES; kind++) {
        if (shares[kind] > 0) {
          const tall = Math.min(shares[kind], 1) * height;
          bottom -= tall;
          ctx.fillStyle = colour(`o-${data.classes[kind].key}`);
          ctx.fillRect(column, bottom, 1, tall);
          shares[kind] = 0;
        }
      }
      column = -1;
    };
    const addTo = (kind, share) => {
      if (kind < CLASSES) shares[kind] += share;
      else {
        const mix = panel.mixes[kind - CLASSES];
        for (let i = 0; i < mix.length; i += 2) shares[mix[i]] += share * mix[i + 1] / 100;
      }
    };
    for (let i = firstBehind(lane.end, min); i < lane.begin.length && lane.begin[i] < max; i++) {
      const from = Math.max(left, left + (lane.begin[i] - min) * scale);
      const to = Math.min(right, left + (lane.end[i] - min) * scale);
      const kind = lane.kind[i];
      if (to - from >= 2 * ratio && kind < CLASSES) {
        flush();
        const seam = to - from > 5 * ratio ? ratio : to - from > 3 * ratio ? 0.5 * ratio : 0;
        const name = data.classes[kind].key;
        ctx.fillStyle = colour(`o-${name}`);
        ctx.fillRect(from, top, to - from - seam, height);
        const text = lane.batch[i] < 0 ? "" : String(lane.batch[i]);
        if (labels && text && to - from > (6 + 7 * text.length) * ratio) {
          ctx.fillStyle = colour(`ink-${name}`);
          ctx.fillText(text, (from + to - seam) / 2, top + height / 2 + 0.5 * ratio);
        }
        continue;
      }
      // Its time goes to the columns of pixels that it crosses.
      for (let pixel = Math.floor(from); pixel < to; pixel++) {
        if (pixel !== column) {
          flush();
          column = pixel;
        }
        addTo(kind, Math.min(pixel + 1, to) - Math.max(pixel, from));
      }
    }
    flush();
  }

  function drawCritical(u) {
    const { ctx } = u, ratio = uPlot.pxRatio, steps = panel.critical;
    const min = u.scales.x.min / panel.tick_s, max = u.scales.x.max / panel.tick_s;
    const scale = u.bbox.width / (max - min);
    ctx.strokeStyle = colour("o-critical");
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    let before = null;
    for (let i = 0; i < steps.length; i += 4) {
      const y = topOf(u, steps[i], steps[i + 1]) + heights[steps[i + 1]] * ratio - ratio;
      const from = u.bbox.left + (steps[i + 2] - min) * scale;
      const to = u.bbox.left + (steps[i + 3] - min) * scale;
      if (before) ctx.lineTo(from, y); else ctx.moveTo(from, y);
      ctx.lineTo(to, y);
      before = true;
    }
    ctx.stroke();
  }

  function draw(u) {
    const { ctx } = u, ratio = uPlot.pxRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    const end = u.valToPos(panel.length_s, "x", true);
    rows.forEach((row, number) => {
      row.lanes.forEach((lane, which) => {
        const top = topOf(u, number, which);
        if (which === 0) {
          ctx.fillStyle = colour("o-idle");
          ctx.fillRect(u.bbox.left, top, Math.min(end, u.bbox.left + u.bbox.width) - u.bbox.left, heights[0] * ratio);
        }
        drawLane(u, lane, top, heights[which] * ratio, which === 0);
      });
    });
    if (document.getElementById("critical").checked) drawCritical(u);
    ctx.restore();
    // The ranks' names, left of the rows.
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.fillStyle = colour("muted");
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    rows.forEach((row, number) => {
      ctx.fillText(`rank ${row.rank}`, u.bbox.left - 8 * ratio, topOf(u, number, 0) + heights[0] * ratio / 2);
    });
    ctx.restore();
  }

  /** The box under a point, as [row, lane, place]; null where there is none. */
  function under(u, x, y) {
    const row = Math.floor(y / rowHeight);
    if (row < 0 || row >= rows.length) return null;
    let inRow = y - row * rowHeight - between / 2, which = 0;
    while (which < 2 && inRow > heights[which] + 1) inRow -= heights[which++];
    const lane = rows[row].lanes[which];
    const slack = 1.5 * (u.scales.x.max - u.scales.x.min) / panel.tick_s / u.over.clientWidth;
    const time = u.posToVal(x, "x") / panel.tick_s;
    const i = firstBehind(lane.end, time - slack);
    return i < lane.begin.length && lane.begin[i] <= time + slack ? [row, lane, i] : null;
  }

  function describe(u, x, y) {
    const hit = under(u, x, y);
    if (!hit) {
      const row = rows[Math.floor(y / rowHeight)];
      return row ? [`rank ${row.rank}: idle`, `at ${seconds(u.posToVal(x, "x"))}`] : null;
    }
    const [row, lane, i] = hit, kind = lane.kind[i];
    const took = (lane.end[i] - lane.begin[i]) * panel.tick_s;
    const when = `begins at ${seconds(lane.begin[i] * panel.tick_s)}, takes ${seconds(took)}`;
    if (kind >= CLASSES) {
      const mix = panel.mixes[kind - CLASSES], parts = [];
      for (let j = 0; j < mix.length; j += 2) parts.push(`${data.classes[mix[j]].name} ${mix[j + 1]} %`);
      return [`${lane.word[i].toLocaleString("en-US")} short ops on rank ${rows[row].rank}`, when, ...parts];
    }
    const word = wordOf(lane, i), lines = [`${word} on rank ${rows[row].rank}`, data.classes[kind].name];
    if (lane.batch[i] >= 0) lines.push(`micro-batch ${lane.batch[i]}`);
    lines.push(when);
    const there = other && other().find(rows[row].rank, word);
    if (there) lines.push(`${there.title}: ${seconds(there.begin)}, takes ${seconds(there.took)}`);
    return lines;
  }

  let index = null;
  const api = {
    panel, rows, wordOf,
    /** An op by its rank and word. */
    find(rank, word) {
      if (!index) {
        index = new Map();
        for (const row of rows) {
          for (const lane of row.lanes) {
            for (let i = 0; i < lane.begin.length; i++) {
              if (lane.kind[i] < CLASSES) index.set(`${row.rank} ${wordOf(lane, i)}`, [lane, i]);
            }
          }
        }
      }
      const hit = index.get(`${rank} ${word}`);
      if (!hit) return null;
      const [lane, i] = hit;
      return {
        title: panel.title, begin: lane.begin[i] * panel.tick_s,
        took: (lane.end[i] - lane.begin[i]) * panel.tick_s,
      };
    },
  };
  const chart = plot(place, {
    height: rows.length * rowHeight + 40,
    scales: {
      x: { time: false, range: inside(together.low, together.high) },
      y: { range: [0, 1] },
    },
    axes: [
      axis({ values: secondTicks, size: 28, space: 90, grid: { show: false } }),
      axis({ size: 64, values: () => [], splits: () => [], grid: { show: false }, ticks: { show: false } }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: {
      y: false, points: { show: false }, drag: { x: true, y: false, setScale: true },
      sync: { key: "timeline", scales: ["x", null] },
    },
    hooks: {
      drawAxes: [draw],
      setScale: [(u, key) => key === "x" && together.follow(u)],
    },
  }, [[together.low, together.high], [0, 0]]);
  together.add(chart, place);
  chart.over.addEventListener("mousemove", (event) => {
    const box = chart.over.getBoundingClientRect();
    const lines = describe(chart, event.clientX - box.left, event.clientY - box.top);
    if (lines) tip.show(event.clientX, event.clientY, lines); else tip.hide();
  });
  chart.over.addEventListener("mouseleave", tip.hide);
  return api;
}

/** What is drawn, as a trace that Perfetto opens. */
function traceOf(panels) {
  const events = [];
  panels.forEach(({ panel, rows, wordOf }, number) => {
    for (const row of rows) {
      const pid = number * 100000 + row.rank;
      events.push({ ph: "M", name: "process_name", pid, tid: 0, args: { name: `${panel.title} rank ${row.rank}` } });
      row.lanes.forEach((lane, tid) => {
        events.push({ ph: "M", name: "thread_name", pid, tid, args: { name: ["compute", "messages", "state"][tid] } });
        for (let i = 0; i < lane.begin.length; i++) {
          events.push({
            ph: "X", pid, tid,
            name: lane.kind[i] < CLASSES ? wordOf(lane, i) : `${lane.word[i]} ops`,
            ts: lane.begin[i] * panel.tick_s * 1e6,
            dur: (lane.end[i] - lane.begin[i]) * panel.tick_s * 1e6,
          });
        }
      });
    }
  });
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}

function drawTimeline() {
  if (!data.timeline.length) return;
  const together = new Together(0, Math.max(...data.timeline.map((panel) => panel.length_s)));
  const panels = [];
  data.timeline.forEach((panel, number) => {
    const other = data.timeline.length === 2 ? () => panels[1 - number] : null;
    panels.push(timelinePanel(panel, placeOf(`timeline-${number}`), together, other));
  });
  document.getElementById("critical").addEventListener("change", () => {
    for (const chart of together.charts) chart.redraw(false, false);
  });
  document.getElementById("save-trace").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([traceOf(panels)], { type: "application/json" }));
    link.download = "trace.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
