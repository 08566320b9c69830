// At most one call a frame, with the latest arguments: tokens arrive faster than a screen shows them.

/** `act` once a frame; `flush` calls it at once, as in a tab that is hidden and has no frames. */
export function oncePerFrame(act) {
  let latest = null;
  let frame = 0;
  const flush = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (latest) act(...latest);
    latest = null;
  };
  const later = (...values) => {
    latest = values;
    frame ||= requestAnimationFrame(flush);
  };
  return { later, flush };
}
