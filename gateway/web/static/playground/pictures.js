// Pictures from files, within what the server takes, and from what the browser keeps.
import { storedPicture } from "./store.js";
import { heldUrl, hold, isPicture, pictureOf } from "./picture_urls.js";

export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const BESIDE = 1 << 16; // bytes of a request that are left for what is no picture

/** What the server takes of pictures, of its `/info`: {most, file, pixels, body}; null if its model sees none. */
export function sightOf(info) {
  if (!info.max_images) return null;
  return { most: info.max_images, file: info.max_image_size, pixels: info.max_image_pixels, body: info.image_payload_limit };
}

/** A picture of a file. Raises Error, naming the file and what is wrong with it. */
export async function fromFile(file, sight) {
  const name = file.name || "picture";
  if (!TYPES.includes(file.type)) throw new Error(`${name} is no PNG, JPEG, WebP, GIF or BMP`);
  if (file.size > sight.file) throw new Error(`${name} has ${sizeOf(file.size)}, at most ${sizeOf(sight.file)} are read`);
  const { width, height } = await extentOf(file);
  if (!width) throw new Error(`${name} can't be read as a picture`);
  if (width * height > sight.pixels) throw new Error(`${name} has ${width} × ${height} pixels, at most ${sight.pixels.toLocaleString()} in all are read`);
  const url = await urlOfFile(file);
  if (!isPicture(url)) throw new Error(`${name} can't be read`);
  return pictureOf(url, name);
}

/** Check that `picture` can be sent with the `others` of its chat. Raises Error. */
export function checkRoom(picture, others, sight) {
  const room = sight.body - BESIDE - bytesOf(others);
  if (others.length >= sight.most) throw new Error(`${picture.name} is one too many: a chat may have ${sight.most}`);
  if (picture.size > room) throw new Error(`${picture.name} is too large: a request may have ${sizeOf(sight.body)}, with all pictures of its chat`);
}

/** The URL of a picture, held or kept by the browser; null if it is neither. */
export async function urlOf({ id }) {
  const url = heldUrl(id) ?? (await storedPicture(id).catch(() => null));
  if (url) hold(id, url);
  return url ?? null;
}

/** Have the pictures of `nodes` held, so that they can be sent. Raises Error if one is gone. */
export async function gather(nodes) {
  for (const picture of nodes.flatMap((node) => node.pictures ?? []))
    if (!(await urlOf(picture))) throw new Error(`${picture.name} was not kept by this browser: edit its message, or delete it`);
}

export const bytesOf = (pictures) => pictures.reduce((sum, { size }) => sum + size, 0);

/** Bytes in words. */
export function sizeOf(bytes) {
  return bytes < 2 ** 20 ? `${Math.round(bytes / 2 ** 10)} KB` : `${(bytes / 2 ** 20).toFixed(1).replace(".0", "")} MB`;
}

/** Pixels of a picture in a file; none if the browser can't read it. */
async function extentOf(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const { width, height } = bitmap;
    bitmap.close();
    return { width, height };
  } catch {
    return { width: 0, height: 0 };
  }
}

function urlOfFile(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => resolve(null);
    reader.readAsDataURL(file);
  });
}
