// Numbers in words, short and of a steady width.

export const NONE = "–";
const WHOLE = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

/** Each takes a value and gives [number, unit]. */
export const UNITS = {
  count: (value) => [short(value), ""],
  perSecond: (value) => [short(value), "/s"],
  share: (value) => [String(Number((100 * value).toFixed(value < 0.1 ? 1 : 0))), "%"],
  seconds: (value) => {
    if (value === 0) return ["0", "ms"];
    if (value < 0.001) return [digits(value * 1e6), "µs"];
    if (value < 1) return [digits(value * 1e3), "ms"];
    return value < 100 ? [digits(value), "s"] : [whole(Math.round(value)), "s"];
  },
};

/** "12 ms", or NONE for what is not known. */
export function worded(unit, value) {
  if (value == null) return NONE;
  const [number, name] = UNITS[unit](value);
  return name === "%" || name === "/s" ? number + name : `${number}\u00a0${name}`.trim();
}

/** As `worded`, for the scale of a chart whose title has the unit. */
export function scale(unit, value) {
  return value === 0 ? "0" : worded(unit === "perSecond" ? "count" : unit, value);
}

/** 12,345 */
export function whole(value) {
  return value == null ? NONE : WHOLE.format(value);
}

/** "1 restart", "2 restarts" */
export function several(value, word) {
  return `${whole(value)} ${value === 1 ? word : `${word}s`}`;
}

/** 14:03:59, of a time in Unix seconds. */
export function clock(time) {
  return CLOCK.format(time * 1000);
}

/** 14:03 */
export function minute(time) {
  return MINUTE.format(time * 1000);
}

function short(value) {
  if (value >= 1e6) return `${digits(value / 1e6)}M`;
  if (value >= 1e4) return `${digits(value / 1e3)}k`;
  return value >= 100 ? whole(Math.round(value)) : digits(value);
}

/** Three significant digits at most, without zeros at the end. */
function digits(value) {
  return String(value >= 100 ? Math.round(value) : Number(value.toPrecision(value < 1 ? 2 : 3)));
}
