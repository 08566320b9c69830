// What pictures are: `data:` URLs, held here by the pictures' ids. A chat has no more of them than {id, name, size}, so that it
// can be kept and drawn often; `size` is the URL's length, in bytes of a request.
import { freshId } from "./ids.js";

const HEAD = /^data:image\/(png|jpeg|webp|gif|bmp);base64,(?=.)/;
const NOT_BASE64 = /[^A-Za-z0-9+/=]/;

const held = new Map();

/** Whether this is a picture in a URL, of a kind that browsers show and the server reads. */
export function isPicture(url) {
  const head = typeof url === "string" && url.slice(0, 40).match(HEAD)?.[0];
  return Boolean(head) && !NOT_BASE64.test(url.slice(head.length));
}

/** A picture for a chat; its URL is held under an id of its own. */
export function pictureOf(url, name) {
  const id = freshId();
  held.set(id, url);
  return { id, name: String(name).slice(0, 80) || "picture", size: url.length };
}

export const hold = (id, url) => held.set(id, url);
export const forget = (id) => held.delete(id);

/** The URL of picture `id`, if it is held; see `pictures.js` for one that the browser keeps. */
export const heldUrl = (id) => held.get(id);

/** A picture as OpenAI's part of a message. */
export const toPart = ({ id }) => ({ type: "image_url", image_url: { url: heldUrl(id) } });
