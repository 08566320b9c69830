// What pictures take of the context. Each is sent to be counted once, not with every change of a draft.
import { call } from "../common/api.js";
import { urlOf } from "./pictures.js";
import { toPart } from "./picture_urls.js";

const counts = new Map(); // promises, by model and picture

/** Tokens that `pictures` add to a chat with `model`. Raises as `call`. */
export async function pictureTokens(model, pictures) {
  const found = await Promise.all(pictures.map((picture) => tokensOf(model, picture)));
  return found.reduce((sum, count) => sum + count, 0);
}

function tokensOf(model, picture) {
  const name = `${picture.id} ${model}`;
  if (!counts.has(name)) {
    const count = counted(model, picture);
    counts.set(name, count);
    count.catch(() => counts.delete(name)); // the next call asks again
  }
  return counts.get(name);
}

async function counted(model, picture) {
  if (!(await urlOf(picture))) throw new Error(`${picture.name} was not kept`);
  const asking = (content) => call("tokenize", { model, messages: [{ role: "user", content }] });
  const [seen, blind] = await Promise.all([asking([toPart(picture)]), asking("")]);
  return seen.count - blind.count;
}
