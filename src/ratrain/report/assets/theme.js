/* Colours of the style sheet, numbers with their units, and the one tip that all charts share. */

const data = JSON.parse(document.getElementById("data").textContent);
const plots = new Map(); // the element of a chart -> its uPlot

/** The colour of a name in the theme that is shown now. */
const colour = (() => {
  const known = new Map();
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", () => {
    known.clear();
    for (const plot of plots.values()) plot.redraw(false, true);
  });
  return (name) => {
    if (!known.has(name)) {
      const style = getComputedStyle(document.documentElement);
      known.set(name, style.getPropertyValue(`--${name}`).trim());
    }
    return known.get(name);
  };
})();

/** Three significant digits, or whole numbers: as the rest of the page writes quantities. */
function short(value) {
  return String(Math.abs(value) >= 999.5 ? Math.round(value) : Number(value.toPrecision(3)));
}

function seconds(value) {
  if (value === 0) return "0 s";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
    if (Math.abs(value) >= size * 0.9995) return `${short(value / size)} ${unit}`;
  }
  return `${short(value / 1e-9)} ns`;
}

function bytes(value) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (Math.abs(value) >= size * 0.9995) return `${short(value / size)} ${unit}`;
  }
  return `${short(value)} B`;
}

/** Ticks of an axis in one unit: that of the largest. */
function inOneUnit(units) {
  return (_, values) => {
    const most = Math.max(...values.map(Math.abs), 1e-12);
    const [unit, size] = units.find(([, size]) => most >= size * 0.9995) || units.at(-1);
    return values.map((value) => `${Number((value / size).toPrecision(6))} ${unit}`);
  };
}
const secondTicks = inOneUnit([["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]]);
const byteTicks = inOneUnit([["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const plainTicks = (_, values) => values.map((value) => value.toLocaleString("en-US"));

const tip = (() => {
  const element = document.createElement("div");
  element.className = "tip";
  element.hidden = true;
  document.body.append(element);
  return {
    /** Shows lines beside a point of the window; the first line is the heading. */
    show(x, y, [first, ...lines]) {
      const heading = document.createElement("b");
      heading.textContent = first;
      element.replaceChildren(heading, ...lines.map((line) => {
        const row = document.createElement("span");
        row.textContent = line;
        return row;
      }));
      element.hidden = false;
      const { width, height } = element.getBoundingClientRect();
      const left = x + 14 + width > innerWidth - 4 ? x - 14 - width : x + 14;
      const top = y + 14 + height > innerHeight - 4 ? y - 14 - height : y + 14;
      element.style.left = `${Math.max(4, left)}px`;
      element.style.top = `${Math.max(4, top)}px`;
    },
    hide() { element.hidden = true; },
  };
})();
