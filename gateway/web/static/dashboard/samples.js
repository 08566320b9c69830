// The samples of the last ten minutes, oldest first, as objects of the feed's fields.

const GAP = 3; // seconds without a sample after which a chart shows a gap

/** What is known. `version` tells one state from another. */
export class Samples {
  list = [];
  version = 0;
  kept = 600;

  get last() {
    return this.list[this.list.length - 1] ?? null;
  }

  /** Take an event of the feed: a history, which is true where it says something, or a sample. */
  add(event) {
    if (event.rows) {
      const history = decode(event);
      this.kept = event.kept;
      const begin = history[0]?.time ?? Infinity;
      this.list = this.list.filter((sample) => sample.time < begin);
      for (const sample of history) this.push(sample);
    } else {
      this.push(event);
    }
    this.version++;
  }

  push(sample) {
    if (this.last && sample.time < this.last.time - GAP) this.list = []; // the server's clock was set back
    if (this.last && sample.time <= this.last.time) return;
    if (this.last && sample.time - this.last.time > GAP) this.list.push(nothing(this.last.time + 1));
    this.list.push(sample);
    const oldest = sample.time - this.kept;
    while (this.list[0].time < oldest) this.list.shift();
  }

  /** The samples of the last `seconds`. */
  recent(seconds) {
    const from = (this.last?.time ?? 0) - seconds;
    return this.list.filter((sample) => sample.time > from);
  }
}

/** A moment of which nothing is known: its other fields are missing. */
function nothing(time) {
  return { time, replicas: [] };
}

function decode({ fields, replica_fields, rows }) {
  return rows.map((row) => {
    const sample = named(fields, row);
    sample.replicas = sample.replicas.map((each) => named(replica_fields, each));
    return sample;
  });
}

function named(names, values) {
  return Object.fromEntries(names.map((name, index) => [name, values[index]]));
}
