// The connection to the feed: opened again whenever it breaks, falls silent, or the browser is back.
import { stream } from "../common/api.js";

const FEED = "dashboard/feed";
const LATE = 3_000; // milliseconds without a sample after which what is shown is old
const SILENT = 12_000; // and after which the connection is given up
const WAITS = [1_000, 2_000, 4_000, 8_000, 15_000]; // between attempts

/**
 * Call `event` with every event of the feed, for ever, and `state` with what becomes of the connection: "connecting",
 * "live", "late" or "broken", with the problem in words.
 */
export async function follow({ event, state }) {
  for (let failures = 0; ; failures++) {
    let problem = "the server closed the connection";
    const watch = watchdog(state);
    try {
      for await (const each of stream(FEED, undefined, watch.signal)) {
        failures = 0;
        watch.alive();
        state("live");
        event(each);
      }
    } catch (error) {
      problem = error.name === "ApiError" ? error.message : "the server does not answer";
    }
    watch.stop();
    state("broken", problem);
    await patience(WAITS[Math.min(failures, WAITS.length - 1)]);
  }
}

/** Tells when samples are late, and aborts its `signal` when none come any more. It begins with the first one. */
function watchdog(state) {
  const controller = new AbortController();
  let late = 0;
  let silent = 0;
  const stop = () => {
    clearTimeout(late);
    clearTimeout(silent);
  };
  const alive = () => {
    stop();
    late = setTimeout(() => state("late"), LATE);
    silent = setTimeout(() => controller.abort(), SILENT);
  };
  return { signal: controller.signal, alive, stop };
}

/** Wait, but no longer than until the network is back or the user looks. A little chance keeps many pages apart. */
function patience(milliseconds) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      document.removeEventListener("visibilitychange", looked);
      resolve();
    };
    const looked = () => document.hidden || done();
    const timer = setTimeout(done, milliseconds * (0.8 + 0.4 * Math.random()));
    addEventListener("online", done);
    document.addEventListener("visibilitychange", looked);
  });
}
