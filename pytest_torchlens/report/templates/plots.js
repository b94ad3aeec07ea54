// Curves: one for each block of numbers; a click on a curve chooses the layer in the graph.
const COLOURS = ["--c-1", "--c-2", "--c-3", "--c-4", "--c-5"];
const UNITS = ["B", "KB", "MB", "GB", "TB"];

function bytes(value) {
  const power = value ? Math.min(Math.floor(Math.log2(Math.abs(value)) / 10), UNITS.length - 1) : 0;
  return `${Number((value / 1024 ** power).toPrecision(3))} ${UNITS[power]}`;
}

const plain = (value) => (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5) ? String(Number(value.toPrecision(4))) : value.toExponential(2));
const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;
// A share ends at 100 %.
const RANGES = { shares: (_, low, high) => [0, Math.min(1, 1.1 * high) || 1] };
const FROM_ZERO = { min: { soft: 0, mode: 1 }, max: { pad: 0.1 } };
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const seconds = (value) => (value >= 1 ? `${Number(value.toPrecision(3))} s` : value >= 1e-3 ? `${Number((1e3 * value).toPrecision(3))} ms` : `${Number((1e6 * value).toPrecision(3))} µs`);
const UNITS_OF = { time: seconds, memory: bytes, flops: (value) => value.toLocaleString("en"), difference: String };
const FORMATS = { memory: bytes, sizes: bytes, values: plain, shares: percent };

function curve(box, name, chart) {
  const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const said = (value) => (value === null || value === undefined ? "–" : FORMATS[name](value));
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const names = Object.keys(chart.series);
  const options = {
    width: box.clientWidth,
    height: 240,
    scales: { x: { time: false }, y: { range: RANGES[name] ?? FROM_ZERO } },
    axes: [{ ...axis, incrs: WHOLE }, { ...axis, size: 75, values: (_, ticks) => ticks.map(said) }],
    series: [
      { label: "layer", value: (_, index) => chart.labels[index] ?? "–" },
      ...names.map((label, i) => ({
        label, stroke: colour(COLOURS[i % COLOURS.length]), width: names.length > 2 && i !== 2 ? 1 : 2,
        value: (_, value) => said(value), points: { show: chart.labels.length < 3 },
        fill: names.length === 1 ? colour("--c-fill") : undefined,
      })),
    ],
  };
  const data = [chart.labels.map((_, index) => index), ...names.map((label) => chart.series[label])];
  return new uPlot(options, data, box);
}

async function startPlots() {
  const block = document.getElementById("charts");
  if (!block) return;
  const charts = JSON.parse(await inflate(block.textContent));
  for (const box of document.querySelectorAll("[data-chart]")) {
    const name = box.dataset.chart;
    let drawn = null;
    const draw = () => {
      drawn?.destroy();
      drawn = curve(box, name, charts[name]);
    };
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    new ResizeObserver(() => drawn.setSize({ width: box.clientWidth, height: 240 })).observe(box);
    box.addEventListener("click", () => {
      const row = charts[name].rows[drawn.cursor.idx ?? -1];
      if (row) document.dispatchEvent(new CustomEvent("choose", { detail: row }));
    });
  }
}

startPlots();
