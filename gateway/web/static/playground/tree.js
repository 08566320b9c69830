// A chat: messages in a tree, of which one path is shown. Editing or regenerating adds a sibling; nothing is overwritten.

/** A chat without messages. */
export function newChat() {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, created: now, updated: now, system: "", nodes: {}, leaf: null };
}

/** The messages from the first to the one that is shown last. */
export function path(chat, leaf = chat.leaf) {
  const found = [];
  for (let node = chat.nodes[leaf]; node; node = chat.nodes[node.parent]) found.unshift(node);
  return found;
}

/** `chat` with a further message below `parent`, which is shown; and the message's id. */
export function withMessage(chat, parent, message) {
  const id = String(Object.keys(chat.nodes).reduce((most, each) => Math.max(most, Number(each)), 0) + 1);
  const node = { id, parent, content: "", ...message };
  return [{ ...chat, nodes: { ...chat.nodes, [id]: node }, leaf: id, updated: Date.now() }, id];
}

/** `chat` with fields of a message changed. */
export function withChange(chat, id, change) {
  const node = chat.nodes[id];
  return node ? { ...chat, nodes: { ...chat.nodes, [id]: { ...node, ...change } }, updated: Date.now() } : chat;
}

/** The messages with the same parent as `id`, itself among them, oldest first. */
export function siblings(chat, id) {
  const { parent } = chat.nodes[id];
  return Object.values(chat.nodes)
    .filter((node) => node.parent === parent)
    .sort((a, b) => a.id - b.id);
}

/** `chat` with the branch of message `id` shown, down to its latest answer. */
export function showing(chat, id) {
  let leaf = id;
  for (let below = id; below; leaf = below ?? leaf) {
    const children = Object.values(chat.nodes).filter((node) => node.parent === leaf);
    below = children.reduce((latest, node) => Math.max(latest, node.id), 0) || null;
    below = below && String(below);
  }
  return { ...chat, leaf };
}

/** `chat` without message `id` and all that follows it. */
export function without(chat, id) {
  const { parent } = chat.nodes[id];
  const nodes = Object.fromEntries(Object.entries(chat.nodes).filter(([each]) => !path(chat, each).some((node) => node.id === id)));
  const rest = { ...chat, nodes, leaf: parent };
  return parent ? showing(rest, parent) : { ...rest, leaf: Object.keys(nodes).length ? showing(rest, Object.keys(nodes).at(-1)).leaf : null };
}

/** The shown messages as OpenAI's, with the system prompt before them. */
export function messages(chat, leaf = chat.leaf) {
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  return [...system, ...path(chat, leaf).map(toMessage)];
}

function toMessage({ role, content, calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  return calls?.length ? { role, content: content || null, tool_calls: calls } : { role, content };
}

/** A chat from OpenAI's messages. Raises Error where something is not a message. */
export function fromMessages(list) {
  let chat = newChat();
  for (const each of list) {
    const content = textOf(each?.content);
    if (!["system", "developer", "user", "assistant", "tool"].includes(each?.role) || content === undefined)
      throw new Error("a message needs a role and a text as its content");
    if (["system", "developer"].includes(each.role)) chat = { ...chat, system: [chat.system, content].filter(Boolean).join("\n") };
    else [chat] = withMessage(chat, chat.leaf, { role: each.role, content, calls: each.tool_calls, call: each.tool_call_id });
  }
  return chat;
}

function textOf(content) {
  if (content === null || typeof content === "string") return content ?? "";
  const parts = Array.isArray(content) ? content.map((part) => part?.text) : [undefined];
  return parts.every((part) => typeof part === "string") ? parts.join("") : undefined;
}

/** The words that a list shows a chat by. */
export function title(chat) {
  const first = Object.values(chat.nodes).find((node) => node.role === "user");
  return chat.title || first?.content.trim().slice(0, 80) || "New chat";
}
