// Names of what this page makes.

/** An id that nothing else has, here or in another tab. Works where the page is served over plain HTTP. */
export function freshId() {
  return [...crypto.getRandomValues(new Uint32Array(3))].map((each) => each.toString(36)).join("");
}
