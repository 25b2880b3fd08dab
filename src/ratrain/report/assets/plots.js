/* What all charts share: axes in the theme's colours, size, zoom by mouse, button and key. */

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

function axis(more) {
  return {
    stroke: () => colour("muted"),
    font: FONT,
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { stroke: () => colour("line"), width: 1, size: 4 },
    border: { show: false },
    ...more,
  };
}

/** Room for the labels of an axis at the left: the same for all charts, but for long labels. */
function roomFor(u, labels) {
  u.ctx.save();
  u.ctx.font = FONT;
  const widest = Math.max(0, ...(labels || []).map((text) => u.ctx.measureText(text).width));
  u.ctx.restore();
  return Math.max(68, Math.ceil(widest) + 14); // the tick, two gaps
}

/** An axis of values at the left. */
const leftAxis = (values, label) => axis({ values, size: roomFor, gap: 4, label, labelSize: label ? 18 : 0 });

/** A range that stays inside [low, high]. */
const inside = (low, high) => (_, min, max) => {
  if (min === null || max === null || !(max > min)) return [low, high];
  return [Math.max(low, min), Math.min(high, max)];
};

/** A chart in its place: as wide as the page lets it be, redrawn when that changes. */
function plot(place, options, rows) {
  const width = () => Math.max(200, place.clientWidth);
  const chart = new uPlot({
    width: width(),
    legend: { show: false },
    padding: [6, 26, 0, 0], // half of the last tick's label stands beyond the axis
    ...options,
  }, rows, place);
  plots.set(place, chart);
  new ResizeObserver(() => {
    if (width() !== chart.width) chart.setSize({ width: width(), height: chart.height });
  }).observe(place);
  return chart;
}

/** Charts whose time axis moves together, between `low` and `high`. */
class Together {
  constructor(low, high) {
    this.low = low;
    this.high = high;
    this.charts = [];
    this.moving = false;
  }

  add(chart, place) {
    this.charts.push(chart);
    place.addEventListener("keydown", (event) => {
      const way = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
      if (way && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        this.move(way);
      }
    });
    chart.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      const at = chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x");
      this.zoom(event.deltaY < 0 ? 0.7 : 1 / 0.7, at);
    }, { passive: false });
    const buttons = place.parentElement.querySelectorAll("[data-zoom]");
    for (const button of buttons) button.addEventListener("click", () => this.move(button.dataset.zoom));
  }

  get range() {
    const { min, max } = this.charts[0].scales.x;
    return [min, max];
  }

  move(way) {
    const [min, max] = this.range, step = (max - min) * 0.25;
    if (way === "in") this.zoom(0.5, (min + max) / 2);
    else if (way === "out") this.zoom(2, (min + max) / 2);
    else if (way === "left") this.set(min - step, max - step);
    else if (way === "right") this.set(min + step, max + step);
    else this.set(this.low, this.high);
  }

  zoom(factor, at) {
    const [min, max] = this.range;
    this.set(at - (at - min) * factor, at + (max - at) * factor);
  }

  set(min, max) {
    const width = Math.min(max - min, this.high - this.low);
    const first = Math.min(Math.max(min, this.low), this.high - width);
    for (const chart of this.charts) chart.setScale("x", { min: first, max: first + width });
  }

  /** What a chart calls when its own range has changed: the others follow. */
  follow(chart) {
    if (this.moving) return;
    this.moving = true;
    const { min, max } = chart.scales.x;
    for (const other of this.charts) {
      if (other !== chart && (other.scales.x.min !== min || other.scales.x.max !== max)) {
        other.setScale("x", { min, max });
      }
    }
    this.moving = false;
  }
}

/** Text beside a line, with the background behind it so that curves do not cross it out. */
function label(u, text, x, y, align = "right") {
  const { ctx } = u, ratio = uPlot.pxRatio;
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = align;
  ctx.textBaseline = "bottom";
  ctx.setLineDash([]);
  ctx.lineJoin = "round";
  ctx.lineWidth = 4 * ratio;
  ctx.strokeStyle = colour("background");
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
}

/** A line across the chart at a value, with its name. */
function level(u, value, name, text, dash) {
  const { ctx } = u, ratio = uPlot.pxRatio, y = u.valToPos(value, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour(name);
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash(dash.map((part) => part * ratio));
  ctx.beginPath();
  ctx.moveTo(u.bbox.left, y);
  ctx.lineTo(u.bbox.left + u.bbox.width, y);
  ctx.stroke();
  label(u, text, u.bbox.left + u.bbox.width - 4 * ratio, y - 3 * ratio);
  ctx.restore();
}

const placeOf = (kind) => document.querySelector(`[data-chart="${kind}"]`);
