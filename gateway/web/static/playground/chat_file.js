// A chat as a file: the shown messages as OpenAI's, and beside them all branches, which other programs pass over.
//
// What a file says is never trusted: a chat is made anew of the fields that are known, each of its type.
import { gather } from "./pictures.js";
import { heldUrl, isPicture, pictureOf } from "./picture_urls.js";
import { allPictures, messages, newChat, showing, title, withMessage } from "./tree.js";

const ROLES = ["user", "assistant", "tool"];

/** Save a chat where the browser saves files. Raises Error if a picture of it is gone. */
export async function save(chat) {
  await gather(Object.values(chat.nodes));
  const pictures = Object.fromEntries(allPictures(chat).map(({ id }) => [id, heldUrl(id)]));
  const content = JSON.stringify({ messages: messages(chat), branches: chat, pictures }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  link.download = `${title(chat).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The chat in a file's text: one of ours, a list of OpenAI's messages, or an object that has one. Raises Error. */
export function read(text) {
  const content = JSON.parse(text);
  const list = Array.isArray(content) ? content : content?.messages;
  const chat = content?.branches?.nodes ? fromBranches(content.branches, content.pictures) : Array.isArray(list) ? fromMessages(list) : null;
  if (!chat || !Object.keys(chat.nodes).length) throw new Error("it holds no messages");
  return chat;
}

function fromMessages(list) {
  let chat = newChat();
  for (const each of list) {
    if (["system", "developer"].includes(each?.role))
      chat = { ...chat, system: [chat.system, contentOf(each.content)].filter(Boolean).join("\n") };
    else [chat] = withMessage(chat, chat.leaf, messageOf({ ...each, calls: each?.tool_calls, call: each?.tool_call_id }));
  }
  return chat;
}

/** `urls` are the pictures' by their ids in the file. */
function fromBranches({ nodes, system, leaf }, urls) {
  let chat = { ...newChat(), system: contentOf(system) };
  const ids = new Map([[null, null]]); // of messages that are taken, by their ids in the file
  let rest = Object.values(nodes);
  for (let before = -1; rest.length && rest.length !== before; ) {
    before = rest.length;
    for (const node of rest.filter((each) => ids.has(each?.parent) && !ids.has(each.id))) {
      const [next, id] = withMessage(chat, ids.get(node.parent), { ...messageOf(node), pictures: picturesOf(node.pictures, urls) });
      chat = next;
      ids.set(node.id, id);
    }
    rest = rest.filter((each) => !ids.has(each?.id));
  }
  return ids.get(leaf) ? showing(chat, ids.get(leaf)) : chat;
}

function messageOf({ role, content, reasoning, calls, call }) {
  if (!ROLES.includes(role)) throw new Error(`a message's role must be one of ${ROLES.join(", ")} or system`);
  const listed = (Array.isArray(calls) ? calls : []).map(callOf);
  const rest = { reasoning: contentOf(reasoning), calls: listed, call: contentOf(call) || undefined };
  const parts = role === "user" && Array.isArray(content) ? content.filter(isPart) : [];
  const others = parts.length ? content.filter((part) => !isPart(part)) : content;
  return { role, content: contentOf(others), ...rest, pictures: parts.map((part) => pictureOf(part.image_url.url, "picture")) };
}

const isPart = (part) => isPicture(part?.image_url?.url);

/** A message's pictures in a file of ours. */
function picturesOf(listed, urls) {
  const found = (Array.isArray(listed) ? listed : []).map((each) => [urls?.[each?.id], each?.name]);
  return found.filter(([url]) => isPicture(url)).map(([url, name]) => pictureOf(url, name ?? "picture"));
}

function callOf(call) {
  const { name, arguments: written } = call?.function ?? {};
  if (typeof name !== "string" || typeof written !== "string") throw new Error("a tool call needs a function's name and arguments");
  return { id: String(call.id ?? ""), type: "function", function: { name, arguments: written } };
}

/** A text; of parts, their texts, and a mark for what is none. Raises Error for anything else. */
function contentOf(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw new Error("a message's content must be a text");
  return content.map((part) => (typeof part?.text === "string" ? part.text : `[${part?.type ?? "part"}]`)).join("");
}
