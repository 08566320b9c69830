// The charts as data: what each shows, in which unit. A series is [label, colour, value of a sample].

const PERCENTILES = ["p50", "p95", "p99"];

function latency(field) {
  return PERCENTILES.map((label, index) => [label, `--p${index + 1}`, (sample) => sample[field]?.[index] ?? null]);
}

function line(label, colour, field) {
  return [label, colour, (sample) => sample[field] ?? null];
}

/** Requests of a kind per second, since the sample before. */
function growth(label, colour, field) {
  const rate = (sample, before) => {
    if (before?.[field] == null || sample[field] == null) return null;
    return Math.max(0, sample[field] - before[field]) / Math.max(0.2, sample.time - before.time);
  };
  return [label, colour, rate];
}

export const PANELS = [
  {
    title: "Tokens per second",
    unit: "perSecond",
    fill: true,
    series: [
      line("out", "--c1", "generated_tokens_per_second"),
      line("in", "--c2", "prompt_tokens_per_second"),
    ],
  },
  {
    title: "Requests at work",
    unit: "count",
    fill: true,
    series: [line("running", "--c1", "running"), line("waiting", "--c3", "waiting")],
  },
  {
    title: "Requests per second",
    unit: "perSecond",
    series: [
      line("received", "--c1", "requests_per_second"),
      growth("rejected", "--c3", "rejected"),
      growth("failed", "--c4", "failed"),
    ],
  },
  { title: "Time to first token", unit: "seconds", series: latency("first_token_seconds") },
  { title: "Time between tokens", unit: "seconds", series: latency("inter_token_seconds") },
  { title: "Time of a step", unit: "seconds", series: latency("step_seconds") },
  { title: "Time in the queue", unit: "seconds", series: latency("queue_seconds") },
  {
    title: "KV cache pages",
    unit: "count",
    fill: true,
    limit: (sample) => sample.pages_total,
    series: [line("used", "--c1", "pages_used"), line("cached", "--c2", "pages_cached")],
  },
  {
    title: "Prefix hits",
    unit: "share",
    fill: true,
    limit: () => 1,
    series: [line("of prompt tokens", "--c1", "prefix_hits")],
  },
];

/** The values of a series over `samples`, null where there is none. */
export function values([, , value], samples) {
  return samples.map((sample, index) => value(sample, samples[index - 1]));
}
