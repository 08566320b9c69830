// A chat: messages in a tree, of which one path is shown. Editing or regenerating adds a sibling; nothing is overwritten.
//
// A chat is {id, created, updated, system, nodes, leaf, gone}: `nodes` are the messages by id, each with the id of its
// `parent` and, of a user's, its `pictures`; `leaf` is the one that is shown last; `gone` are the ids of deleted ones, so
// that another tab's copy does not bring them back. Chats are never changed: each operation makes another.

import { freshId } from "./ids.js";
import { toPart } from "./picture_urls.js";

let latest = 0;

/** A number that no earlier call gave, and that grows: by it siblings are ordered. */
const moment = () => (latest = Math.max(latest + 1, Date.now()));

/** A chat without messages. */
export function newChat() {
  const now = Date.now();
  return { id: freshId(), created: now, updated: now, system: "", nodes: {}, leaf: null, gone: [] };
}

const lists = new WeakMap(); // of the nodes of a chat: which are below which

/** The messages below `id`, oldest first; with null, the first messages of all branches. */
function below(chat, id) {
  let found = lists.get(chat.nodes);
  if (!found) {
    found = Map.groupBy(Object.values(chat.nodes).sort((a, b) => a.made - b.made), (node) => node.parent);
    lists.set(chat.nodes, found);
  }
  return found.get(id) ?? [];
}

/** The messages from the first to the one that is shown last. */
export function path(chat, leaf = chat.leaf) {
  const found = [];
  for (let node = chat.nodes[leaf]; node; node = chat.nodes[node.parent]) found.push(node);
  return found.reverse();
}

/** `chat` with a further message below `parent`, which is shown; and the message's id. */
export function withMessage(chat, parent, message) {
  const id = freshId();
  const node = { content: "", ...message, id, parent, made: moment() };
  return [{ ...chat, nodes: { ...chat.nodes, [id]: node }, leaf: id, updated: Date.now() }, id];
}

/** `chat` with fields of a message changed. */
export function withChange(chat, id, change) {
  const node = chat.nodes[id];
  return node ? { ...chat, nodes: { ...chat.nodes, [id]: { ...node, ...change } }, updated: Date.now() } : chat;
}

/** The messages with the same parent as `id`, itself among them, oldest first. */
export const siblings = (chat, id) => below(chat, chat.nodes[id].parent);

/** `chat` with the branch of message `id` shown, down to its latest answer. */
export function showing(chat, id) {
  let leaf = id;
  for (let next = id; next !== undefined; next = below(chat, next).at(-1)?.id) leaf = next;
  return { ...chat, leaf };
}

/** `chat` without message `id` and all that follows it. The branch beside it is shown, if there is one. */
export function without(chat, id) {
  const { parent } = chat.nodes[id];
  const removed = new Set([id]);
  for (const each of removed) for (const node of below(chat, each)) removed.add(node.id);
  const nodes = Object.fromEntries(Object.entries(chat.nodes).filter(([each]) => !removed.has(each)));
  const rest = { ...chat, nodes, leaf: parent, gone: [...(chat.gone ?? []), ...removed], updated: Date.now() };
  const beside = below(rest, parent).at(-1);
  return beside ? showing(rest, beside.id) : rest;
}

/** One chat of two copies that two tabs have changed: the messages of both, as `mine` shows them. */
export function merged(mine, other) {
  const gone = [...new Set([...(mine.gone ?? []), ...(other.gone ?? [])])];
  const nodes = { ...other.nodes, ...mine.nodes };
  for (const id of gone) delete nodes[id];
  return { ...mine, nodes, gone, leaf: nodes[mine.leaf] ? mine.leaf : null };
}

/** All pictures of a chat; those of the shown messages are `shownPictures`. */
export const allPictures = (chat) => Object.values(chat.nodes).flatMap((node) => node.pictures ?? []);
export const shownPictures = (chat) => path(chat).flatMap((node) => node.pictures ?? []);

/** The shown messages as OpenAI's, with the system prompt before them. Their pictures must be held. */
export function messages(chat, leaf = chat.leaf) {
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  return [...system, ...path(chat, leaf).map(toMessage)];
}

/** The same without pictures. */
export function textMessages(chat) {
  const nodes = Object.entries(chat.nodes).map(([id, node]) => [id, { ...node, pictures: [] }]);
  return messages({ ...chat, nodes: Object.fromEntries(nodes) });
}

function toMessage({ role, content, calls, call, pictures }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  if (pictures?.length) return { role, content: [...pictures.map(toPart), ...(content ? [{ type: "text", text: content }] : [])] };
  return calls?.length ? { role, content: content || null, tool_calls: calls } : { role, content };
}

/** The words that a list shows a chat by. */
export function title(chat) {
  const first = below(chat, null).find((node) => node.role === "user");
  return first?.content.trim().slice(0, 80) || first?.pictures?.[0]?.name || "New chat";
}
