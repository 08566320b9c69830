// One chart: uPlot's canvas, a legend that is text, and a table that says the same.
import { html, useLayoutEffect, useRef } from "../common/ui.js";
import { clock, minute, scale, worded } from "./format.js";
import { values } from "./panels.js";

const HEIGHT = 150;
const AXIS = 52; // room for the labels of the vertical axis
const dark = matchMedia("(prefers-color-scheme: dark)");

/** The chart of a panel of panels.js. `hovered` is the index of the sample that is pointed at. */
export function Chart({ panel, samples, version, seconds, hovered, tables, show }) {
  const place = useRef(null);
  const plot = useRef(null);
  const columns = panel.series.map((series) => values(series, samples));
  const at = hovered ?? samples.length - 1;
  const theme = dark.matches;
  useLayoutEffect(() => {
    plot.current = draw(panel, place.current, show);
    const resized = new ResizeObserver(() => plot.current.setSize(size(place.current)));
    resized.observe(place.current);
    return () => {
      resized.disconnect();
      plot.current.destroy();
    };
  }, [theme]);
  useLayoutEffect(() => {
    const limits = samples.map((sample) => panel.limit?.(sample) ?? 0);
    plot.current.top = Math.max(0, ...limits);
    plot.current.seconds = seconds;
    plot.current.setData([samples.map((sample) => sample.time), ...columns]);
  }, [theme, version, seconds]);
  return html`
    <figure class="panel chart" data-title=${panel.title}>
      <figcaption>
        <h3>${panel.title}</h3>
        <${Legend} panel=${panel} values=${columns.map((column) => column[at])} />
      </figcaption>
      <div
        ref=${place}
        class="plot"
        hidden=${tables}
        role="img"
        tabindex="0"
        aria-label=${summary(panel, columns)}
        onKeyDown=${(event) => move(event, plot.current, at, samples)}
      ></div>
      <${Table} panel=${panel} columns=${columns} seen=${tables} />
    </figure>
  `;
}

function Legend({ panel, values }) {
  return html`<ul class="legend">
    ${panel.series.map(
      ([label, colour], index) => html`<li key=${label}>
        <i class="mark" style=${{ "--colour": `var(${colour})` }}></i>${label}
        <b>${worded(panel.unit, values[index])}</b>
      </li>`,
    )}
  </ul>`;
}

function Table({ panel, columns, seen }) {
  const columnsOf = columns.map((column) => extremes(column));
  return html`<div class=${seen ? "table" : "unseen"}>
    <table>
      <caption class="unseen">${panel.title}</caption>
      <thead>
        <tr><th scope="col">Series</th><th scope="col">Now</th><th scope="col">Lowest</th><th scope="col">Mean</th>
          <th scope="col">Highest</th></tr>
      </thead>
      <tbody>
        ${panel.series.map(
          ([label], index) => html`<tr key=${label}>
            <th scope="row">${label}</th>
            ${columnsOf[index].map((value) => html`<td>${worded(panel.unit, value)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** What a series is now, its least, mean and greatest value; null for each if it has none. */
function extremes(column) {
  const known = column.filter((value) => value != null);
  if (!known.length) return [null, null, null, null];
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  return [column[column.length - 1], Math.min(...known), mean, Math.max(...known)];
}

function summary(panel, columns) {
  const said = panel.series.map(([label], index) => {
    const [now, , , most] = extremes(columns[index]);
    return `${label} ${worded(panel.unit, now)}, at most ${worded(panel.unit, most)}`;
  });
  return `Chart of ${panel.title.toLowerCase()}: ${said.join("; ")}. Arrow keys move through time.`;
}

/** Arrow keys, Home and End point at a sample in all charts, Escape at none. */
function move(event, plot, at, samples) {
  const last = samples.length - 1;
  const far = event.shiftKey ? 30 : 1;
  const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: last, Escape: null }[event.key];
  if (to === undefined || last < 0) return;
  event.preventDefault();
  if (to === null) return plot.setCursor({ left: -10, top: -10 });
  const time = samples[Math.min(last, Math.max(0, to))].time;
  plot.setCursor({ left: plot.valToPos(time, "x"), top: 1 });
}

function size(place) {
  return { width: Math.max(120, place.clientWidth), height: HEIGHT };
}

function draw(panel, place, show) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false } };
  const grid = { stroke: colour("--grid"), width: 1 };
  return new uPlot(
    {
      ...size(place),
      padding: [10, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "dashboard" }, points: { size: 6 } },
      scales: { x: { time: false, range: span }, y: { range: height } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 56, incrs: [15, 30, 60, 120, 300], values: minutes },
        { ...axis, grid, size: AXIS, space: 24, values: (_, splits) => splits.map((each) => scale(panel.unit, each)) },
      ],
      series: [{}, ...panel.series.map(([label, name], index) => lineOf(label, colour(name), panel.fill && !index))],
      hooks: { setCursor: [(plot) => show({ hovered: plot.cursor.idx ?? null })] },
    },
    [[], ...panel.series.map(() => [])],
    place,
  );
}

function lineOf(label, stroke, fill) {
  return { label, stroke, width: 1.5, points: { show: false }, fill: fill ? `${stroke}24` : undefined };
}

/** The last `seconds` up to the newest sample, however many there are. */
function span(plot) {
  const times = plot.data[0];
  const end = times.length ? times[times.length - 1] : Date.now() / 1000;
  return [end - (plot.seconds ?? 600), end];
}

/** From 0 to a little above the highest value that is shown, or to the panel's limit. */
function height(plot, _, highest) {
  return [0, plot.top || (highest > 0 ? highest * 1.12 : 1)];
}

function minutes(plot, splits, _, __, step) {
  return splits.map((each) => (step < 60 ? clock(each) : minute(each)));
}
